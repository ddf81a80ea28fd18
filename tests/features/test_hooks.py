"""Callbacks: when they run, what they may read and change, and the ones that come with stoker."""

import csv
import os
import signal

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stoker
from stoker import Callback, callbacks, data, metrics, optim, schedule
from stoker.callbacks import on
from tests.features.models import CLASSES, Net, X, Y, fit, learner, linear, same_weights

# --- when


def test_hooks_run_in_the_documented_order():
    seen = []
    names = [name.removeprefix("on_") for name in callbacks.HOOK_NAMES]
    hooks = on(**{name: lambda ctx, name=name: seen.append(name) for name in names})
    fit((X[:32], Y[:32]), valid=(X[32:64], Y[32:64]), epochs=2, callbacks=[hooks])
    train = [f"train_batch_{each}" for each in ("begin", "after_pred", "after_loss", "after_backward", "after_step")]
    valid = [f"valid_batch_{each}" for each in ("begin", "after_pred", "after_loss", "end")]
    epoch = ["epoch_begin", "train_begin", *train, "update", "train_batch_end", "train_end"]
    epoch += ["valid_begin", *valid, "valid_end", "validation", "epoch_end"]
    assert seen == ["fit_begin", *epoch, *epoch, "fit_end"]


def test_callbacks_run_in_the_order_of_the_list_and_without_autograd():
    seen = []
    hooks = [on(epoch_end=lambda ctx, n=n: seen.append((n, torch.is_grad_enabled()))) for n in (3, 1, 2)]
    fit(epochs=1, callbacks=hooks)
    assert seen == [(3, False), (1, False), (2, False)]


def test_an_unknown_hook_is_an_error():
    with pytest.raises(stoker.UnknownHook, match="on_train_batch_end"):
        type("Mine", (Callback,), {"on_batch_end": lambda self, ctx: None})
    with pytest.raises(stoker.UnknownHook, match="batch_end"):
        on(batch_end=print)


@pytest.mark.parametrize("every", ["epoch", 2])
def test_a_stop_in_validation_finishes_it_and_trains_no_more(every):
    seen = []
    hooks = on(
        train_batch_begin=lambda ctx: seen.append("train"),
        valid_batch_begin=lambda ctx: (seen.append("valid"), ctx.stop("enough")),
    )
    found = learner().fit((X, Y), valid=(X, Y), epochs=5, validate_every=every, show=False, callbacks=[hooks])
    assert seen == ["train"] * (3 if every == "epoch" else 2) + ["valid"] * 3
    assert found.stopped == "enough" and found.best is not None


def test_ctrl_c_finishes_the_batch_and_returns_a_result():
    seen = []
    press = on(
        train_batch_end=lambda ctx: os.kill(os.getpid(), signal.SIGINT) if ctx.update == 4 else None,
        interrupt=lambda ctx: seen.append("interrupt"),
        epoch_end=lambda ctx: seen.append("epoch_end"),
        fit_end=lambda ctx: seen.append("fit_end"),
    )
    found = fit(valid=(X, Y), epochs=9, callbacks=[press])
    assert (found.epochs, found.updates) == (2, 4) and found.stopped.startswith("Interrupted in epoch 2")
    assert seen == ["epoch_end", "epoch_end", "interrupt", "fit_end"]
    assert found.best.epoch == 1 and found.evaluate((X, Y))["loss"] == pytest.approx(found.best.value, rel=1e-6)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


# --- what they read and write


