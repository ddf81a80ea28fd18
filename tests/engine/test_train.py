"""fit and the loop that one writes by hand, on the same parts: the same bits. And the loop's own budgets."""

import contextlib
import io

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stoker
from stoker import Accumulator, Objective, callbacks, data, metrics, optim, schedule
from tests.engine.fits import Net, copied, learner, line, linear, same, samples, seed_everything, walk

UPDATES = 100


def at(rate, update):
    return rate(update) if callable(rate) else rate


def by_hand(*, accumulate=1, batch_size=16, clip=lambda grads: grads, optimizer=None, lr=1e-2, make=Net, cast=None,
            ema=None, updates=UPDATES):  # fmt: skip
    """The user's own loop: 150 samples in batches of 16 leave a last one of 6, and windows that end short."""
    seed_everything(3)
    model = make()
    loader = data.Loader(samples(), batch_size=batch_size, shuffle=3)
    stepper = optim.init(optimizer or optim.AdamW(fused=True), model)
    window, update = Accumulator(), 0
    average = {name: value.clone() for name, value in model.named_parameters()}
    for number, last, (x, y) in walk(loader, updates):
        with torch.autocast("cpu", dtype=cast, enabled=cast is not None):
            loss = F.cross_entropy(model(x), y)
        grads = stoker.backward(loss, model)
        if accumulate > 1:
            window.add(grads, weight=len(y))
            if number % accumulate and not last:
                continue
            grads = window.take()
        rates = lr if not isinstance(lr, dict) else {key: at(rate, update) for key, rate in lr.items()}
        stepper.step(clip(grads), lr=rates)
        for name, parameter in model.named_parameters():
            if ema is not None:
                average[name].lerp_(parameter.detach(), 1 - ema)
        update += 1
        if update == updates:
            break
    if ema is not None:
        model.load_state_dict(average, strict=False)
    return model


def fitted(*, batch_size=16, updates=UPDATES, **settings):
    return learner(**settings).fit(samples(), updates=updates, batch_size=batch_size, show=False).model


def frozen():
    return stoker.freeze(Net(), "body.0")


GROUPS = {"head": optim.SGD(momentum=0.9, fused=True), "*": optim.AdamW(fused=True)}
RATES = {"*.bias": 1e-3, "head": schedule.cosine(0.1, steps=120, warmup=5), "*": 1e-2}
CASES = {
    "plain": ({}, {}),
    "accumulation with a short last window": ({"accumulate": 4}, {"accumulate": 4}),
    "clip_norm": ({"clip_norm": 0.1}, {"clip": lambda grads: grads.clip_norm(0.1)}),
    "clip_value": ({"clip_value": 0.01}, {"clip": lambda grads: grads.clip_value(0.01)}),
    "both clips": ({"clip_norm": 0.1, "clip_value": 0.02}, {"clip": lambda g: g.clip_value(0.02).clip_norm(0.1)}),
    "groups": ({"model": frozen, "optimizer": GROUPS, "lr": RATES}, {"make": frozen, "optimizer": GROUPS, "lr": RATES}),
    "bf16": ({"precision": "bf16"}, {"cast": torch.bfloat16}),
    "ema": ({"ema": 0.9}, {"ema": 0.9}),
    "not fused": ({"optimizer": optim.Adam(foreach=False)}, {"optimizer": optim.Adam(foreach=False)}),
}


@pytest.mark.parametrize("case", CASES)
def test_fit_and_the_own_loop_give_the_same_bits(case):
    settings, hand = CASES[case]
    assert same(fitted(**settings), by_hand(**hand))


@pytest.mark.parametrize("case", ["plain", "clip_norm", "ema"])
def test_the_comparison_would_notice(case):
    """A negative control: one part in a hundred thousand of one setting is seen."""
    _, hand = CASES[case]
    changed = {
        "plain": {"lr": 1e-2 * (1 + 1e-5)},
        "clip_norm": {"clip_norm": 0.1 * (1 + 1e-5)},
        "ema": {"ema": 0.90001},
    }
    assert not same(fitted(updates=10, **changed[case]), by_hand(updates=10, **hand))


