"""Copies: later changes can't reach them, their memory is used again, and what can't be copied is named."""

from collections import OrderedDict, deque, namedtuple

import pytest
import torch
from torch import nn

from stoker.checkpoint._copy import Copied, Copies
from stoker.errors import InvalidArgument


def state():
    """One of everything that a state may hold."""
    return {
        "model": OrderedDict(weight=nn.Parameter(torch.arange(6.0).reshape(2, 3)), count=torch.tensor(7)),
        "optimizer": {0: [torch.ones(2), {"betas": (0.9, torch.zeros(1))}], None: deque([torch.ones(1), 2], maxlen=3)},
        "plain": [None, True, 3, 0.5, "text", b"bytes", torch.float16, {"list": [1, [2]]}],
        "bytes": bytearray(b"changing"),
        "nothing": torch.empty(0, 4),
    }


def plain(tree):
    """A tree with its tensors as lists, to compare with ==."""
    if isinstance(tree, torch.Tensor):
        return ("tensor", tree.dtype, tree.tolist())
    if isinstance(tree, dict):
        return {key: plain(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple | deque):
        return [type(tree).__name__, getattr(tree, "maxlen", None), *map(plain, tree)]
    return bytes(tree) if isinstance(tree, bytearray) else tree


def changed(tree):
    """Changes all that can be changed, in its place."""
    if isinstance(tree, torch.Tensor):
        with torch.no_grad():
            tree.fill_(-1)
    elif isinstance(tree, dict):
        for value in tree.values():
            changed(value)
        tree["new"] = 1
    elif isinstance(tree, list | deque | tuple):
        for value in tree:
            changed(value)
        if not isinstance(tree, tuple):
            tree.append("new")
    elif isinstance(tree, bytearray):
        tree.extend(b"!")


def test_a_copy_is_the_same_and_later_changes_do_not_reach_it():
    given = state()
    copied = Copies().take(given).state
    assert plain(copied) == plain(state())
    changed(given)
    assert plain(given) != plain(state()) and plain(copied) == plain(state())


def tensors_of(tree):
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = list(tree.values())
    return [each for value in tree for each in tensors_of(value)] if isinstance(tree, list | tuple | deque) else []


def test_the_memory_is_used_again():
    copies = Copies()
    first = tensors_of(copies.take(state()).state)
    other = state()
    changed(other)
    second = tensors_of(copies.take(other).state)
    assert [each.data_ptr() for each in first] == [each.data_ptr() for each in second]
    assert all((each == -1).all() for each in second)


@pytest.mark.parametrize(
    "other",
    [torch.ones(4), torch.ones(2, 1), torch.ones(2, dtype=torch.float64), torch.ones(())],
    ids=["longer", "shaped", "double", "scalar"],
)
def test_memory_that_does_not_fit_is_taken_anew(other):
    copies = Copies()
    before = copies.take({"a": torch.zeros(2), "b": torch.zeros(2)}).state
    after = copies.take({"a": other, "b": torch.ones(2)}).state
    assert plain(after) == plain({"a": other, "b": torch.ones(2)})
    assert after["a"] is not before["a"] and after["b"] is before["b"]


def test_memory_that_is_not_needed_any_more_is_let_go():
    copies = Copies()
    before = copies.take({"window": torch.zeros(2), "b": torch.zeros(2)}).state
    copies.take({"b": torch.ones(2)})
    assert copies.take({"window": torch.zeros(2), "b": torch.zeros(2)}).state["window"] is not before["window"]
    copies.clear()
    assert copies.take({"b": torch.ones(2)}).state["b"] is not before["b"]


def test_views_and_odd_layouts_are_copied_by_value():
    whole = torch.arange(12.0).reshape(3, 4)
    given = {
        "view": whole[1:, ::2],
        "expanded": torch.tensor([3.0]).expand(4),
        "transposed": whole.T,
        "conjugate": torch.tensor([1 + 2j]).conj(),
        "channels": torch.arange(16.0).reshape(1, 2, 2, 4).to(memory_format=torch.channels_last),
    }
    copied = Copies().take(given).state
    for name, tensor in given.items():
        assert torch.equal(copied[name], tensor) and copied[name].is_contiguous(), name


def test_a_copy_has_no_graph_and_survives_inference_mode():
    copies, weight = Copies(), nn.Parameter(torch.ones(2))
    with torch.inference_mode():
        first = copies.take({"a": weight, "b": torch.ones(2) * 2}).state
    second = copies.take({"a": weight * 3, "b": torch.zeros(2)}).state
    assert first["a"] is second["a"] and second["a"].tolist() == [3, 3] and second["b"].tolist() == [0, 0]
    assert not second["a"].requires_grad and second["a"].grad_fn is None


class Own(torch.Tensor):
    pass


@pytest.mark.parametrize(
    "tensor",
    [torch.eye(2).to_sparse(), torch.empty(2, device="meta"), torch.ones(2).as_subclass(Own)],
    ids=["sparse", "meta", "subclass"],
)
def test_a_tensor_that_is_no_plain_memory_is_named(tensor):
    with pytest.raises(InvalidArgument, match="'model.0.mask'"):
        Copies().take({"model": [{"mask": tensor}]})


def test_what_the_store_refuses_is_left_to_it():
    Pair = namedtuple("Pair", "left right")
    endless = []
    endless.append(endless)
    given = {"pair": Pair(1, 2), "object": object(), "endless": endless}
    copied = Copies().take(given).state
    assert copied["pair"] is given["pair"] and copied["object"] is given["object"] and copied["endless"]


def test_on_the_cpu_there_is_nothing_to_wait_for():
    copied = Copies().take(state())
    assert copied.events == {}
    with copied.arrived() as there:
        assert there is copied.state
    with Copied({"a": 1}).arrived() as there:
        assert there == {"a": 1}


@pytest.mark.cuda
@pytest.mark.parametrize("room", [True, False], ids=["on the device", "pinned"])
def test_copies_of_a_gpu_hold_what_was_there_between_two_updates(room, monkeypatch):
    if not room:
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (0, 1))
        torch.cuda.empty_cache()
    copies, weight = Copies(), torch.zeros(1 << 22, device="cuda")
    for update in range(1, 4):
        for _ in range(50):  # so that the copy is queued behind work that is not done yet
            weight.add_(1)
        copied = copies.take({"weight": weight, "cpu": torch.ones(1)})
        for _ in range(50):
            weight.add_(1)
        assert copied.state["weight"].is_cuda is room and copied.state["weight"].is_pinned() is not room
        with copied.arrived() as there:
            assert torch.cuda.current_stream() != torch.cuda.default_stream()
            assert there["weight"].cpu().unique().tolist() == [100 * update - 50]
        assert torch.cuda.current_stream() == torch.cuda.default_stream()


@pytest.mark.cuda
def test_memory_of_a_gpu_is_used_again_and_given_back():
    weight = torch.zeros(1 << 22, device="cuda")
    torch.cuda.synchronize()
    before, copies = torch.cuda.memory_allocated(), Copies()
    first = copies.take({"weight": weight}).state["weight"].data_ptr()
    taken = torch.cuda.memory_allocated()
    assert copies.take({"weight": weight}).state["weight"].data_ptr() == first
    assert torch.cuda.memory_allocated() == taken > before
    copies.clear()
    assert torch.cuda.memory_allocated() == before


@pytest.mark.cuda
def test_bringing_a_copy_over_does_not_wait_for_the_training():
    weight, copies = torch.ones(1 << 20, device="cuda"), Copies()
    copied = copies.take({"weight": weight})
    with copied.arrived() as there:  # what is made once is made
        there["weight"].cpu()
    torch.cuda.synchronize()
    torch.cuda._sleep(int(2e9))  # about a second of work in the training's stream
    training = torch.cuda.Event()
    training.record()
    with copied.arrived() as there:
        assert there["weight"].cpu().sum() == 1 << 20
    assert not training.query()
    torch.cuda.synchronize()
