"""The numbers are those of the samples: losses and metrics, whatever the batches; gradients, whatever the windows."""

import math

import pytest
import torch
import torch.nn.functional as F
import torchmetrics
from sklearn.metrics import roc_auc_score
from torch import nn

import stoker
from stoker import callbacks, data, metrics, optim, schedule
from tests.features.models import CLASSES, TOKENS, YES, Tagger, X, Y, fit, learner, linear

WEIGHTED_LOSSES = {
    "ignore_index": nn.CrossEntropyLoss(ignore_index=0),
    "class weights": nn.CrossEntropyLoss(weight=torch.tensor([0.1, 1.0, 5.0])),
    "class weights, smoothed labels, ignore_index": nn.CrossEntropyLoss(
        weight=torch.tensor([0.1, 1.0, 5.0]), label_smoothing=0.2, ignore_index=1
    ),
}


def classify(source=(X, CLASSES), **settings):
    return fit(source, **{"model": linear(3), "loss": nn.CrossEntropyLoss(), **settings})


# --- losses and metrics


@pytest.mark.parametrize("size", [80, 24, 7, 1])
def test_losses_and_metrics_are_means_over_samples_whatever_the_batch_size(size):
    model = linear()
    found = fit(model=model, lr=0.0, metrics=[metrics.MSE()], valid=(X, Y), epochs=1, batch_size=size)
    expected = F.mse_loss(model(X), Y).item()
    for name in ("train/loss", "valid/loss", "train/mse", "valid/mse"):
        assert found.history[name] == [pytest.approx(expected, rel=1e-5)]
    assert found.evaluate((X, Y), batch_size=size)["loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("size", [80, 16, 5])
def test_tokens_count_and_padding_does_not(size):
    model, chosen = Tagger(), [metrics.Accuracy(), metrics.Perplexity()]
    found = fit((TOKENS,), model=model, loss=None, lr=0.0, metrics=chosen, valid=(TOKENS,), epochs=1, batch_size=size)
    logits, real = model(TOKENS).detach(), TOKENS != 0
    loss = F.cross_entropy(logits[real], TOKENS[real]).item()
    accuracy = (logits.argmax(-1) == TOKENS)[real].float().mean().item()
    for phase in ("train", "valid"):
        assert found.history[f"{phase}/loss"] == [pytest.approx(loss, rel=1e-5)]
        assert found.history[f"{phase}/perplexity"] == [pytest.approx(math.exp(loss), rel=1e-5)]
        assert found.history[f"{phase}/accuracy"] == [pytest.approx(accuracy)]


@pytest.mark.parametrize("loss", WEIGHTED_LOSSES.values(), ids=WEIGHTED_LOSSES)
@pytest.mark.parametrize("size", [16, 5])
def test_a_loss_that_ignores_or_weighs_classes_is_averaged_by_its_own_weights(loss, size):
    model = linear(3)
    found = classify(model=model, loss=loss, lr=0.0, valid=(X, CLASSES), epochs=1, batch_size=size)
    for name in ("train/loss", "valid/loss"):
        assert found.history[name] == [pytest.approx(loss(model(X), CLASSES).item(), rel=1e-5)]


@pytest.mark.parametrize("loss", WEIGHTED_LOSSES.values(), ids=WEIGHTED_LOSSES)
@pytest.mark.parametrize("has_weights", [False, True])
def test_class_and_sample_weights_give_the_gradient_of_the_whole_batch(loss, has_weights):
    model, before = linear(3), linear(3)
    weights = torch.rand(80, generator=torch.Generator().manual_seed(0)) if has_weights else torch.ones(80)
    source = {"input": X, "classes": CLASSES, "weight": weights} if has_weights else (X, CLASSES)
    fit(
        data.Loader(source, batch_size=7),
        model=model,
        loss=loss,
        optimizer=optim.SGD(),
        lr=1.0,
        accumulate=12,
        epochs=1,
    )
    options = {"label_smoothing": loss.label_smoothing, "ignore_index": loss.ignore_index, "weight": loss.weight}
    each = F.cross_entropy(before(X), CLASSES, **options, reduction="none")
    counted = (torch.ones(3) if loss.weight is None else loss.weight)[CLASSES] * (loss.ignore_index != CLASSES)
    slope = stoker.backward((each * weights).sum() / (counted * weights).sum(), before)["weight"]
    torch.testing.assert_close(model.weight, before.weight - slope)


def test_binary_metrics_take_logits_or_probabilities():
    chosen = [metrics.Accuracy(), metrics.Accuracy(threshold=1.0, name="strict"), metrics.AUROC()]
    found = fit((X, YES), loss=nn.BCEWithLogitsLoss(), metrics=chosen)
    logits, scores = found.predict(X), found.evaluate((X, YES))
    assert scores["accuracy"] == pytest.approx(((logits > 0) == (YES > 0.5)).float().mean().item())
    assert scores["strict"] == pytest.approx(((logits > 1) == (YES > 0.5)).float().mean().item())
    assert scores["auroc"] == pytest.approx(roc_auc_score(YES, logits))

    model = nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())
    chosen = [metrics.Accuracy(threshold=0.5), metrics.AUROC(bins=200, probabilities=True)]
    found = fit((X, YES), model=model, loss=nn.BCELoss(), metrics=chosen)
    probabilities, scores = found.predict(X), found.evaluate((X, YES))
    assert scores["accuracy"] == pytest.approx(((probabilities > 0.5) == (YES > 0.5)).float().mean().item())
    assert scores["auroc"] == pytest.approx(roc_auc_score(YES, probabilities), abs=0.01)


