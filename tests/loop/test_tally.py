"""Adding up what batches gave: exact, whatever the split."""

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from stoker.loop._tally import Tally, samples_in, weight_in
from stoker.metrics import MAE
from stoker.step import RegressionOutput, SupervisedOutput

CPU = torch.device("cpu")


@given(st.lists(st.tuples(st.floats(-1e3, 1e3, width=32), st.integers(1, 50)), min_size=1, max_size=20))
def test_a_loss_is_the_mean_over_samples_and_not_over_batches(batches):
    tally = Tally([], CPU)
    for loss, count in batches:
        tally.add_loss("loss", torch.tensor(loss), count)
    exact = math.fsum(loss * count for loss, count in batches) / sum(count for _, count in batches)
    assert tally.values("train")["train/loss"] == pytest.approx(exact, rel=1e-12, abs=1e-12)


def test_what_weighs_nothing_counts_for_nothing():
    tally = Tally([], CPU)
    tally.add_loss("loss", torch.tensor(2.0), torch.tensor(3.0))
    tally.add_loss("loss", torch.tensor(math.nan), 0)
    assert tally.values("x") == {"x/loss": 2.0}
    tally.clear()
    tally.add_loss("loss", torch.tensor(1.0), 0)
    assert math.isnan(tally.values("x")["x/loss"])


def test_metrics_and_losses_by_name():
    tally = Tally([MAE()], CPU)
    tally.add(RegressionOutput(torch.tensor(1.0), torch.zeros(4, 1), torch.ones(4, 1)))
    tally.add_loss("critic", torch.tensor(0.5), 4)
    assert tally.values("valid") == {"valid/critic": 0.5, "valid/mae": 1.0}
    assert tally.values("valid", losses_only=True) == {"valid/critic": 0.5}


@dataclass
class Batch:
    name: str
    x: Tensor


def test_how_many_samples_a_batch_has():
    x = torch.zeros(5, 2)
    for batch in (x, (x, 3), {"a": {"b": x}}, [("no", x)], Batch("n", x)):
        assert samples_in(batch) == 5
    assert samples_in("text") == samples_in(torch.tensor(1.0)) == 1


def test_what_a_loss_stands_for():
    x = torch.zeros(5, 1)
    assert weight_in(SupervisedOutput(x.sum(), x, x), None) == 5
    assert weight_in(SupervisedOutput(x.sum(), x, x, torch.full((5,), 0.5)), None) == 2.5
    assert weight_in(type("Own", (), {"loss": x.sum()})(), (x,)) == 5
    assert weight_in(type("Own", (), {"loss": x.sum(), "count": 17})(), (x,)) == 17
