import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from stoker import WrongType
from stoker.metrics import Loss
from stoker.steps import SequenceOutput, SupervisedOutput
from tests.metrics.cases import value


def test_samples_weigh_and_not_batches():
    predictions, targets = torch.randn(10, 2), torch.randn(10, 2)
    parts = [slice(0, 7), slice(7, 10)]
    outputs = [
        SupervisedOutput(F.mse_loss(predictions[each], targets[each]), predictions[each], targets[each])
        for each in parts
    ]
    assert value(Loss(), *outputs) == pytest.approx(F.mse_loss(predictions, targets).item(), rel=1e-6)


def test_a_batch_that_stands_for_nothing_changes_nothing():
    good = SupervisedOutput(torch.tensor(2.0), torch.zeros(3), torch.zeros(3))
    empty = SupervisedOutput(torch.tensor(math.nan), torch.zeros(0), torch.zeros(0))
    tokens = torch.zeros(2, 3, dtype=torch.long)
    masked = SequenceOutput(torch.tensor(math.nan), torch.zeros(2, 3, 4), tokens, tokens > 0)
    assert value(Loss(), masked, good, empty) == 2.0
    assert math.isnan(value(Loss(), masked))


def test_a_loss_that_is_nan_shows():
    nan = SupervisedOutput(torch.tensor(math.nan), torch.zeros(3), torch.zeros(3))
    assert math.isnan(value(Loss(), nan, SupervisedOutput(torch.tensor(2.0), torch.zeros(3), torch.zeros(3))))


def test_millions_of_batches_lose_nothing():
    state, metric = Loss().init(torch.device("cpu")), Loss()
    state = {"sum": state["sum"] + 1e9, "count": state["count"] + 1e10}
    after = metric.update(state, SimpleNamespace(loss=torch.tensor(1e-3)))
    assert (after["sum"] - state["sum"]).item() == pytest.approx(1e-3, rel=1e-3)


def test_an_output_without_a_loss_is_refused():
    with pytest.raises(WrongType, match="loss needs a loss; SimpleNamespace has none that is a tensor"):
        value(Loss(), SimpleNamespace(loss=0.5))