def test_a_metric_of_your_own_is_a_class_a_function_or_from_torchmetrics():
    class Bias(metrics.Metric):
        def init(self, device):
            return {"sum": torch.zeros((), device=device), "count": torch.zeros((), device=device)}

        def update(self, state, output):
            error = output.predictions - output.targets
            return {"sum": state["sum"] + error.sum(), "count": state["count"] + error.numel()}

        def compute(self, state):
            return {"signed": (state["sum"] / state["count"]).item(), "count": state["count"].item()}

    def close(predictions, targets):
        return ((predictions - targets).abs() < 1).float()

    found = fit(metrics=[Bias(), metrics.of(close, direction="max"), torchmetrics.MeanAbsoluteError()], valid=(X, Y))
    scores = found.evaluate((X, Y))
    assert set(scores) == {"loss", "bias/signed", "bias/count", "close", "mean_absolute_error"}
    assert scores["bias/count"] == 80 and found.record.direction("valid/close") == "max"
    assert scores["mean_absolute_error"] == pytest.approx((found.predict(X) - Y).abs().mean().item(), rel=1e-5)


def test_a_metric_can_be_for_one_phase_only():
    found = fit(valid=(X, Y), metrics=[metrics.MAE(on="train"), metrics.RMSE(on="valid"), metrics.MSE()])
    columns = set(found.history.columns)
    assert columns == {"train/loss", "train/mae", "train/mse", "valid/loss", "valid/rmse", "valid/mse"}
    assert set(fit().history.columns) == {"train/loss"}


def test_validation_sets_do_not_mix(tmp_path):
    sets = {"near": (X[:40], CLASSES[:40]), "far": (X[40:], CLASSES[40:])}
    chosen = [metrics.AUROC(), metrics.Accuracy()]
    found = learner(linear(3), loss=nn.CrossEntropyLoss(), metrics=chosen).fit(
        (X, CLASSES), valid=sets, epochs=1, keep="last", run=tmp_path / "run", show=False
    )
    for name, each in sets.items():
        for metric, value in found.evaluate(each).items():
            assert found.history[f"{name}/{metric}"] == [pytest.approx(value, rel=1e-6)]
    for record in (found.record, stoker.Record.open(tmp_path / "run")):
        assert {"train/loss", "near/loss", "far/loss"} <= set(record.summary()["last"])


def test_meters_give_numbers():
    chosen = [metrics.MemoryUse(), metrics.CPUUse(), metrics.Throughput(), metrics.LearningRate()]
    found = fit(metrics=[*chosen, metrics.GradientNorm()])
    meters = [name for name in found.history.columns if "/loss" not in name]
    assert len(meters) >= 5 and all(isinstance(value, float) for name in meters for value in found.history[name])


# --- gradients of accumulation windows


@pytest.mark.parametrize("kind", ["tokens", *WEIGHTED_LOSSES])
def test_a_window_weighs_what_the_loss_weighs(kind):
    weights = []
    for size, accumulate in ((80, 1), (8, 10)):
        model = Tagger() if kind == "tokens" else linear(3)
        source = (TOKENS,) if kind == "tokens" else (X, CLASSES)
        settings = {"loss": WEIGHTED_LOSSES.get(kind), "optimizer": optim.SGD(), "lr": 0.5, "accumulate": accumulate}
        fit(data.Loader(source, batch_size=size), model=model, **settings)
        weights.append(next(reversed(list(model.parameters()))))
    torch.testing.assert_close(weights[1], weights[0], rtol=1e-5, atol=1e-6)


def test_schedules_count_updates_and_not_batches():
    rates = []
    note = callbacks.on(update=lambda ctx: rates.append(ctx.lr))
    line = schedule.linear(1e-2, 0.0, steps=8)
    fit(lr=line, accumulate=3, epochs=4, batch_size=16, callbacks=[note])
    assert rates == [line(update) for update in range(8)]


def test_a_float_is_a_constant_schedule_and_may_be_above_1():
    number, constant = (fit(lr=lr).history.to_dict() for lr in (1e-2, schedule.constant(1e-2)))
    assert number == constant and "lr" not in optim.Adam().to_dict()
    model, before = linear(), linear()
    fit(data.Loader((X, Y), batch_size=80), model=model, optimizer=optim.SGD(), lr=3.0, epochs=1)
    slope = stoker.backward(F.mse_loss(before(X), Y), before)["weight"]
    torch.testing.assert_close(model.weight, before.weight - 3.0 * slope)
