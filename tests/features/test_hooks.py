"""Callbacks: when they run, what they may read and change, and the ones that come with stoker."""

import pytest
import torch
from torch import nn

import stoker
from stoker import callbacks, metrics, optim
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


def test_a_callback_logs_numbers_and_reads_earlier_epochs():
    seen = []

    def log(ctx):
        ctx.log("temperature", 30 + ctx.epoch)
        seen.append(len(ctx.history["train/loss"]))

    found = fit(callbacks=[on(epoch_end=log)])
    assert found.history["temperature"] == [31.0, 32.0] and seen == [1, 2]
    with pytest.raises(AttributeError):
        found.history = {}


@pytest.mark.parametrize("phase", ["train", "valid"])
def test_prediction_and_loss_are_writable(phase):
    def perfect(ctx):
        with torch.enable_grad():
            ctx.pred = ctx.batch[1] + 0 * ctx.model.head.bias.sum()

    def shift(ctx):
        with torch.enable_grad():
            ctx.loss = ctx.loss + 2

    hooks = on(**{f"{phase}_batch_after_pred": perfect, f"{phase}_batch_after_loss": shift})
    found = fit(valid=(X, Y), epochs=1, lr=0.0, metrics=[metrics.MAE()], callbacks=[hooks])
    assert found.history[f"{phase}/loss"] == [2.0] and found.history[f"{phase}/mae"] == [0.0]


def test_gradients_can_be_replaced():
    model = Net()
    start = model.head.weight.detach().clone()

    def signs(ctx):
        ctx.grads = ctx.grads.map(lambda name, tensor: tensor.sign())

    settings = {"optimizer": optim.SGD(), "lr": 0.25, "epochs": 1, "batch_size": 80}
    fit(model=model, callbacks=[on(train_batch_after_backward=signs)], **settings)
    torch.testing.assert_close((model.head.weight - start).abs(), torch.full((1, 8), 0.25))


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


@pytest.mark.parametrize("phase", ["train", "valid"])
def test_an_error_in_a_metric_says_which_and_where(phase):
    def broken(predictions, targets):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        fit(valid=(X, Y), metrics=[metrics.of(broken, name="my_metric").replace(on=phase)])
    note = "".join(caught.value.__notes__)
    assert "my_metric" in note and phase in note and "batch 1" in note
    assert ("epoch 1" if phase == "train" else "before the first update") in note


# --- the ones that come with stoker


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
