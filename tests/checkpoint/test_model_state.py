"""`model_state` and `load_model_state` restore a model to the bit, or change nothing and say what differs."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from stoker import InvalidArgument, StateMismatch
from stoker.checkpoint import load_model_state, model_state
from tests.checkpoint.states import same, write_and_read


class Net(nn.Module):
    """Tied weights, a norm, buffers of all kinds, extra state, a frozen part in evaluation mode."""

    def __init__(self, width=4):
        super().__init__()
        self.embed, self.head = nn.Embedding(5, width), nn.Linear(width, 5, bias=False)
        self.head.weight = self.embed.weight
        self.norm, self.frozen = nn.BatchNorm1d(width), nn.Linear(width, width).requires_grad_(False).eval()
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64), persistent=False)
        self.register_buffer("cache", None, persistent=False)
        self.register_buffer("scale", None)
        self.register_buffer("mask", torch.ones(3, dtype=torch.bool))
        self.words = ["a"]

    def get_extra_state(self):
        return {"words": self.words}

    def set_extra_state(self, state):
        self.words = list(state["words"])

    def forward(self, tokens):
        self.seen = self.seen + 1  # replaced, not written to
        self.cache = torch.arange(float(self.seen))
        self.scale = torch.full((2,), 0.5) if self.scale is None else self.scale * 2
        self.words = [*self.words, "b"]
        return self.head(self.norm(self.frozen(self.embed(tokens))))


def trained(model, batches=3):
    for _ in range(batches):
        model(torch.randint(5, (6,))).sum().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))
    return model


def test_everything_is_restored_in_place():
    model, other = trained(Net()), Net()
    own = dict(other.named_parameters())
    load_model_state(other, write_and_read(model_state(model)))
    assert same(model_state(other), model_state(model))
    assert all(own[name] is parameter for name, parameter in other.named_parameters())
    assert other.head.weight is other.embed.weight
    assert other.words == ["a", "b", "b", "b"]
    assert (other.training, other.frozen.training) == (True, False)
    assert not other.frozen.weight.requires_grad and other.norm.weight.requires_grad
    assert "cache" not in other.state_dict() and "scale" in other.state_dict()
    tokens = torch.randint(5, (6,))
    assert torch.equal(model(tokens), other(tokens)) and same(model_state(other), model_state(model))


def test_names_are_in_the_order_of_the_model():
    state = model_state(trained(Net()))
    assert list(state["parameters"]) == [
        "embed.weight", "norm.weight", "norm.bias", "frozen.weight", "frozen.bias"
    ]  # fmt: skip
    assert list(state["buffers"]) == [
        "seen", "cache", "scale", "mask", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"
    ]  # fmt: skip
    assert state["tied"] == {"head.weight": "embed.weight"}
    assert state["empty"] == [] and model_state(Net())["empty"] == ["cache", "scale"]
    assert list(state["extra"]) == [""] and state["evaluating"] == ["frozen"]


def test_tensors_are_references_and_loading_copies():
    model, other = Net(), Net()
    state = model_state(model)
    load_model_state(other, state)
    with torch.no_grad():
        model.embed.weight.zero_()
    assert not state["parameters"]["embed.weight"].any() and other.embed.weight.any()
    assert not state["parameters"]["embed.weight"].requires_grad


def compiled(model):
    return torch.compile(model, backend="eager")


@pytest.mark.parametrize("wrap", [nn.DataParallel, compiled], ids=["parallel", "compiled"])
def test_wrappers_do_not_appear_in_names(wrap):
    model, plain = trained(Net()), Net()
    state = model_state(wrap(model))
    assert same(state, model_state(model))
    wrapped = wrap(plain.eval())
    load_model_state(wrapped, write_and_read(state))
    assert same(model_state(plain), state) and wrapped.training and plain.training


def test_buffers_are_restored_to_none_and_to_other_shapes():
    fresh, used = Net(), trained(Net())
    load_model_state(used, write_and_read(model_state(fresh)))
    assert used.cache is None and used.scale is None and used.seen == 0
    longer = trained(Net(), 7)
    load_model_state(used, write_and_read(model_state(longer)))
    assert used.cache.tolist() == list(range(7))
    assert used.scale.tolist() == longer.scale.tolist()


def test_buffers_may_be_tied_on_one_side_only():
    def pair(tied):
        model, shared = nn.ModuleList([nn.Module(), nn.Module()]), torch.zeros(2)
        for number, each in enumerate(model):
            each.register_buffer("table", shared if tied else torch.full((2,), float(number)))
        return model

    for saved, here in ((True, False), (False, True), (True, True)):
        first, second = pair(saved), pair(here)
        load_model_state(second, write_and_read(model_state(first)))
        assert [each.table.tolist() for each in second] == [each.table.tolist() for each in first]
    assert second[0].table is second[1].table


def test_parametrizations_and_several_dtypes():
    model = nn.Sequential(weight_norm(nn.Linear(3, 3)), nn.Linear(3, 3, dtype=torch.bfloat16))
    other = copy.deepcopy(model)
    with torch.no_grad():
        for each in model.parameters():
            each.mul_(3)
    load_model_state(other, write_and_read(model_state(model)))
    assert torch.equal(other[0].weight, model[0].weight) and torch.equal(other[1].weight, model[1].weight)


# States that do not match


def assert_refused(model, state, *texts):
    before = copy.deepcopy(model_state(model))
    with pytest.raises(StateMismatch) as error:
        load_model_state(model, state)
    lines = str(error.value).split("\n  ")
    assert lines[0] == "the state does not match the model"
    assert lines[1:] == list(texts)
    assert same(model_state(model), before), "nothing is changed"


def test_all_differences_are_listed():
    state = write_and_read(
        model_state(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1, bias=False)).eval())
    )
    assert_refused(
        nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(3, affine=False), nn.Linear(3, 1).double()),
        state,
        "not in the state: parameter '2.bias' (did you mean '1.bias'?)",
        "not in the model: parameter '1.weight', '1.bias'",
        "different: '0.weight' is float32 [3, 2] in the state, float32 [4, 2] in the model",
        "different: '0.bias' is float32 [3] in the state, float32 [4] in the model",
        "different: '2.weight' is float32 [1, 3] in the state, float64 [1, 3] in the model",
    )


def test_persistent_buffers_modules_and_extra_state_are_compared_too():
    assert_refused(
        nn.ModuleList([nn.BatchNorm1d(4, affine=False)]),
        write_and_read(model_state(nn.ModuleList([nn.BatchNorm1d(3, affine=False), nn.ReLU().eval()]))),
        "different: '0.running_mean' is float32 [3] in the state, float32 [4] in the model",
        "different: '0.running_var' is float32 [3] in the state, float32 [4] in the model",
        "not in the model: module '1'",
    )
    state = write_and_read(model_state(Net()))
    del state["extra"][""]
    assert_refused(Net(), state, "not in the state: extra state ''")
    state = write_and_read(model_state(nn.Linear(1, 1)))
    state["extra"]["head"] = {}
    assert_refused(nn.Linear(1, 1), state, "not in the model: extra state 'head'")


def test_parameters_have_to_be_tied_the_same_way():
    def pair(tied):
        model = nn.ModuleList([nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)])
        if tied:
            model[1].weight = model[0].weight
        return model

    kinds = {True: "tied to '0.weight'", False: "not tied"}
    for saved in (True, False):
        text = f"tied differently: '1.weight' is {kinds[saved]} in the state, {kinds[not saved]} in the model"
        assert_refused(pair(not saved), write_and_read(model_state(pair(saved))), text)


def test_other_mappings_are_not_states_of_a_model():
    assert_refused(nn.Linear(1, 1), {}, *(
        f"this is not a state of a model: {name!r} is missing"
        for name in ("parameters", "buffers", "tied", "empty", "extra", "trainable", "evaluating")
    ))  # fmt: skip
    state = write_and_read(model_state(nn.Linear(1, 1)))
    state["parameters"]["bias"] = 3
    assert_refused(nn.Linear(1, 1), state, "not a tensor: 'bias' is a int in the state")
    state["trainable"] = ["weight", {}]
    assert_refused(nn.Linear(1, 1), state, "this is not a state of a model: {} is not a name")


def test_extra_state_that_raises_leaves_the_tensors_unchanged():
    state = write_and_read(model_state(trained(Net())))
    state["extra"][""] = {}
    model = Net()
    before = copy.deepcopy(model_state(model))
    with pytest.raises(KeyError):
        load_model_state(model, state)
    assert same(model_state(model), before)


def test_a_lazy_module_has_no_state():
    text = r"'0.weight' has no shape yet \(a lazy module\); run one batch through the model first"
    lazy = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(InvalidArgument, match=text):
        model_state(lazy)
    with pytest.raises(InvalidArgument, match=text):
        load_model_state(lazy, model_state(nn.Sequential(nn.Linear(2, 3))))