def test_the_context_has_what_a_callback_needs():
    names = "device model optimizer epochs epoch batch_number batch pred loss output phase metrics record history"
    seen = {}

    def look(ctx):
        seen.update({name: getattr(ctx, name) for name in f"{names} lr seed update batches best".split()})

    found = fit(callbacks=[on(train_batch_end=look)], valid=(X, Y))
    assert seen["model"] is found.model and seen["epochs"] == 2 and seen["epoch"] == 2 and seen["batch_number"] == 3
    assert seen["batch"][0].shape == (16, 4) and seen["pred"].shape == (16, 1) and seen["loss"].ndim == 0
    assert seen["device"].type == "cpu" and seen["batches"] == 3 and seen["update"] == 6 and seen["phase"] == "train"
    assert isinstance(seen["optimizer"], optim.Optimizer) and seen["seed"] == 0 and seen["best"].epoch == 1


def test_the_context_has_a_place_for_values_of_your_own_and_refuses_misspelt_fields():
    def wrong(ctx):
        ctx.epcoh = 3

    with pytest.raises(AttributeError, match="epoch"):
        fit(callbacks=[on(epoch_end=wrong)])
    seen = []
    fit(callbacks=[on(fit_begin=lambda ctx: ctx.state.update(n=1), fit_end=lambda ctx: seen.append(ctx.state["n"]))])
    assert seen == [1]


def test_a_callback_logs_numbers_and_reads_earlier_epochs():
    seen = []

    def log(ctx):
        ctx.log("temperature", 30 + ctx.epoch)
        seen.append(len(ctx.history["train/loss"]))

    found = fit(callbacks=[on(epoch_end=log)])
    assert found.history["temperature"] == [31.0, 32.0] and seen == [1, 2]
    with pytest.raises(AttributeError):
        found.history = {}


def test_progress_is_reported_while_an_epoch_runs():
    kinds = []
    fit(callbacks=[on(fit_begin=lambda ctx: ctx.record.subscribe(lambda event: kinds.append(event.kind)))])
    assert "progress" in kinds


def test_the_batch_is_writable():
    def blank(ctx):
        ctx.batch = (torch.zeros_like(ctx.batch[0]), ctx.batch[1])

    seen = []
    hooks = on(train_batch_begin=blank, train_batch_after_pred=lambda ctx: seen.append(ctx.pred.std().item()))
    fit(callbacks=[hooks])
    assert seen and max(seen) < 1e-6


@pytest.mark.parametrize("phase", ["train", "valid"])
def test_prediction_and_loss_are_writable(phase):
    def perfect(ctx):
        with torch.enable_grad():
            ctx.pred = ctx.batch[1] + 0 * ctx.model.head.bias.sum()

    def shift(ctx):
        with torch.enable_grad():
            ctx.loss = ctx.loss + 2

    hooks = on(**{f"{phase}_batch_after_pred": perfect, f"{phase}_batch_after_loss": shift})
    found = fit(valid=(X, Y), epochs=1, lr=0.0, callbacks=[hooks])
    assert found.history[f"{phase}/loss"] == [2.0]


def test_gradients_can_be_replaced():
    model = Net()
    start = model.head.weight.detach().clone()

    def signs(ctx):
        ctx.grads = ctx.grads.map(lambda name, tensor: tensor.sign())

    settings = {"optimizer": optim.SGD(), "lr": 0.25, "epochs": 1, "batch_size": 80}
    fit(model=model, callbacks=[on(train_batch_after_backward=signs)], **settings)
    torch.testing.assert_close((model.head.weight - start).abs(), torch.full((1, 8), 0.25))


@pytest.mark.parametrize("kind", [1.0, 2.0, float("inf")])
def test_gradients_can_be_clipped_by_any_norm(kind):
    norms = []

    def clip(ctx):
        ctx.grads = ctx.grads.clip_norm(0.1, kind=kind)
        norms.append(ctx.grads.norm(kind).item())

    fit(callbacks=[on(train_batch_after_backward=clip)])
    assert norms and max(norms) <= 0.1 + 1e-6


def test_the_learning_rate_can_be_scaled():
    class Halve(Callback):
        def on_epoch_end(self, ctx):
            ctx.lr_scale /= 2

    found = fit(epochs=3, metrics=[metrics.LearningRate()], callbacks=[Halve()])
    assert found.history["lr"] == [1e-2, 5e-3, 2.5e-3]


