"""Running totals of losses and metrics: exact for any split into batches, and resumed to the same bits."""

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torchmetrics import classification, regression, wrappers

from stoker import StateMismatch, metrics
from stoker.engine import RunningTotals
from stoker.engine._batch import count_samples
from stoker.engine._totals import loss_weight
from stoker.metrics import MAE, Accuracy, Metric, as_metric
from stoker.steps import ClassificationOutput, RegressionOutput, SupervisedOutput
from tests.checkpoint.states import write_and_read
from tests.metrics.cases import CASES

CPU = torch.device("cpu")


@given(st.lists(st.tuples(st.floats(-1e3, 1e3, width=32), st.integers(1, 50)), min_size=1, max_size=20))
def test_a_loss_is_the_mean_over_samples_and_not_over_batches(batches):
    totals = RunningTotals([], CPU)
    for loss, count in batches:
        totals.add_loss("loss", torch.tensor(loss), count)
    exact = math.fsum(loss * count for loss, count in batches) / sum(count for _, count in batches)
    assert totals.values("train")["train/loss"] == pytest.approx(exact, rel=1e-12, abs=1e-12)


def test_a_loss_of_weight_zero_does_not_count():
    totals = RunningTotals([], CPU)
    totals.add_loss("loss", torch.tensor(2.0), torch.tensor(3.0))
    totals.add_loss("loss", torch.tensor(math.nan), 0)
    assert totals.values("x") == {"x/loss": 2.0}
    totals.reset()
    totals.add_loss("loss", torch.tensor(1.0), 0)
    assert math.isnan(totals.values("x")["x/loss"])


def test_values_are_named_by_phase_and_metric():
    totals = RunningTotals([MAE()], CPU)
    totals.update(RegressionOutput(torch.tensor(1.0), torch.zeros(4, 1), torch.ones(4, 1)))
    totals.add_loss("critic", torch.tensor(0.5), 4)
    assert totals.values("valid") == {"valid/critic": 0.5, "valid/mae": 1.0}


@dataclass
class Batch:
    name: str
    x: Tensor


def test_the_samples_of_a_batch_are_counted_in_any_structure():
    x = torch.zeros(5, 2)
    for batch in (x, (x, 3), {"a": {"b": x}}, [("no", x)], Batch("n", x)):
        assert count_samples(batch) == 5
    assert count_samples("text") == count_samples(torch.tensor(1.0)) == 1


def test_the_weight_of_a_loss_is_its_number_of_samples_or_their_weights():
    x = torch.zeros(5, 1)
    assert loss_weight(SupervisedOutput(x.sum(), x, x), None) == 5
    assert loss_weight(SupervisedOutput(x.sum(), x, x, torch.full((5,), 0.5)), None) == 2.5
    assert loss_weight(type("Own", (), {"loss": x.sum()})(), (x,)) == 5
    assert loss_weight(type("Own", (), {"loss": x.sum(), "count": 17})(), (x,)) == 17


# --- saved and resumed


def bits(values):
    return {name: value.hex() for name, value in values.items()}


TORCHMETRICS = [
    classification.MulticlassAccuracy(4, average="micro"),
    classification.MulticlassAUROC(4),  # its state is lists
    wrappers.MinMaxMetric(classification.MulticlassAccuracy(4)),
]
CLASSES = next(make for metric, make in CASES if make.__name__ == "classes")
EVERY = [*CASES, *((as_metric(each), CLASSES) for each in TORCHMETRICS)]


@pytest.mark.parametrize(("metric", "make"), EVERY, ids=[f"{metric.name}-{make.__name__}" for metric, make in EVERY])
def test_every_metric_resumes_to_the_same_bits_after_any_batch(metric, make):
    output = make(torch.Generator().manual_seed(0), 24)
    outputs = [output(slice(start, start + 4)) for start in range(0, 24, 4)]
    whole = RunningTotals([metric], CPU)
    for place in range(len(outputs) + 1):
        whole.reset()
        part = RunningTotals([metric], CPU)
        for number, each in enumerate(outputs):
            if number == place:
                part = resumed(part, metric)
            for totals in (whole, part):
                totals.update(each)
                totals.add_loss("loss", each.loss + 0.1, 4)
                totals.samples += 4
        part = resumed(part, metric) if place == len(outputs) else part
        assert bits(part.values("train")) == bits(whole.values("train"))
        assert part.samples == whole.samples == 24


def resumed(totals, *metrics):
    state, other = write_and_read(totals.state_dict()), RunningTotals(metrics, CPU)
    other.load_state_dict(state)
    return other


@given(st.lists(st.tuples(st.floats(-1e3, 1e3, width=32), st.integers(0, 50)), max_size=12), st.integers(0, 12))
def test_losses_resume_to_the_same_bits(batches, place):
    whole, part = RunningTotals([], CPU), RunningTotals([], CPU)
    for number, (loss, count) in enumerate([*batches, (0.1, 3)]):
        part = resumed(part) if number == place else part
        for totals in (whole, part):
            totals.add_loss("a" if count % 2 else "b", torch.tensor(loss), count)
    assert bits(part.values("x")) == bits(whole.values("x"))


