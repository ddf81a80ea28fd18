"""`of="digit"`: a metric of a named part of the output gives the value that it has for this part alone."""

from collections import namedtuple
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
import torchmetrics
from sklearn.metrics import accuracy_score, mean_absolute_error, recall_score
from torch import nn

import stoker
from stoker import ClassificationOutput, InvalidArgument, WrongType, metrics
from stoker.metrics import MAE, Accuracy, Metric, Precision, Recall, as_metric
from tests.metrics.cases import value

DRAW = torch.Generator().manual_seed(0)
DIGIT, SIZE = torch.randn(12, 4, generator=DRAW), torch.randn(12, generator=DRAW)
DIGITS, SIZES = torch.randint(4, (12,), generator=DRAW), torch.randn(12, generator=DRAW)
LOSS = torch.tensor(0.0)
Pair = namedtuple("Pair", "digit size")


@dataclass
class Both:
    digit: object
    size: object


@dataclass
class Outputs:
    loss: torch.Tensor
    digit: object
    targets: object = None


CONTAINERS = {
    "mapping": lambda digit, size: {"digit": digit, "size": size},
    "namedtuple": Pair,
    "dataclass": Both,
    "namespace": lambda digit, size: SimpleNamespace(digit=digit, size=size),
}


@pytest.mark.parametrize("container", CONTAINERS.values(), ids=CONTAINERS)
def test_a_part_is_compared_with_the_targets_of_its_name(container):
    output = SimpleNamespace(predictions=container(DIGIT, SIZE), targets=container(DIGITS, SIZES))
    chosen = DIGIT.argmax(1)
    assert value(Accuracy(of="digit"), output) == pytest.approx(accuracy_score(DIGITS, chosen))
    assert value(MAE(of="size"), output) == pytest.approx(mean_absolute_error(SIZES, SIZE))
    assert value(Recall("none", of="digit"), output) == pytest.approx(recall_score(DIGITS, chosen, average=None))
    adapted = as_metric(torchmetrics.classification.MulticlassAccuracy(4, average="micro"), of="digit")
    assert value(adapted, output) == pytest.approx(accuracy_score(DIGITS, chosen))
    largest = metrics.of(lambda predictions, targets: predictions.amax(1), name="largest", of="digit")
    assert value(largest, output) == pytest.approx(DIGIT.amax(1).mean().item())


def test_targets_weights_and_masks_without_parts_belong_to_every_part():
    weight = torch.arange(12.0)
    output = SimpleNamespace(predictions={"out": DIGIT, "aux": -DIGIT}, targets=DIGITS, weight=weight)
    for name, logits in output.predictions.items():
        exact = accuracy_score(DIGITS, logits.argmax(1), sample_weight=weight)
        assert value(Accuracy(of=name), output) == pytest.approx(exact)
    output.weight = {"aux": weight}
    assert value(Accuracy(of="out"), output) == pytest.approx(accuracy_score(DIGITS, DIGIT.argmax(1)))


def test_logits_are_the_default_part():
    output = SimpleNamespace(predictions={"hidden": SIZE, "logits": DIGIT}, targets=DIGITS)
    assert value(Accuracy(), output) == value(Accuracy(of="logits"), output)
    binary = SimpleNamespace(predictions={"logits": SIZE / 10 + 0.2}, targets=SIZES > 0)  # no probabilities
    exact = accuracy_score(binary.targets, binary.predictions["logits"] > 0)
    assert value(Accuracy(), binary) == pytest.approx(exact)


def test_a_field_of_the_output_may_be_an_output():
    inner = ClassificationOutput(LOSS, DIGIT, DIGITS)
    for output in (Outputs(LOSS, inner), SimpleNamespace(loss=LOSS, digit=inner)):
        assert value(Accuracy(of="digit"), output) == value(Accuracy(), inner)
    output = Outputs(LOSS, DIGIT, {"digit": DIGITS})  # or the scores, with targets of this name
    assert value(Accuracy(of="digit"), output) == value(Accuracy(), inner)