def test_evaluating_in_a_callback_does_not_change_training():
    def make():
        torch.manual_seed(0)
        return Net(dropout=0.5)

    evaluated, forgotten, plain = make(), make(), make()
    fit(model=evaluated, callbacks=[on(train_batch_end=lambda ctx: stoker.valid(ctx.model)(X))])
    fit(model=forgotten, callbacks=[on(train_batch_end=lambda ctx: ctx.model.eval())])  # and never train() again
    fit(model=plain)
    assert same_weights(evaluated, plain) and same_weights(forgotten, plain)


# --- errors


def test_an_error_in_a_callback_keeps_its_type_and_says_where():
    class Broken(Callback):
        def on_valid_batch_end(self, ctx):
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        fit(valid=(X, Y), callbacks=[Broken()])
    note = "".join(caught.value.__notes__)
    assert "Broken.on_valid_batch_end" in note and "epoch 1" in note and "batch 1" in note


@pytest.mark.parametrize("phase", ["train", "valid"])
def test_an_error_in_a_metric_says_which_and_where(phase):
    def broken(predictions, targets):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        fit(valid=(X, Y), metrics=[metrics.of(broken, name="my_metric").replace(on=phase)])
    note = "".join(caught.value.__notes__)
    assert "my_metric" in note and phase in note and "epoch 1" in note and "batch 1" in note


def test_a_state_that_a_callback_cannot_load_is_an_error():
    with pytest.raises(stoker.StateMismatch, match="Own"):
        type("Own", (Callback,), {})().load_state_dict({"best": 1.0})


# --- the ones that come with stoker


def test_early_stopping_says_when_and_why(capsys):
    stop, seen = callbacks.EarlyStopping(patience=3), []
    found = learner(lr=0.05).fit(
        *((X[:40], Y[:40]),),
        valid=(X[40:], Y[40:]),
        epochs=200,
        callbacks=[stop, on(fit_end=lambda ctx: seen.append(ctx.stopping))],
    )
    assert found.epochs < 200 and found.best.epoch == found.epochs - 3
    assert found.stopped.startswith(f"Early stopping at epoch {found.epochs} of 200") and seen == [found.stopped]
    assert f"Early stopping at epoch {found.epochs} of 200" in capsys.readouterr().out


MONITORS = ["valid/loss", "train/loss", "train/top2_accuracy", "valid/f1_macro", "valid/recall/2", "valid/my_own_name"]


@pytest.mark.parametrize("monitor", MONITORS)
def test_any_metric_of_any_set_can_be_monitored(monitor):
    chosen = [metrics.TopKAccuracy(2), metrics.FBeta(), metrics.Recall(average="none")]
    found = fit(
        (X, CLASSES),
        model=linear(3),
        loss=nn.CrossEntropyLoss(),
        lr=0.0,
        metrics=[*chosen, metrics.Accuracy(name="my_own_name")],
        valid=(X, CLASSES),
        epochs=9,
        callbacks=[callbacks.EarlyStopping(monitor, patience=2)],
    )
    assert found.epochs == 3 and monitor in found.stopped


def test_a_monitor_that_does_not_exist_is_an_error_that_names_the_right_one():
    settings = {"model": linear(3), "loss": nn.CrossEntropyLoss(), "valid": (X, CLASSES)}
    for monitor, advice in (("valid/acuracy", "valid/accuracy"), ("valid/recall", "valid/recall/0")):
        chosen = [metrics.Accuracy(), metrics.Recall(average="none")]
        with pytest.raises(stoker.NoSuchMetric, match=advice):
            fit((X, CLASSES), metrics=chosen, callbacks=[callbacks.EarlyStopping(monitor)], **settings)


