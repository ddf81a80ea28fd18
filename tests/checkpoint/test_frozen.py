"""Frozen parameters: their fingerprints, and models that load a state which leaves them out."""

import hypothesis.strategies as st
import numpy
import pytest
import torch
from hypothesis import given, settings
from torch import nn

from stoker.checkpoint import choose_left_out, count_bytes, fingerprint_tensors, load_model_state, model_state
from stoker.errors import InvalidArgument, StateMismatch
from tests.checkpoint.quantised import Int8Weight

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.complex64, torch.int8, torch.bool, torch.float8_e4m3fn]


def fingerprint(tensor):
    return fingerprint_tensors({"tensor": tensor})["tensor"]


def numbers(count, dtype=torch.float32, seed=0):
    values = torch.randn(count, generator=torch.Generator().manual_seed(seed))
    return (values > 0 if dtype == torch.bool else values * 10).to(dtype)


# --- fingerprints


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", [0, 1, 3, 8, 1001, 600_001])
def test_equal_bytes_have_equal_fingerprints_wherever_they_are(dtype, count):
    values = numbers(count, dtype)
    padded = torch.zeros(count + 3, dtype=dtype)
    padded[1:-2] = values  # another offset in the memory
    assert fingerprint(values) == fingerprint(values.clone()) == fingerprint(padded[1:-2])