class GAN(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator, self.critic = nn.Linear(4, 2), nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))

    def losses(self, real):
        fake = self.generator(torch.randn(len(real), 4))
        yield "critic", F.softplus(-self.critic(real)).mean() + F.softplus(self.critic(fake.detach())).mean()
        yield "generator", F.softplus(-self.critic(fake)).mean()

    def train_step(self, batch):
        for name, loss in self.losses(batch[0]):
            yield Objective(name, loss)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_objectives_are_the_own_loop_s_bits(accumulate):
    real, rates = torch.randn(100, 2, generator=torch.Generator().manual_seed(1)), {"critic": 2e-3, "generator": 1e-3}
    recipe = {name: optim.Adam(betas=(0.5, 0.9), fused=True) for name in rates}
    given = stoker.Learner(GAN, optimizer=recipe, lr=rates, seed=3, accumulate=accumulate)
    result = given.fit((real,), updates=UPDATES, batch_size=16, show=False)

    seed_everything(3)
    model = GAN()
    loader = data.Loader((real,), batch_size=16, shuffle=3)
    stepper, windows, update = optim.init(recipe, model), {name: Accumulator() for name in rates}, 0
    for number, last, (batch,) in walk(loader, UPDATES * accumulate):
        ends = number % accumulate == 0 or last
        for name, loss in model.losses(batch):
            windows[name].add(stoker.backward(loss, model, wrt=name), weight=len(batch))
            if ends:
                stepper.step(windows[name].take(), lr=rates)
        update += ends
        if update == UPDATES:
            break
    assert same(result.model, model)
    assert set(result.history.columns) >= {"train/critic", "train/generator"}


class Busy(callbacks.Callback):
    """Reads everything, draws nothing."""

    def __init__(self):
        self.seen = 0

    def on_train_batch_after_loss(self, ctx):
        self.seen += float(ctx.loss.detach()) > 0

    def on_valid_batch_end(self, ctx):
        torch.rand(3)  # even what a hook draws in validation does not reach the training
        self.seen += 1


def around(tmp_path):
    """What hangs on a fit and must not be felt by it."""
    valid = tuple(column[:40] for column in samples())
    drawing = data.Loader(valid, batch_size=7, shuffle=1, transform=lambda x, y: (x + torch.randn(6), y))
    return {
        "validation": {"valid": valid},
        "validation every 3 updates": {"valid": valid, "validate_every": 3},
        "two sets, one of a drawing loader": {"valid": {"a": valid, "b": drawing}},
        "callbacks": {"callbacks": [Busy(), callbacks.EarlyStopping(monitor="train/loss", patience=99)]},
        "run": {"run": tmp_path / "run", "config": {"lr": 1}},
        "console": {"show": True},
        "all": {"valid": valid, "callbacks": [Busy()], "run": tmp_path / "all", "show": True},
    }


@pytest.mark.parametrize("what", around(__import__("pathlib").Path()))
@pytest.mark.parametrize("measured", [(), (metrics.Accuracy(), metrics.GradientNorm())], ids=["bare", "metrics"])
def test_nothing_that_hangs_on_a_fit_changes_its_bits(what, measured, tmp_path):
    plain = fitted(updates=25)
    given = {"show": False, "keep": "last", **around(tmp_path)[what]}
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        busy = learner(metrics=measured).fit(samples(), updates=25, batch_size=16, **given)
    assert same(busy.model, plain)
    assert bool(out.getvalue()) == given["show"]


def test_the_console_on_a_terminal_changes_no_bits(monkeypatch):
    """A real terminal: what is drawn goes through a pty, and is read from its other end."""
    import os
    import pty
    import threading

    parent, child = pty.openpty()
    drawn = []

    def read():
        with contextlib.suppress(OSError):
            while piece := os.read(parent, 4096):
                drawn.append(piece)

    reader = threading.Thread(target=read)
    reader.start()
    monkeypatch.setenv("TERM", "xterm-256color")
    with open(child, "w", encoding="utf-8") as terminal, contextlib.redirect_stdout(terminal):
        shown = learner().fit(samples(), updates=25, batch_size=16, show=True)
    reader.join()
    os.close(parent)
    assert b"\x1b[" in b"".join(drawn)
    assert same(shown.model, fitted(updates=25))


