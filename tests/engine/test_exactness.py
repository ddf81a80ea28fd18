"""`fit` gives the same bits as a loop written by hand from the same parts, whatever else is attached to it."""

import contextlib
import io
import os
import pty
import random
import threading
from pathlib import Path

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stoker
from stoker import Accumulator, Objective, callbacks, data, metrics, optim, schedule
from stoker.engine import preserve_rng, seed_rng
from tests.learner.fits import Net, copy_state, learner, line, linear, same, samples

UPDATES = 100


def seed_everything(seed=3):
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


def walk(loader, epochs):
    """Yields the batch number, whether it is the last of its epoch, and the batch."""
    for epoch in range(epochs):
        for number, batch in enumerate(loader.at(epoch=epoch), start=1):
            yield number, number == len(loader), batch


def rate_at(rate, update):
    return rate(update) if callable(rate) else rate


def by_hand(*, accumulate=1, batch_size=16, clip=lambda grads: grads, optimizer=None, lr=1e-2, make=Net, cast=None,
            ema=None, updates=UPDATES):  # fmt: skip
    """A loop as users write it: 150 samples in batches of 16, so that the last batch and window are short."""
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
        rates = lr if not isinstance(lr, dict) else {key: rate_at(rate, update) for key, rate in lr.items()}
        stepper.step(clip(grads), lr=rates)
        for name, parameter in model.named_parameters():
            if ema is not None:
                average[name].lerp_(parameter.detach(), max(1 - ema, 9 / (10 + update)))  # it warms up
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
    "ema": ({"ema": 0.5}, {"ema": 0.5}),
    "not fused": ({"optimizer": optim.Adam(foreach=False)}, {"optimizer": optim.Adam(foreach=False)}),
}


@pytest.mark.parametrize("case", CASES)
def test_fit_gives_the_same_bits_as_a_loop_by_hand(case):
    settings, hand = CASES[case]
    assert same(fitted(**settings), by_hand(**hand))


@pytest.mark.parametrize("case", ["plain", "clip_norm", "ema"])
def test_a_change_of_1e_5_in_a_setting_changes_the_bits(case):
    """A negative control of the comparison."""
    _, hand = CASES[case]
    changed = {
        "plain": {"lr": 1e-2 * (1 + 1e-5)},
        "clip_norm": {"clip_norm": 0.1 * (1 + 1e-5)},
        "ema": {"ema": 0.50001},
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
def test_objectives_give_the_same_bits_as_a_loop_by_hand(accumulate):
    real, rates = torch.randn(100, 2, generator=torch.Generator().manual_seed(1)), {"critic": 2e-3, "generator": 1e-3}
    recipe = {name: optim.Adam(betas=(0.5, 0.9), fused=True) for name in rates}
    gan = stoker.Learner(GAN, optimizer=recipe, lr=rates, seed=3, accumulate=accumulate)
    result = gan.fit((real,), updates=UPDATES, batch_size=16, show=False)

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


class Watcher(callbacks.Callback):
    """Reads values in training, and draws random numbers in validation."""

    def __init__(self):
        self.seen = 0

    def on_train_batch_after_loss(self, ctx):
        self.seen += float(ctx.loss.detach()) > 0

    def on_valid_batch_end(self, ctx):
        torch.rand(3)
        self.seen += 1


def extras(folder):
    """Arguments of `fit` that must not change the training."""
    valid = tuple(column[:40] for column in samples())
    drawing = data.Loader(valid, batch_size=7, shuffle=1, transform=lambda x, y: (x + torch.randn(6), y))
    return {
        "validation": {"valid": valid},
        "validation every 3 updates": {"valid": valid, "validate_every": 3},
        "two sets, one with random numbers": {"valid": {"a": valid, "b": drawing}},
        "callbacks": {"callbacks": [Watcher(), callbacks.EarlyStopping(monitor="train/loss", patience=99)]},
        "run": {"run": folder / "run", "config": {"lr": 1}},
        "console": {"show": True},
        "all": {"valid": valid, "callbacks": [Watcher()], "run": folder / "all", "show": True},
    }


@pytest.mark.parametrize("extra", extras(Path()))
@pytest.mark.parametrize(
    "measured",
    [pytest.param((), marks=pytest.mark.soak), (metrics.Accuracy(), metrics.GradientNorm())],
    ids=["bare", "metrics"],
)
def test_validation_callbacks_runs_and_console_do_not_change_the_bits(extra, measured, tmp_path):
    plain = fitted(updates=25)
    arguments = {"show": False, "keep": "last", **extras(tmp_path)[extra]}
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        watched = learner(metrics=measured).fit(samples(), updates=25, batch_size=16, **arguments)
    assert same(watched.model, plain)
    assert bool(out.getvalue()) == arguments["show"]


def test_the_console_on_a_terminal_changes_no_bits(monkeypatch):
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


def test_a_stream_of_unknown_length_applies_its_last_window():
    """7 batches in windows of 3: the last window has one batch, which is only known afterwards."""

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
    """Nine micro-batches of 16 and one of 6, against one batch of 150."""

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
def test_a_fit_ends_at_the_first_limit(limits, epochs, updates, reason):
    result = linear().fit(line(), batch_size=16, show=False, **limits)
    assert (result.epochs, result.updates, result.stopped) == (epochs, updates, reason)


def test_data_without_batches_is_an_error():
    class Empty(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(())

    with pytest.raises(stoker.BadData, match="gave no batch in epoch 1"):
        linear().fit(torch.utils.data.DataLoader(Empty()), updates=3, show=False)
    with pytest.raises(stoker.BadData, match="gave no samples"):
        linear().fit(Empty(), updates=3, show=False)


def test_a_stop_in_on_fit_begin_trains_nothing():
    model = nn.Linear(3, 1)
    before = copy_state(model)
    stop = callbacks.on(fit_begin=lambda ctx: ctx.stop("not today"))
    result = linear(model=model).fit(line(), epochs=3, callbacks=[stop], show=False)
    assert (result.epochs, result.updates, result.stopped) == (0, 0, "not today")
    assert same(model, before)


# --- random numbers


def draw():
    return random.random(), numpy.random.rand(), torch.rand(()).item()


def test_a_fit_with_a_seed_restores_all_generators():
    with preserve_rng():
        expected = draw()
    learner().fit(samples(), valid=0.2, epochs=1, show=False)
    assert draw() == expected
    with seed_rng(7):
        inside = draw()
    with seed_rng(7):
        assert draw() == inside


def test_fits_with_the_same_seed_are_equal_whatever_was_drawn_before():
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 4)

        def forward(self, x):
            return self.layer(x) + random.random() + numpy.random.rand() + torch.rand(())

    first = learner(Noisy).fit(samples(), epochs=1, show=False).model
    draw()
    assert same(first, learner(Noisy).fit(samples(), epochs=1, show=False).model)
    assert not same(first, learner(Noisy, seed=4).fit(samples(), epochs=1, show=False).model)


def test_without_a_seed_torchs_global_generator_gives_one_which_is_recorded():
    torch.manual_seed(0)
    first = learner(seed=None).fit(samples(), epochs=1, show=False)
    second = learner(seed=None).fit(samples(), epochs=1, show=False)
    torch.manual_seed(0)
    third = learner(seed=None).fit(samples(), epochs=1, show=False)
    assert same(first.model, third.model) and not same(first.model, second.model)
    seeds = [each.record.events_of("begin")[0].extra["seed"] for each in (first, second, third)]
    assert seeds[0] == seeds[2] != seeds[1]