def test_the_layout_in_memory_does_not_count():
    images = numbers(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    assert fingerprint(images) == fingerprint(images.to(memory_format=torch.channels_last))
    assert fingerprint(images) != fingerprint(images.transpose(2, 3))
    assert fingerprint(torch.conj(numbers(9, torch.complex64))) == fingerprint(
        numbers(9, torch.complex64).conj().clone()
    )


@settings(max_examples=20)
@given(st.integers(0, 600_000), st.integers(0, 31))
def test_every_bit_counts(place, bit):
    values = numbers(600_001)
    changed = values.clone()
    changed.view(torch.int32)[place] ^= -(2**31) if bit == 31 else 1 << bit
    assert fingerprint(changed) != fingerprint(values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_signs_and_order_count(dtype):
    values = numbers(4000, dtype).reshape(1000, 4)
    others = [-values, values.flip(0), values.flip(1), values.roll(1, 0), torch.zeros_like(values)]
    for column in range(4):
        others.append(values.clone())
        others[-1][:, column] *= -1  # an even number of sign bits, at the same place in every word
    assert len({fingerprint(each) for each in [values, *others]}) == len(others) + 1


def reference(content):
    """The fingerprint of bytes as docs/checkpoints.md defines it, with numpy."""
    row, shift = 1 << 18, numpy.int64(32)
    numbers = numpy.arange(1, row + 1, dtype=numpy.int64) * numpy.int64(-0x61C8864680B583EB)
    numbers = (numbers ^ (numbers >> 30)) * numpy.int64(-0x40A7B892E31B1A47)
    numbers = (numbers ^ (numbers >> 27)) * numpy.int64(-0x6B2FB644ECCEEE15)
    multipliers = (numbers ^ (numbers >> 31)) | 1
    words = numpy.frombuffer(content + bytes(-len(content) % 8), numpy.int64)
    while True:
        rows = [words[first : first + row] for first in range(0, len(words), row)]
        sums = [((each + (each >> shift)) * multipliers[: len(each)]).sum() for each in rows]
        if len(sums) <= 1:
            return f"{int(sums[0]) % 2**64:016x}" if sums else "0" * 16
        words = numpy.array(sums)


@pytest.mark.parametrize("count", [0, 1, 3, 1001, 1 << 19, 600_001])
def test_a_fingerprint_is_what_the_documentation_says(count):
    """It is in checkpoints: a change would make them unusable."""
    values = numbers(count)
    assert fingerprint(values) == reference(values.numpy().tobytes())
    assert fingerprint(torch.tensor([1.0, -2.0])) == "e6a197cf9d800000"


@pytest.mark.cuda
@pytest.mark.parametrize("count", [1, 1001, 600_001, 40_000_003])
def test_a_gpu_computes_the_same_fingerprint(count):
    values = numbers(count)
    assert fingerprint(values.cuda()) == fingerprint(values)
    quantised = Int8Weight.quantise(numbers(64).reshape(8, 8))
    assert fingerprint(quantised.cuda()) == fingerprint(quantised)


# --- tensors of a subclass


def test_the_fingerprint_of_a_quantised_weight_is_that_of_its_tensors():
    weight = numbers(64).reshape(8, 8)
    quantised = Int8Weight.quantise(weight)
    assert fingerprint(quantised) == fingerprint(Int8Weight.quantise(weight))
    assert fingerprint(quantised) == f"{fingerprint(quantised.values)}-{fingerprint(quantised.scales)}"
    changed = Int8Weight(quantised.values, quantised.scales * 2)
    assert fingerprint(changed) != fingerprint(quantised)
    assert count_bytes({"weight": quantised}) == 64 + 8 * 4


def test_a_subclass_with_memory_of_its_own_is_identified_by_that():
    class Tagged(torch.Tensor):
        pass

    values = numbers(7)
    assert fingerprint(values.as_subclass(Tagged)) == fingerprint(values)


def test_a_subclass_whose_tensors_are_unknown_is_refused():
    class Hidden(torch.Tensor):
        __slots__ = ()

        @staticmethod
        def __new__(cls):
            return torch.Tensor._make_wrapper_subclass(cls, (2, 2))

        @classmethod
        def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
            return args[0]

    with pytest.raises(InvalidArgument, match="'weight' is a Hidden, a subclass of Tensor.*__tensor_flatten__"):
        fingerprint_tensors({"weight": Hidden()})


# --- what is left out


def test_large_frozen_parts_and_what_no_file_can_hold_are_left_out_by_default():
    small, large = nn.Parameter(torch.zeros(8), False), nn.Parameter(torch.zeros(16 << 20), False)
    quantised = nn.Parameter(Int8Weight.quantise(torch.ones(2, 2)), False)
    trained = nn.Parameter(torch.zeros(8))
    assert choose_left_out({"small": small, "trained": trained}, "auto") == []
    assert choose_left_out({"small": small, "large": large, "trained": trained}, "auto") == ["small", "large"]
    assert choose_left_out({"small": small, "quantised": quantised}, "auto") == ["quantised"]
    assert choose_left_out({"small": small, "trained": trained}, "fingerprint") == ["small"]
    assert choose_left_out({"large": large}, "save") == []


# --- loading


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(4, 3), nn.Linear(3, 4)
        self.head.weight = self.embedding.weight


def state_without(model, *names):
    state = model_state(model)
    parameters = {name: each.clone() for name, each in state["parameters"].items() if name not in names}
    left_out = fingerprint_tensors({name: state["parameters"][name] for name in names})
    return {**state, "parameters": parameters, "frozen": left_out}


def test_a_state_without_frozen_parameters_needs_a_model_that_has_them():
    model, other = Tied(), Tied()
    state = state_without(model, "embedding.weight")
    other.load_state_dict(model.state_dict())
    nn.init.zeros_(other.head.bias)
    load_model_state(other, state)
    assert torch.equal(other.head.bias, model.head.bias)
    assert other.head.weight is other.embedding.weight

    nn.init.zeros_(other.embedding.weight)
    nn.init.ones_(other.head.bias)
    with pytest.raises(StateMismatch, match=r"1 of these 1 have other values .*'embedding.weight'\. Create"):
        load_model_state(other, state)
    assert torch.equal(other.head.bias, torch.ones(4)), "nothing was loaded"
    load_model_state(other, {**state, "frozen": {"embedding.weight": None}})  # any value
    assert not other.embedding.weight.any()


def test_a_left_out_parameter_that_the_model_lacks_is_named():
    state = state_without(Tied(), "embedding.weight")
    with pytest.raises(StateMismatch, match="not in the model: parameter 'head.bias', 'embedding.weight', "):
        load_model_state(nn.Module(), state)
