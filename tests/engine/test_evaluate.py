"""Judging a fitted model: exact numbers, and nothing left behind."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stoker
from stoker import metrics
from tests.engine.fits import Net, copied, learner, line, linear, same, samples


@pytest.fixture(scope="module")
def fitted():
    return learner(metrics=[metrics.Accuracy()]).fit(samples(), valid=samples(), epochs=3, batch_size=16, show=False)


def test_the_loss_and_the_metrics_by_name(fitted):
    x, y = samples()
    view = stoker.valid(fitted.model)
    for batch_size in (1, 7, None, 150):
        scores = fitted.evaluate((x, y), batch_size=batch_size)
        assert list(scores) == ["loss", "accuracy"]
        with torch.no_grad():
            assert scores["loss"] == pytest.approx(F.cross_entropy(view(x), y).item(), rel=1e-5)
            assert scores["accuracy"] == pytest.approx((view(x).argmax(1) == y).double().mean().item())


def test_other_metrics_for_this_once_leave_nothing_behind(fitted):
    before, events, state = copied(fitted.model), fitted.record.events, torch.get_rng_state()
    first = fitted.evaluate(samples())
    other = fitted.evaluate(
        samples(), metrics=[metrics.Accuracy(name="top1"), metrics.of(lambda p, t: p.sum(1), name="size")]
    )
    assert set(other) > {"loss", "top1"} and "accuracy" not in other
    assert fitted.evaluate(samples()) == first
    assert fitted.record.events == events and same(fitted.model, before)
    assert torch.equal(torch.get_rng_state(), state)
    assert fitted.model.training and fitted.best == fitted.best


def test_a_loader_a_dataloader_and_a_data_set_give_the_same(fitted):
    x, y = samples()
    dataset = torch.utils.data.TensorDataset(x, y)
    sources = [(x, y), {"x": x, "y": y}, dataset, torch.utils.data.DataLoader(dataset, batch_size=9)]
    sources.append(stoker.data.Loader((x, y), batch_size=11))
    found = [fitted.evaluate(source) for source in sources]
    assert all(each == pytest.approx(found[0], rel=1e-6) for each in found)


def test_weights_go_through_the_loss_and_the_metrics():
    x, y = line(20)
    weight = torch.linspace(0, 2, 20)
    result = linear(metrics=[metrics.MAE()]).fit((x, y), epochs=1, show=False)
    scores = result.evaluate({"input": x, "y": y, "weight": weight}, batch_size=6)
    error = (stoker.valid(result.model)(x) - y).detach().squeeze(1).double()
    assert scores["loss"] == pytest.approx(((error**2) * weight).sum().item() / weight.sum().item(), rel=1e-5)
    assert scores["mae"] == pytest.approx((error.abs() * weight).sum().item() / weight.sum().item(), rel=1e-5)


def test_a_metric_that_the_output_can_t_feed_says_so():
    class Own(Net):
        def train_step(self, batch):
            x, y = batch
            return type("Out", (), {"loss": F.cross_entropy(self(x), y)})()

    with pytest.raises(stoker.WrongType, match="accuracy") as caught:
        learner(Own, loss=None, metrics=[metrics.Accuracy()]).fit(samples(), epochs=1, show=False)
    assert "in the metric 'accuracy', train, epoch 1, batch 1" in caught.value.__notes__


def test_a_target_that_is_missing_is_an_error():
    result = linear().fit(line(), epochs=1, show=False)
    with pytest.raises(stoker.BadData, match="the batch has no target for the loss"):
        result.evaluate(line()[0])


def test_a_model_with_its_own_step_can_be_evaluated():
    class Own(nn.Linear):
        def train_step(self, batch):
            return F.mse_loss(self(batch[0]), batch[1])

    result = linear(model=Own(3, 1), loss=None).fit(line(), epochs=1, show=False)
    x, y = line()
    assert result.evaluate((x, y)) == {"loss": pytest.approx(F.mse_loss(result.model(x), y).item(), rel=1e-5)}