def test_a_stream_of_unknown_length_closes_its_last_window():
    """7 batches in windows of 3: the last window has one batch, and nobody knew it was the last."""

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(zip(*line(56), strict=True))

    seen = []
    watch = callbacks.on(update=lambda ctx: seen.append((ctx.update, ctx.batch_number)))
    result = linear(accumulate=3).fit(Stream(), epochs=2, batch_size=8, callbacks=[watch], show=False)
    assert result.updates == 6
    assert seen == [(1, 3), (2, 6), (3, 7), (4, 3), (5, 6), (6, 7)]
    known = linear(accumulate=3).fit(data.Loader(line(56), batch_size=8), epochs=2, show=False)
    assert known.updates == 6


def test_any_split_of_a_batch_gives_the_gradient_of_the_batch():
    """Uneven micro-batches (150 in 16s is 9 of 16 and one of 6) against the whole: one update of SGD."""

    def one(batch_size, accumulate, loss):
        model = stoker.Learner(
            lambda: nn.Linear(6, 4), loss=loss, optimizer=optim.SGD(), lr=0.1, accumulate=accumulate, seed=3
        )
        return model.fit(data.Loader(samples(), batch_size=batch_size), epochs=1, show=False).model.weight

    for loss in (
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 0.2, 3.0])),
        nn.CrossEntropyLoss(ignore_index=2),
        nn.CrossEntropyLoss(reduction="sum"),
        F.cross_entropy,
    ):
        torch.testing.assert_close(one(16, 10, loss), one(150, 1, loss), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("limits", "epochs", "updates", "reason"),
    [
        ({"epochs": 3}, 3, 12, "Completed 3 epochs"),
        ({"updates": 6}, 2, 6, "Completed 6 updates"),
        ({"epochs": 2, "updates": 100}, 2, 8, "Completed 2 epochs"),
        ({"epochs": 2, "updates": 8}, 2, 8, "Completed 8 updates"),
        ({"minutes": 1e-9}, 1, 1, "Stopped after 1e-09 minutes"),
        ({"minutes": 60, "updates": 1}, 1, 1, "Completed 1 updates"),
    ],
)
def test_limits(limits, epochs, updates, reason):
    result = linear().fit(line(), batch_size=16, show=False, **limits)
    assert (result.epochs, result.updates, result.stopped) == (epochs, updates, reason)


def test_data_that_gives_nothing_is_an_error_and_no_endless_loop():
    class Nothing(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(())

    with pytest.raises(stoker.BadData, match="gave no batch in epoch 1"):
        linear().fit(torch.utils.data.DataLoader(Nothing()), updates=3, show=False)
    with pytest.raises(stoker.BadData, match="gave no samples"):
        linear().fit(Nothing(), updates=3, show=False)


def test_a_model_trains_in_training_mode_and_parts_that_are_kept_in_eval_mode_stay_so():
    model = Net().eval()
    fresh = Net()
    fresh.load_state_dict(model.state_dict())
    assert same(
        learner(model).fit(samples(), epochs=1, show=False).model,
        learner(fresh).fit(samples(), epochs=1, show=False).model,
    )
    kept = Net()
    kept.body[1].eval()
    before = kept.body[1].running_mean.clone()
    learner(kept).fit(samples(), valid=samples(), epochs=1, show=False)
    assert torch.equal(kept.body[1].running_mean, before) and not kept.body[1].training


def test_a_stop_in_the_first_hook_trains_nothing():
    model = nn.Linear(3, 1)
    before = copied(model)
    stop = callbacks.on(fit_begin=lambda ctx: ctx.stop("not today"))
    result = linear(model=model).fit(line(), epochs=3, callbacks=[stop], show=False)
    assert (result.epochs, result.updates, result.stopped) == (0, 0, "not today")
    assert same(model, before)