def test_the_name_of_the_part_begins_the_default_name():
    assert Accuracy(of="digit").name == "digit_accuracy" and Recall("micro", of="digit").name == "digit_recall_micro"
    assert Accuracy(of="digit", name="share").name == "share"
    assert Accuracy(of="digit").replace(of=None).name == "accuracy"
    adapted = as_metric(torchmetrics.classification.BinaryF1Score(), of="even")
    assert adapted.name == "even_binary_f1_score"
    assert as_metric(torchmetrics.classification.BinaryF1Score(), name="f", on="valid").on == "valid"
    assert as_metric(Accuracy(), of="digit") == Accuracy(of="digit")
    with pytest.raises(WrongType, match="as_metric sets of of a Metric or a torchmetrics.Metric, got"):
        as_metric(metrics.Throughput(), of="digit")


def test_a_metric_of_the_user_reads_the_part():
    class Largest(Metric):
        def init(self, device):
            return {"largest": torch.tensor(-torch.inf, device=device)}

        def update(self, state, output):
            return {"largest": torch.maximum(state["largest"], output.predictions.max())}

        def compute(self, state):
            return state["largest"].item()

    class Twice(Largest):
        def update(self, state, output):
            return {"largest": 2 * super().update(state, output)["largest"]}

    output = SimpleNamespace(predictions={"digit": DIGIT, "size": SIZE}, targets=None)
    assert value(Largest(of="size"), output) == SIZE.max().item()
    assert value(Twice(of="size"), output) == 2 * SIZE.max().item()


def test_a_part_that_does_not_exist_is_an_error_that_lists_those_that_do():
    output = SimpleNamespace(predictions={"digit": DIGIT, "size": SIZE}, targets={"size": SIZES})
    with pytest.raises(
        InvalidArgument, match="is of='digits', but the output has no part of this name; its parts are "
    ):
        value(Accuracy(of="digits"), output)
    with pytest.raises(InvalidArgument, match="parts are 'digit', 'size'; did you mean 'digit'"):
        value(Accuracy(of="digits"), output)
    with pytest.raises(InvalidArgument, match="the target has no part of this name; its parts are 'size'"):
        value(Accuracy(of="digit"), output)
    with pytest.raises(InvalidArgument, match="its predictions are a Tensor without names"):
        value(Accuracy(of="digit"), ClassificationOutput(LOSS, DIGIT, DIGITS))
    with pytest.raises(InvalidArgument, match="the target has no part of this name; it is a tuple without names"):
        value(Accuracy(of="digit"), SimpleNamespace(predictions={"digit": DIGIT}, targets=(DIGITS, SIZES)))
    with pytest.raises(WrongType, match="digit_loss needs an output with a loss"):
        value(metrics.Loss(of="digit"), SimpleNamespace(predictions={"digit": DIGIT}, targets=DIGITS))


def test_metrics_of_two_parts_do_not_share_counts():
    class Tasks(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 4), nn.Linear(3, 4)

        def forward(self, x):
            return {"a": self.a(x), "b": self.b(x)}

    def loss(predictions, targets):
        return F.cross_entropy(predictions["a"], targets["a"]) + F.cross_entropy(predictions["b"], targets["b"])

    x = torch.randn(20, 3, generator=DRAW)
    targets = {name: torch.randint(4, (20,), generator=DRAW) for name in "ab"}
    given = [cls(of=part) for cls in (Precision, Recall, Accuracy) for part in "ab"]
    learner = stoker.Learner(Tasks(), loss=loss, metrics=given, lr=0.0, seed=0)
    fitted = learner.fit({"x": x, **targets}, valid={"x": x, **targets}, epochs=1, batch_size=6, show=False)
    found = fitted.evaluate({"x": x, **targets})
    with torch.no_grad():
        scores = fitted.model(x)
    for part in "ab":
        exact = accuracy_score(targets[part], scores[part].argmax(1))
        columns = (f"train/{part}_accuracy", f"valid/{part}_accuracy")
        assert [fitted.history[name][0] for name in columns] == pytest.approx([exact] * 2)
        recall = recall_score(targets[part], scores[part].argmax(1), average="macro")
        assert found[f"{part}_recall_macro"] == pytest.approx(recall)


def test_a_function_weighs_lists_by_their_entries():
    """Targets of a detection: one mapping for each image, with any number of boxes."""
    metric = metrics.of(lambda predictions, targets: torch.tensor(float(len(targets) == 4)), name="large")
    state = metric.init(torch.device("cpu"))
    for boxes in ([5, 1, 1, 1], [2]):
        targets = [{"boxes": torch.ones(count, 4)} for count in boxes]
        state = metric.update(state, SimpleNamespace(loss=torch.zeros(()), predictions=targets, targets=targets))
    assert metric.compute(state) == pytest.approx(4 / 5)
