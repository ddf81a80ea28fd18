"""`Fitted.evaluate` gives exact numbers, `Fitted.predict` gives ordered predictions; neither changes the fit."""

from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import stoker
from stoker import metrics
from tests.learner.fits import Net, copy_state, learner, line, linear, same, samples


@pytest.fixture(scope="module")
def fitted():
    return learner(metrics=[metrics.Accuracy()]).fit(samples(), valid=samples(), epochs=3, batch_size=16, show=False)


class OwnStep(nn.Linear):
    """A model with a `train_step`, which needs no loss function."""

    def train_step(self, batch):
        return F.mse_loss(self(batch[0]), batch[1])


# --- evaluate


def test_evaluate_returns_the_loss_and_the_metrics_for_any_batch_size(fitted):
    x, y = samples()
    view = stoker.valid(fitted.model)
    for batch_size in (1, 7, None, 150):
        scores = fitted.evaluate((x, y), batch_size=batch_size)
        assert list(scores) == ["loss", "accuracy"]
        with torch.no_grad():
            assert scores["loss"] == pytest.approx(F.cross_entropy(view(x), y).item(), rel=1e-5)
            assert scores["accuracy"] == pytest.approx((view(x).argmax(1) == y).double().mean().item())


def test_evaluating_with_other_metrics_changes_nothing(fitted):
    before, events, state = copy_state(fitted.model), fitted.record.events, torch.get_rng_state()
    first = fitted.evaluate(samples())
    other = fitted.evaluate(
        samples(), metrics=[metrics.Accuracy(name="top1"), metrics.of(lambda p, t: p.sum(1), name="size")]
    )
    assert set(other) > {"loss", "top1"} and "accuracy" not in other
    assert fitted.evaluate(samples()) == first
    assert fitted.record.events == events and same(fitted.model, before)
    assert torch.equal(torch.get_rng_state(), state)
    assert not fitted.model.training


def test_sample_weights_apply_to_the_loss_and_the_metrics():
    x, y = line(20)
    weight = torch.linspace(0, 2, 20)
    result = linear(metrics=[metrics.MAE()]).fit((x, y), epochs=1, show=False)
    scores = result.evaluate({"input": x, "y": y, "weight": weight}, batch_size=6)
    error = (stoker.valid(result.model)(x) - y).detach().squeeze(1).double()
    assert scores["loss"] == pytest.approx(((error**2) * weight).sum().item() / weight.sum().item(), rel=1e-5)
    assert scores["mae"] == pytest.approx((error.abs() * weight).sum().item() / weight.sum().item(), rel=1e-5)


def test_a_metric_that_the_output_does_not_fit_is_named():
    class WithoutLogits(Net):
        def train_step(self, batch):
            x, y = batch
            return type("Out", (), {"loss": F.cross_entropy(self(x), y)})()

    with pytest.raises(stoker.WrongType, match="accuracy") as caught:
        learner(WithoutLogits, loss=None, metrics=[metrics.Accuracy()]).fit(samples(), epochs=1, show=False)
    assert "in the metric 'accuracy', train, epoch 1, batch 1" in caught.value.__notes__


def test_a_missing_target_is_an_error():
    result = linear().fit(line(), epochs=1, show=False)
    with pytest.raises(stoker.BadData, match="the batch has no target for the loss"):
        result.evaluate(line()[0])


def test_a_model_with_its_own_step_is_evaluated_with_it():
    result = linear(model=OwnStep(3, 1), loss=None).fit(line(), epochs=1, show=False)
    x, y = line()
    assert result.evaluate((x, y)) == {"loss": pytest.approx(F.mse_loss(result.model(x), y).item(), rel=1e-5)}


# --- predict


def test_predictions_are_in_order_on_the_cpu_and_without_dropout(fitted):
    x, y = samples()
    with torch.no_grad():
        exact = stoker.valid(fitted.model)(x)
    for source in ((x, y), x, (x,), {"x": x, "y": y}, {"x": x}, TensorDataset(x, y)):
        found = fitted.predict(source, batch_size=13)
        torch.testing.assert_close(found, exact)
        assert found.device.type == "cpu" and not found.requires_grad
    assert torch.equal(fitted.predict(x), fitted.predict(x))
    assert not fitted.model.training


class Point(NamedTuple):
    mean: torch.Tensor
    parts: dict


def test_predictions_have_the_structure_of_the_models_output():
    class Several(nn.Linear):
        def forward(self, x):
            y = super().forward(x)
            names = [f"{float(each):.3f}" for each in y.detach()]
            return Point(y, {"pair": (y, [y + 1]), "names": names})

    def loss(predictions, targets):
        return (predictions.mean - targets).square().mean()

    x, y = line(10)
    result = linear(model=Several(3, 1), loss=loss).fit((x, y), epochs=1, show=False)
    found = result.predict((x, y), batch_size=4)
    assert isinstance(found, Point) and found.mean.shape == (10, 1)
    assert isinstance(found.parts["pair"], tuple) and isinstance(found.parts["pair"][1], list)
    assert torch.equal(found.parts["pair"][1][0], found.mean + 1)
    assert found.parts["names"] == [f"{float(each):.3f}" for each in found.mean]


def test_a_model_with_several_inputs_predicts_with_and_without_a_target():
    class TwoInputs(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 1)

        def forward(self, a, b):
            return self.layer(a) + b

    x, y = line()
    result = linear(model=TwoInputs()).fit((x, y, y), epochs=1, show=False)
    exact = result.model(x, y).detach()
    for source in ((x, y, y), (x, y), {"b": y, "a": x}, {"a": x, "b": y, "target": y}):
        torch.testing.assert_close(result.predict(source), exact)


def test_a_model_with_its_own_train_step_predicts_with_its_forward():
    result = linear(model=OwnStep(3, 1), loss=None).fit(line(), epochs=1, show=False)
    assert torch.equal(result.predict(line()), result.model(line()[0]).detach())


def test_predictions_are_float32_whatever_the_precision_of_the_fit():
    assert linear(precision="bf16").fit(line(), epochs=1, show=False).predict(line()).dtype == torch.float32


def test_data_without_batches_is_an_error():
    class Empty(IterableDataset):
        def __iter__(self):
            return iter(())

    result = linear().fit(line(), epochs=1, show=False)
    with pytest.raises(stoker.BadData, match="there is nothing to predict: the data gave no batches"):
        result.predict(DataLoader(Empty()))