def test_early_stopping_compares_by_direction_and_baseline():
    stop = callbacks.EarlyStopping("train/loss", min_delta=0.01, patience=2, direction="min", baseline=0.0)
    assert fit(epochs=9, callbacks=[stop]).epochs == 2
    rising = callbacks.EarlyStopping("train/loss", patience=1, direction="max")
    assert fit(epochs=9, callbacks=[rising]).epochs == 2
    with pytest.raises(stoker.InvalidArgument, match="direction"):
        callbacks.EarlyStopping("valid/bias", direction="zero")


def test_a_callback_can_inherit_from_another():
    class Counting(callbacks.EarlyStopping):
        epochs = 0

        def on_epoch_end(self, ctx):
            super().on_epoch_end(ctx)
            self.epochs += 1

    counting, other = (Counting("train/loss", patience=1, min_delta=1e6) for _ in range(2))
    assert fit(epochs=9, callbacks=[counting]).epochs == counting.epochs == 2
    state = counting.state_dict()
    assert state["waited"] == 1 and state["best"] is not None
    other.load_state_dict(state)
    assert other.state_dict() == state


def test_learning_rates_follow_a_schedule_or_a_plateau():
    rates, cycle = [], schedule.one_cycle(0.1, steps=6)
    fit(lr=cycle, callbacks=[on(train_batch_begin=lambda ctx: rates.append(ctx.lr))])
    assert rates == [cycle(update) for update in range(6)]
    flat = callbacks.ReduceLROnPlateau("train/loss", factor=0.1, patience=1, min_delta=1e6)
    found = fit(epochs=5, metrics=[metrics.LearningRate()], callbacks=[flat])
    assert found.history["lr"] == pytest.approx([1e-2, 1e-2, 1e-2, 1e-3, 1e-3])


def test_csv_writes_a_row_for_each_epoch_also_of_a_continued_fit(tmp_path):
    found = fit(valid=(X, Y), callbacks=[callbacks.CSV(tmp_path / "log.csv")])
    found.continue_(epochs=1, show=False)
    rows = list(csv.DictReader((tmp_path / "log.csv").read_text().splitlines()))
    assert [row["epoch"] for row in rows] == ["1", "2", "3"]
    assert [float(row["valid/loss"]) for row in rows] == found.history["valid/loss"]


@pytest.mark.parametrize("mix", [callbacks.MixUp(0.5), callbacks.CutMix(1.0)], ids=["MixUp", "CutMix"])
def test_mixing_weighs_every_pair_and_leaves_validation_alone(mix):
    """With a plain loss, and with one weight for each pair: not with their mean."""
    images = torch.randn(80, 4, 4, generator=torch.Generator().manual_seed(1))
    differ, validated, trained = [], [], []

    def compare(ctx):
        (other, weight), own = ctx.loss_mix, ctx.batch[1]
        a, b = (F.cross_entropy(ctx.pred, each, reduction="none") for each in (own, other))
        expected = (weight * a + (1 - weight) * b).mean()
        torch.testing.assert_close(ctx.loss, expected)
        differ.append(bool((expected - (weight.mean() * a + (1 - weight.mean()) * b).mean()).abs() > 1e-4))
        trained.append(ctx.batch[0].clone())

    fit(
        (images, CLASSES),
        model=nn.Sequential(nn.Flatten(), nn.Linear(16, 3)),
        loss=nn.CrossEntropyLoss(),
        metrics=[metrics.Accuracy()],
        valid=data.Loader((images, CLASSES), batch_size=80),
        epochs=1,
        batch_size=16,
        callbacks=[
            mix,
            on(train_batch_after_loss=compare, valid_batch_begin=lambda ctx: validated.append(ctx.batch[0])),
        ],
    )
    rows = {tuple(row) for row in images.flatten(1).tolist()}
    assert len(differ) == 5 and any(differ) and torch.equal(validated[0], images)
    assert any(tuple(row) not in rows for batch in trained for row in batch.flatten(1).tolist())