def test_a_saved_state_does_not_change_afterwards():
    totals = RunningTotals([MAE()], CPU)
    output = RegressionOutput(torch.tensor(1.0), torch.zeros(4, 1), torch.ones(4, 1))
    totals.update(output)
    totals.add_loss("loss", torch.tensor(1.0), 4)
    state = totals.state_dict()
    totals.update(RegressionOutput(torch.tensor(1.0), torch.zeros(4, 1), torch.full((4, 1), 9.0)))
    totals.add_loss("loss", torch.tensor(9.0), 4)
    totals.add_loss("other", torch.tensor(9.0), 4)
    other = RunningTotals([MAE()], CPU)
    other.load_state_dict(state)
    assert other.values("x") == {"x/loss": 1.0, "x/mae": 1.0}
    state["sums"]["loss"] = 0.0
    assert other.values("x")["x/loss"] == 1.0


class HoldsASet(Metric):
    def init(self, device):
        return {"count": torch.zeros(()), "seen": [{1, 2}]}


class Nested(Metric):
    """Its state is nested and has plain values."""

    def init(self, device):
        return ([torch.zeros(2)], {"names": ("a", 1, None)})

    def compute(self, state):
        return float(state[0][0].sum() + state[1]["names"][1])


def test_a_metric_that_cannot_be_saved_is_named():
    with pytest.raises(StateMismatch, match="the metric 'odd' keeps a set in its state, which can't be saved"):
        RunningTotals([MAE(), HoldsASet(name="odd")], CPU).state_dict()
    assert resumed(RunningTotals([Nested()], CPU), Nested()).values("x") == {"x/nested": 1.0}


def test_states_that_do_not_match_are_refused_and_change_nothing():
    state, totals = RunningTotals([MAE(), Accuracy()], CPU).state_dict(), RunningTotals([MAE(name="error")], CPU)
    totals.add_loss("loss", torch.tensor(1.0), 4)
    with pytest.raises(StateMismatch, match="the saved metrics do not match: expected error; got mae, accuracy"):
        totals.load_state_dict(state)
    with pytest.raises(
        StateMismatch, match="the saved running totals do not match: expected metrics, on_host, samples, sums, weights"
    ):
        totals.load_state_dict({"sums": {}})
    assert totals.values("x")["x/loss"] == 1.0


@pytest.mark.cuda
def test_on_a_gpu_states_are_restored_to_their_devices():
    device, metrics = torch.device("cuda"), [MAE(), as_metric(regression.MeanAbsoluteError())]
    output = RegressionOutput(torch.tensor(1.0).cuda(), torch.zeros(4, 1).cuda(), torch.ones(4, 1).cuda())
    whole, part = RunningTotals(metrics, device), RunningTotals(metrics, device)
    for totals in (whole, part):
        totals.update(output)
        totals.add_loss("loss", output.loss, torch.tensor(4).cuda())
    other = RunningTotals(metrics, device)
    other.load_state_dict(write_and_read(part.state_dict()))
    places = [{name: each.device for name, each in state.items()} for state in part._states]
    assert [{name: each.device for name, each in state.items()} for state in other._states] == places
    for totals in (whole, other):
        totals.update(output)
        totals.add_loss("loss", output.loss, torch.tensor(4).cuda())
    assert bits(other.values("x")) == bits(whole.values("x"))


class Counted(metrics.Recall):
    """Counts every batch twice."""

    def update(self, state, output):
        return super().update(super().update(state, output), output)


def test_metrics_with_equal_counts_are_updated_once(monkeypatch):
    several = [
        metrics.Precision(),
        metrics.Recall("micro"),
        metrics.FBeta(2.0),
        metrics.Precision(ignore=1, name="other"),
        Counted("none"),
        metrics.Accuracy(),
    ]
    outputs = [
        ClassificationOutput(torch.tensor(0.1), logits=torch.randn(8, 3), targets=torch.randint(0, 3, (8,)))
        for _ in range(3)
    ]
    calls, inner = [], metrics.Precision.update
    for kind in (metrics.Precision, metrics.Recall, metrics.FBeta):
        monkeypatch.setattr(kind, "update", lambda *arguments: calls.append(0) or inner(*arguments))
    together = RunningTotals(several, torch.device("cpu"))
    for _ in range(2):
        calls.clear()
        for output in outputs:
            together.update(output)
        assert len(calls) == 3 * (1 + 1 + 2)
        alone = {}
        for metric in several:
            totals = RunningTotals([metric], torch.device("cpu"))
            for output in outputs:
                totals.update(output)
            alone |= totals.values("train")
        assert together.values("train") == alone
        again = RunningTotals(several, torch.device("cpu"))
        again.load_state_dict(together.state_dict())
        together.update(outputs[0])
        again.update(outputs[0])
        assert again.values("train") == together.values("train")
        together.reset()
