"""The supervised default: batches are split, predictions scored."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from stoker import BadData, InvalidArgument
from stoker.steps import Supervised, SupervisedOutput


class Two(nn.Module):
    def forward(self, a, b, *, scale=1.0):
        return (a + b) * scale


class Optional(nn.Module):
    def forward(self, x, mask=None):
        return x


x, y, z, w = torch.ones(4, 2), torch.zeros(4, 2), torch.full((4, 2), 2.0), torch.arange(4.0)


def test_a_tuple_is_inputs_and_a_target():
    step = Supervised(nn.Linear(2, 2), F.mse_loss)
    for batch in ((x, y), [x, y]):
        parts = step.parts(batch)
        assert parts.args == (x,) and parts.targets is y and not parts.kwargs and parts.weight is None
    parts = Supervised(Two(), F.mse_loss).parts((x, y, z))
    assert parts.args == (x, y) and parts.targets is z


def test_inputs_alone_have_no_target():
    step = Supervised(nn.Linear(2, 2), F.mse_loss)
    for batch in (x, (x,), [x]):
        parts = step.parts(batch)
        assert parts.args == (x,) and parts.targets is None


def test_a_mapping_is_matched_with_the_arguments_of_forward():
    step = Supervised(Two(), F.mse_loss)
    parts = step.parts({"target": z, "b": y, "a": x})
    assert parts.kwargs == {"a": x, "b": y} and parts.targets is z
    assert step.parts({"a": x, "b": y, "scale": 3.0, "t": z}).kwargs["scale"] == 3.0
    several = step.parts({"a": x, "b": y, "left": z, "right": x})
    assert list(several.targets) == ["left", "right"]
    assert step.parts({"a": x, "b": y}).targets is None


def test_weight_is_the_sample_weight_unless_it_is_an_argument_of_forward():
    class Weighing(nn.Module):
        def forward(self, a, weight):
            return a * weight

    weight = torch.ones(4)
    parts = Supervised(Optional(), F.mse_loss).parts({"x": x, "y": y, "weight": weight})
    assert parts.weight is weight and parts.targets is y
    parts = Supervised(Weighing(), F.mse_loss).parts({"a": x, "weight": weight, "y": y})
    assert parts.weight is None and parts.kwargs["weight"] is weight


class Labelled(nn.Module):
    """As models of Transformers: they take the labels to compute a loss of their own."""

    def forward(self, x, mask=None, labels=None):
        return x


class Wrapped(nn.Module):
    def forward(self, *args, **kwargs):
        return kwargs["x"]


@pytest.mark.parametrize("model", [Labelled(), Wrapped()])
def test_labels_that_forward_takes_too_are_the_target_of_a_loss_function(model):
    batch = {"x": x, "mask": z, "labels": y}
    step = Supervised(model, F.mse_loss)
    for given, weight in ((batch, None), (batch | {"weight": w}, w)):
        parts = step.parts(given)
        assert parts.kwargs == {"x": x, "mask": z} and parts.targets is y and parts.weight is weight
    assert step.inputs({"x": x}).kwargs == {"x": x}
    parts = Supervised(Labelled(), F.mse_loss).parts({"x": x, "labels": z, "score": y})
    assert parts.kwargs == {"x": x, "labels": z} and parts.targets is y  # another column is the target


def test_a_prediction_ignores_the_target():
    one, two = Supervised(nn.Linear(2, 2), None), Supervised(Two(), None)
    assert one.inputs((x, y)).args == (x,)
    assert two.inputs((x, y)).args == (x, y) and two.inputs((x, y, z)).args == (x, y)
    assert one.inputs(x).args == (x,)


def test_a_prediction_has_the_inputs_of_the_batches_before_or_is_ambiguous():
    step = Supervised(Optional(), None)
    with pytest.raises(BadData, match=r"not clear which of the 2 parts.*forward\(x, mask\) may take all.*exactly the"):
        step.inputs((x, y))
    step.parts((x, y, z))
    assert step.inputs((x, y)).args == (x, y) and step.inputs((x, y, z)).args == (x, y)
    for batch in (x, (x, y, z, x)):
        with pytest.raises(BadData, match="the batches of the fit had 2 inputs and a target"):
            step.inputs(batch)
    with pytest.raises(BadData, match="a batch has 1 input and a target, but those before had 2 inputs and a target"):
        step.parts((x, y))


def test_columns_can_be_named_by_key_or_place():
    def split(batch, model=Two, **names):
        step = Supervised(model(), None, **names)
        return step.parts(batch), step.inputs(batch)

    table = {"left": x, "right": y, "label": z, "id": w, "w": w}
    for parts in split(table, inputs=["right", "left"], target="label", weight="w"):
        assert parts.args == (y, x) and parts.kwargs == {} and parts.targets is z and parts.weight is w
    for parts in split((z, x, y, w), inputs=(1, 2), target=0, weight=-1):
        assert parts.args == (x, y) and parts.targets is z and parts.weight is w
    for parts in split((z, x, y), target=0):
        assert parts.args == (x, y) and parts.targets is z
    for parts in split({"a": x, "b": y, "t": z, "u": w}, target=["t", "u"]):
        assert parts.kwargs == {"a": x, "b": y} and parts.targets == {"t": z, "u": w}
    full, bare = split((x, y, z, w), weight=3)
    assert full.args == bare.args == (x, y) and full.targets is z and full.weight is w
    step = Supervised(Two(), None, inputs=("left", "right"), target="label")
    assert step.inputs({"left": x, "right": y}).args == (x, y)
    with pytest.raises(BadData, match=r"no column 'label', which the Learner names; its columns are \['left', 'right'"):
        step.parts({"left": x, "right": y})


@pytest.mark.parametrize("wrap", [lambda model: torch.compile(model, backend="eager"), nn.DataParallel])
def test_arguments_are_those_of_the_module_inside_a_wrapper(wrap):
    if wrap is nn.DataParallel and torch.cuda.is_available():
        wrap = lambda model: nn.DataParallel(model, device_ids=[])  # noqa: E731
    parts = Supervised(wrap(Two()), F.mse_loss).parts({"b": y, "a": x, "t": z})
    assert set(parts.kwargs) == {"a", "b"}


def test_an_output_has_what_metrics_need():
    step = Supervised(nn.Linear(2, 2), F.mse_loss)
    output = step.score(x, step.parts((x, y)))
    assert isinstance(output, SupervisedOutput)
    assert output.loss == 1 and output.predictions is x and output.targets is y and output.count is None


def test_the_output_of_a_cross_entropy_has_what_it_is_a_mean_over():
    logits, targets = torch.randn(4, 3), torch.tensor([0, 1, 2, -100])
    step = Supervised(nn.Linear(2, 3), nn.CrossEntropyLoss())
    assert step.score(logits, step.parts((x, targets))).count == 3
    assert step.sums is False
    total = Supervised(nn.Linear(2, 3), nn.CrossEntropyLoss(reduction="sum"))
    assert total.score(logits, step.parts((x, targets))).count is None and total.sums  # shown per sample


def test_errors_for_batches_that_do_not_match():
    step = Supervised(Two(), F.mse_loss)
    with pytest.raises(
        BadData, match=r"none of the batch's keys \('c', 't'\) is an argument of forward\(a, b, scale\)"
    ):
        step.parts({"c": x, "t": y})
    with pytest.raises(BadData, match="a batch of type str can't be split into inputs and a target"):
        step.parts("text")
    with pytest.raises(BadData, match="the batch has no target for the loss"):
        step.score(x, step.parts((x,)))
    with pytest.raises(InvalidArgument, match="there is no loss: pass Learner"):
        Supervised(Two(), None).score(x, step.parts((x, y, z)))
