"""The 18 defects of luz that are known from its source (reference/declarative.md, 1.12): none is in stoker.

The numbers are those of that table. What only a saved state can show waits for the checkpoint issue: of 15 the random
numbers and the data's position in a file, of 17 the matching of callbacks with a file, of 18 the rerun of a script.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stoker
from stoker import Callback, Objective, callbacks, data, metrics, optim, schedule

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(64, 4, generator=GENERATOR)
Y = X.sum(1, keepdim=True) + 0.1 * torch.randn(64, 1, generator=GENERATOR)
CLASSES = torch.randint(0, 3, (64,), generator=GENERATOR)


def linear(d_in=4, d_out=1, seed=0):
    torch.manual_seed(seed)
    return nn.Linear(d_in, d_out)


def learner(model=None, **settings):
    given = {"loss": nn.MSELoss(), "optimizer": optim.SGD(), "lr": 0.05, "seed": 0}
    return stoker.Learner(linear() if model is None else model, **{**given, **settings})


class Pair(nn.Module):
    """A critic and a generator, as in the DCGAN where luz goes wrong."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.generator, self.critic = nn.Linear(4, 4), nn.Linear(4, 1)
        self.forwards = 0

    def forward(self, x):
        self.forwards += 1
        return self.critic(self.generator(x))

    def losses(self, x):
        fake = self.generator(x)
        yield "critic", F.softplus(-self.critic(x)).mean() + F.softplus(self.critic(fake.detach())).mean()
        yield "generator", F.softplus(-self.critic(fake)).mean()

    def train_step(self, batch):
        for name, loss in self.losses(batch[0]):
            yield Objective(name, loss)


# 1: gradients that one loss writes into the other's parameters were added to that one's next step.
def test_01_no_gradient_goes_from_one_objective_into_anothers_step():
    model, hand = Pair(), Pair()
    recipe = {"critic": optim.Adam(fused=False), "generator": optim.SGD(momentum=0.9, fused=False)}
    stoker.Learner(model, optimizer=recipe, lr=1e-2, seed=0).fit(data.Loader((X,), batch_size=16), epochs=2, show=False)
    adam = torch.optim.Adam(hand.critic.parameters(), lr=1e-2)
    sgd = torch.optim.SGD(hand.generator.parameters(), lr=1e-2, momentum=0.9)
    for _ in range(2):
        for x in X.split(16):
            for (name, loss), optimizer in zip(hand.losses(x), (adam, sgd), strict=True):
                part = list(getattr(hand, name).parameters())
                for parameter, grad in zip(part, torch.autograd.grad(loss, part), strict=True):
                    parameter.grad = grad
                optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), hand.parameters(), strict=True))


# 2: the forward was computed once for each optimizer.
def test_02_the_forward_runs_once_a_batch_whatever_the_number_of_optimizers():
    class Supervised(Pair):
        train_step = None

    model = Supervised()
    recipe = {"critic": optim.Adam(), "generator": optim.SGD()}
    learner(model, optimizer=recipe).fit((X, Y), valid=(X, Y), epochs=1, batch_size=16, show=False)
    assert model.forwards == 4 + 4


# 3: schedules were impossible with several optimizers.
def test_03_every_optimizer_of_several_has_its_schedule():
    recipe = {"critic": optim.Adam(), "generator": optim.SGD()}
    rates = {"critic": schedule.linear(1e-2, 0.0, steps=8), "generator": schedule.constant(1e-3)}
    found = stoker.Learner(Pair(), optimizer=recipe, lr=rates, metrics=[metrics.LearningRate()], seed=0).fit(
        (X,), epochs=2, batch_size=16, show=False
    )
    assert found.history["lr/critic"] == [pytest.approx(1e-2 * 5 / 8), pytest.approx(1e-2 / 8)]
    assert found.history["lr/generator"] == [1e-3, 1e-3]


# 4: gradients were clipped while they were scaled; validation was not in 16 bits; scales moved once per optimizer.
def moves(**settings):
    """How far one update moves the weights, in 32 and in 16 bits."""
    hooks = settings.pop("callbacks", ())
    found = []
    for precision in ("fp32", "fp16"):
        model = linear()
        before = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
        told = learner(model, precision=precision, lr=1.0, **settings)
        told.fit((X, Y), updates=1, batch_size=64, show=False, callbacks=hooks)
        found.append(nn.utils.parameters_to_vector(model.parameters()).detach() - before)
    return found


# The limits: one that clips the true gradients, and one that only clips scaled ones.
@pytest.mark.parametrize("limit", [0.001, 100.0])
@pytest.mark.parametrize("clip", ["clip_norm", "clip_value"])
def test_04_clipping_sees_the_true_gradients_in_fp16(clip, limit):
    full, half = moves(**{clip: limit})
    torch.testing.assert_close(half, full, rtol=2e-2, atol=1e-5)


@pytest.mark.parametrize("limit", [0.001, 100.0])
def test_04_a_hook_that_clips_clips_the_true_gradients_in_fp16(limit):
    def clip(ctx):
        ctx.grads = ctx.grads.clip_norm(limit)

    full, half = moves(callbacks=[callbacks.on(train_batch_after_backward=clip)])
    torch.testing.assert_close(half, full, rtol=2e-2, atol=1e-5)


def test_04_a_hook_sees_the_true_gradients_in_fp16():
    seen = {}

    def look(ctx):
        seen[ctx.state["precision"]] = ctx.grads["weight"].clone()

    for precision in ("fp32", "fp16"):
        begin = callbacks.on(fit_begin=lambda ctx, name=precision: ctx.state.update(precision=name))
        learner(precision=precision).fit(
            (X, Y),
            updates=1,
            batch_size=64,
            show=False,
            callbacks=[begin, callbacks.on(train_batch_after_backward=look)],
        )
    torch.testing.assert_close(seen["fp16"], seen["fp32"], rtol=2e-2, atol=1e-3)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_04_validation_computes_in_the_same_precision(precision):
    kinds = set()
    look = callbacks.on(
        train_batch_after_pred=lambda ctx: kinds.add(("train", ctx.pred.dtype)),
        valid_batch_after_pred=lambda ctx: kinds.add(("valid", ctx.pred.dtype)),
    )
    learner(precision=precision).fit((X, Y), valid=(X, Y), epochs=1, show=False, callbacks=[look])
    kind = {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    assert kinds == {("train", kind), ("valid", kind)}


def test_04_every_objective_is_computed_in_16_bits():
    kinds = []

    class Watched(Pair):
        def train_step(self, batch):
            for name, loss in self.losses(batch[0]):
                kinds.append(self.critic(batch[0]).dtype)
                yield Objective(name, loss)

    stoker.Learner(Watched(), precision="bf16", seed=0).fit((X,), updates=1, show=False)
    assert kinds == [torch.bfloat16] * 2


def test_04_an_overflow_of_one_objective_leaves_the_others_gradients_right():
    """The critic overflows in the second half of a window, while the generator's sum was made at the old scale."""

    class Overflowing(nn.Module):
        def __init__(self, weight):
            super().__init__()
            self.critic = nn.Parameter(torch.zeros(1))
            self.generator = nn.Parameter(torch.zeros(1))
            self.weight = weight  # of the critic's loss: its gradient is finite, and overflows once it is scaled

        def train_step(self, batch):
            yield Objective("critic", (self.weight * self.critic).sum())
            yield Objective("generator", (batch[0].mean() * self.generator).sum())

    moved = []
    for weight in (1.0, 1e37):
        model = Overflowing(weight)
        stoker.Learner(model, optimizer=optim.SGD(), lr=1.0, precision="fp16", accumulate=2, seed=0).fit(
            data.Loader((torch.ones(4, 1),), batch_size=2), epochs=1, show=False
        )
        moved.append(model.generator.item())
    assert moved == [pytest.approx(-1.0), pytest.approx(-1.0)]


def test_04_a_skipped_update_is_counted_once():
    class Overflowing(nn.Linear):
        def train_step(self, batch):
            return (self(batch[0]).float() * 1e37).mean()

    model = Overflowing(4, 1)
    found = stoker.Learner(model, optimizer=optim.SGD(), lr=0.0, precision="fp16", seed=0).fit(
        (torch.ones(8, 4),), epochs=3, batch_size=8, show=False
    )
    assert found.record.events_of("end")[-1].extra["skipped"] == 3 and found.updates == 0


# 5: per-pair weights collapsed to their mean by broadcasting to B×B.
@pytest.mark.parametrize("mix", [callbacks.MixUp(0.5), callbacks.CutMix(1.0)], ids=["MixUp", "CutMix"])
def test_05_every_mixed_pair_has_its_own_weight(mix):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    checked = []

    def compare(ctx):
        (other, weight), own = ctx.loss_mix, ctx.batch[1]
        a, b = (F.cross_entropy(ctx.pred, each, reduction="none") for each in (own, other))
        expected = (weight * a + (1 - weight) * b).mean()
        collapsed = (weight.mean() * a + (1 - weight.mean()) * b).mean()
        torch.testing.assert_close(ctx.loss, expected)
        checked.append(bool((expected - collapsed).abs() > 1e-4))

    images = torch.randn(64, 4, 4, generator=torch.Generator().manual_seed(1))
    stoker.Learner(model, loss=nn.CrossEntropyLoss(), seed=0).fit(
        (images, CLASSES),
        epochs=1,
        batch_size=16,
        show=False,
        callbacks=[mix, callbacks.on(train_batch_after_loss=compare)],
    )
    assert len(checked) == 4 and any(checked)


# 6: mixing with a plain loss, and a validation beside it, called something that does not exist.
def test_06_mixing_needs_no_special_loss_and_leaves_validation_alone():
    seen = []
    look = callbacks.on(valid_batch_begin=lambda ctx: seen.append(ctx.batch[0].clone()))
    loader = data.Loader((X, CLASSES), batch_size=64)
    stoker.Learner(linear(4, 3), loss=nn.CrossEntropyLoss(), metrics=[metrics.Accuracy()], seed=0).fit(
        (X, CLASSES), valid=loader, epochs=1, show=False, callbacks=[callbacks.MixUp(), look]
    )
    assert torch.equal(seen[0], X)


# 7: the mode "zero" never compared with the new value. There is none: a distance from zero is a metric with "min".
def test_07_there_is_no_mode_that_does_not_compare():
    with pytest.raises(stoker.InvalidArgument, match="direction"):
        callbacks.EarlyStopping("valid/bias", direction="zero")

    values = iter([3.0, -2.0, 1.0, -1.5, 2.0])
    bias = callbacks.on(epoch_end=lambda ctx: ctx.log("distance", abs(next(values))))
    stop = callbacks.EarlyStopping("distance", direction="min", patience=2)
    found = learner().fit((X, Y), epochs=5, show=False, callbacks=[bias, stop])
    assert found.epochs == 5 and "(epoch 3)" in found.stopped


# 8: names with an underscore could not be monitored.
@pytest.mark.parametrize("monitor", ["valid/top2_accuracy", "valid/f1_macro", "valid/recall/2", "valid/my_own_name"])
def test_08_any_name_can_be_monitored(monitor):
    chosen = [
        metrics.TopKAccuracy(2),
        metrics.FBeta(),
        metrics.Recall(average="none"),
        metrics.Accuracy(name="my_own_name"),
    ]
    found = stoker.Learner(linear(4, 3), loss=nn.CrossEntropyLoss(), lr=0.0, metrics=chosen, seed=0).fit(
        (X, CLASSES), valid=(X, CLASSES), epochs=9, show=False, callbacks=[callbacks.EarlyStopping(monitor, patience=2)]
    )
    assert found.epochs == 3 and monitor in found.stopped


# 9: options for the loader were silently dropped for matrices, arrays and tensors.
class Masked(nn.Module):
    """Learns from inputs alone."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def train_step(self, batch):
        x = batch[0] if isinstance(batch, list | tuple) else batch
        return F.mse_loss(self.inner(x), x)


@pytest.mark.parametrize(
    "source",
    [X, X.numpy(), (X,), list(X), TensorDataset(X)],
    ids=["tensor", "array", "tuple", "list", "dataset"],
)
def test_09_the_batch_size_holds_for_every_kind_of_data(source):
    sizes = []
    look = callbacks.on(
        train_batch_begin=lambda ctx: sizes.append(
            len(ctx.batch[0] if isinstance(ctx.batch, list | tuple) else ctx.batch)
        )
    )
    stoker.Learner(Masked(), seed=0).fit(source, epochs=1, batch_size=24, show=False, callbacks=[look])
    assert sizes == [24, 24, 16]


@pytest.mark.parametrize(
    "source",
    [lambda: DataLoader(TensorDataset(X, Y), batch_size=16), lambda: data.Loader((X, Y), batch_size=16)],
    ids=["DataLoader", "Loader"],
)
def test_09_an_option_that_can_have_no_effect_is_an_error(source):
    with pytest.raises(stoker.InvalidArgument, match="batch_size"):
        learner().fit(source(), epochs=1, batch_size=24, show=False)
    fitted = learner().fit((X, Y), epochs=1, show=False)
    with pytest.raises(stoker.InvalidArgument, match="batch_size"):
        fitted.evaluate(source(), batch_size=24)
    with pytest.raises(stoker.InvalidArgument, match="batch_size"):
        fitted.predict(source(), batch_size=24)


# 10: a fraction of nothing left an empty training set, silently.
@pytest.mark.parametrize("fraction", [0, 0.0, 1, 1.0, -0.2, 1.5, True])
def test_10_a_fraction_outside_of_0_and_1_is_refused(fraction):
    with pytest.raises(stoker.InvalidArgument, match="between 0 and 1"):
        learner().fit((X, Y), valid=fraction, epochs=1, show=False)


@pytest.mark.parametrize("fraction", [0.001, 0.999])
def test_10_a_fraction_that_leaves_one_side_empty_is_refused(fraction):
    with pytest.raises(stoker.BadData, match="empty"):
        learner().fit((X, Y), valid=fraction, epochs=1, show=False)


def test_10_a_fraction_leaves_the_rest_to_train_on():
    seen = {"train": 0, "valid": 0}

    def count(ctx):
        seen[ctx.phase] += len(ctx.batch[0])

    look = callbacks.on(train_batch_begin=count, valid_batch_begin=count)
    learner().fit((X, Y), valid=0.25, epochs=1, show=False, callbacks=[look])
    assert seen == {"train": 48, "valid": 16}


# 11: the printed result never had the validation's numbers.
def test_11_the_printed_result_has_the_validations_numbers():
    found = learner(metrics=[metrics.MAE()]).fit((X, Y), valid=(X, Y), epochs=2, show=False)
    for name in ("valid/loss", "valid/mae", "train/loss", "train/mae"):
        assert f"{name} {found.history[name][-1]:.4g}" in str(found)


# 12: the finder of learning rates forgot the optimizer's other settings.
def test_12_lr_find_keeps_the_settings_of_the_optimizer():
    with_decay = learner(optimizer=optim.SGD(weight_decay=50.0, momentum=0.9))
    plain = learner()
    curves = [stoker.lr_find(each, (X, Y), steps=40, start_lr=1e-4, end_lr=1e-1) for each in (with_decay, plain)]
    assert curves[0].losses[-1] != pytest.approx(curves[1].losses[-1], rel=1e-3)


# 13: the loss was the mean of batch means.
@pytest.mark.parametrize("size", [64, 24, 7, 1])
def test_13_the_loss_is_the_mean_over_samples(size):
    model = linear()
    found = learner(model, lr=0.0).fit((X, Y), valid=(X, Y), epochs=1, batch_size=size, show=False)
    with torch.no_grad():
        expected = F.mse_loss(model(X), Y).item()
    assert found.history["valid/loss"] == [pytest.approx(expected, rel=1e-5)]
    assert found.history["train/loss"] == [pytest.approx(expected, rel=1e-5)]
    assert found.evaluate((X, Y), batch_size=size)["loss"] == pytest.approx(expected, rel=1e-5)


# 14: unknown hooks were silent: `call_on="on_batch_end"` never fired.
def test_14_an_unknown_hook_is_an_error():
    with pytest.raises(stoker.UnknownHook, match="on_train_batch_end"):
        type("Mine", (Callback,), {"on_batch_end": lambda self, ctx: None})
    with pytest.raises(stoker.UnknownHook, match="batch_end"):
        callbacks.on(batch_end=print)


# 14: "its one-cycle schedule never runs": a schedule is a function of the update, there is nothing to call.
def test_14_a_schedule_cannot_be_forgotten():
    rates = []
    look = callbacks.on(train_batch_begin=lambda ctx: rates.append(ctx.lr))
    cycle = schedule.one_cycle(0.1, steps=8)
    learner(lr=cycle).fit((X, Y), epochs=2, batch_size=16, show=False, callbacks=[look])
    assert rates == [cycle(update) for update in range(8)]


# 15: patience and best were lost. Here: every callback that counts gives its state and takes it up (in a checkpoint
# with the next issue), a CSV file is continued, and a fit that goes on goes on with its best.
@pytest.mark.parametrize(
    "make",
    [
        lambda: callbacks.EarlyStopping("train/loss", patience=3, min_delta=1e6),
        lambda: callbacks.ReduceLROnPlateau("train/loss", patience=2, factor=0.5, min_delta=1e6),
    ],
    ids=["EarlyStopping", "ReduceLROnPlateau"],
)
def test_15_what_a_callback_has_counted_is_its_state(make):
    first, second = make(), make()
    learner().fit((X, Y), epochs=2, show=False, callbacks=[first])
    state = first.state_dict()
    assert state["best"] is not None and state["waited"] == 1
    second.load_state_dict(state)
    assert second.state_dict() == state


@pytest.mark.parametrize(
    "make",
    [
        lambda: callbacks.EarlyStopping("train/loss", patience=3, min_delta=1e6),
        lambda: callbacks.ReduceLROnPlateau("train/loss", patience=2, factor=0.5, min_delta=1e6),
    ],
    ids=["EarlyStopping", "ReduceLROnPlateau"],
)
def test_15_what_a_callback_has_counted_survives_a_pause(make):
    """`continue_` goes on as if the fit had not ended."""
    whole = learner(metrics=[metrics.LearningRate()]).fit((X, Y), epochs=6, show=False, callbacks=[make()])
    paused = learner(metrics=[metrics.LearningRate()]).fit((X, Y), epochs=2, show=False, callbacks=[make()])
    paused.continue_(epochs=4, show=False)
    assert paused.epochs == whole.epochs and paused.history["lr"] == whole.history["lr"]


def test_15_a_csv_file_is_continued(tmp_path):
    found = learner().fit((X, Y), epochs=2, show=False, callbacks=[callbacks.CSV(tmp_path / "epochs.csv")])
    found.continue_(epochs=2, show=False)
    lines = (tmp_path / "epochs.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["epoch", "1", "2", "3", "4"]


def test_15_the_best_is_not_forgotten_when_a_fit_goes_on():
    found = learner(lr=schedule.constant(0.05).then(schedule.constant(3.0), at=8)).fit(
        (X, Y), valid=(X, Y), epochs=4, batch_size=32, show=False
    )
    best = found.best
    found.continue_(epochs=2, show=False)  # at a rate that only makes it worse
    assert found.best == best
    assert found.evaluate((X, Y))["loss"] == pytest.approx(best.value, rel=1e-6)


def test_15_random_numbers_and_the_datas_order_go_on():
    def made():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))

    whole = learner(made()).fit((X, Y), epochs=4, batch_size=16, show=False)
    paused = learner(made()).fit((X, Y), epochs=2, batch_size=16, show=False)
    torch.rand(7)
    paused.continue_(epochs=2, show=False)
    assert all(torch.equal(a, b) for a, b in zip(whole.model.parameters(), paused.model.parameters(), strict=True))


# 16: a callback that judged the model left it in eval mode for the rest of the epoch.
class Modes(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.seen = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1)), []

    def forward(self, x):
        self.seen.append(self.training)
        return self.body(x)


def test_16_a_callback_judges_a_view_and_training_stays_the_same():
    judged, plain = Modes(), Modes()
    judge = callbacks.on(train_batch_end=lambda ctx: stoker.valid(ctx.model)(X))
    learner(judged).fit((X, Y), epochs=1, batch_size=16, show=False, callbacks=[judge])
    learner(plain).fit((X, Y), epochs=1, batch_size=16, show=False)
    assert judged.seen == [True, False] * 4
    assert all(torch.equal(a, b) for a, b in zip(judged.parameters(), plain.parameters(), strict=True))


def test_16_a_callback_that_forgets_train_does_not_switch_off_dropout():
    model = Modes()
    forgetful = callbacks.on(train_batch_end=lambda ctx: ctx.model.eval())
    learner(model).fit((X, Y), epochs=1, batch_size=16, show=False, callbacks=[forgetful])
    assert model.seen == [True] * 4


# 17: callbacks were matched by position. A state has names; one that nothing can take up is an error (the rest waits).
def test_17_a_state_that_nothing_can_take_up_is_an_error():
    with pytest.raises(stoker.StateMismatch, match="Own"):
        type("Own", (Callback,), {})().load_state_dict({"best": 1.0})


# 18: hooks fired for epochs that were skipped, and the epoch restarted at 1.
def test_18_a_fit_that_goes_on_goes_on_counting():
    seen = []
    look = callbacks.on(
        epoch_begin=lambda ctx: seen.append(("begin", ctx.epoch)), epoch_end=lambda ctx: seen.append(("end", ctx.epoch))
    )
    found = learner().fit((X, Y), epochs=2, show=False, callbacks=[look])
    found.continue_(epochs=1, show=False)
    assert seen == [(what, epoch) for epoch in (1, 2, 3) for what in ("begin", "end")]
    assert (found.epochs, found.history.epochs, found.updates) == (3, [1, 2, 3], 6)
