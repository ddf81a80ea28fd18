"""Samples become batches: structures stay, numbers and arrays are stacked, and what does not stack is named."""

from collections import namedtuple
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from stoker.data import Loader
from stoker.errors import BadData
from tests.data.batches import plain

Pair = namedtuple("Pair", ["a", "b"])


@dataclass
class Item:
    image: torch.Tensor
    name: str
    cached: int = field(default=3, init=False)


def collate(samples):
    """The batch of a list of samples."""
    return next(iter(Loader(samples, batch_size=len(samples))))


def test_numbers_get_the_usual_dtypes():
    ints, floats, bools, mixed, complexes = collate([(1, 0.5, True, 1, 1j), (2, 1.5, False, 2.5, 2j)])
    assert (ints.dtype, floats.dtype, bools.dtype) == (torch.int64, torch.float32, torch.bool)
    assert mixed.tolist() == [1, 2.5]
    assert collate([[[1.0], [2.0]], [[3.0], [4.0]]]).shape == (2, 2, 1)  # a list of numbers is a row
    assert complexes.dtype == torch.complex64


def test_floats_follow_the_default_dtype():
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        assert collate([0.1, 0.2]).dtype == torch.float64
    finally:
        torch.set_default_dtype(before)


def test_arrays_and_tensors_keep_their_dtype():
    stacked = collate([(np.ones(2, np.float16)[::-1], np.float64(1), torch.ones(2).bfloat16())] * 3)
    assert [part.dtype for part in stacked] == [torch.float16, torch.float64, torch.bfloat16]
    assert [tuple(part.shape) for part in stacked] == [(3, 2), (3,), (3, 2)]


def test_structures_stay():
    batch = collate([{"pair": Pair(torch.zeros(2), "a"), "list": [torch.ones(1), "x"]}] * 2)
    assert type(batch["pair"]) is Pair
    assert plain(batch) == {"pair": [[[0, 0], [0, 0]], ["a", "a"]], "list": [[[1], [1]], ["x", "x"]]}
    item = collate([Item(torch.zeros(2), "a"), Item(torch.ones(2), "b")])
    assert isinstance(item, Item)
    assert (item.image.tolist(), item.name, item.cached) == ([[0, 0], [1, 1]], ["a", "b"], 3)


def test_the_batch_equals_that_of_torch():
    samples = [(torch.full((2,), float(n)), {"n": n}, "abc"[n]) for n in range(3)]
    assert plain(collate(samples)) == plain(default_collate(samples))


def test_the_default_device_is_not_used():
    with torch.device("meta"):
        assert plain(collate([(1.5, 2)] * 4)) == [[1.5] * 4, [2] * 4]


def test_a_transform_gets_the_parts_of_a_tuple():
    for sample, transform, expected in (
        ((1, 2), lambda a, b: a + b, 3),
        ({"a": 1}, lambda sample: sample["a"], 1),
        ([1, 2], lambda sample: sample[1], 2),
    ):
        assert next(iter(Loader([sample], batch_size=1, transform=transform))).tolist() == [expected]


@pytest.mark.parametrize(
    ("samples", "text"),
    [
        (
            [(torch.zeros(3, 4), 1), (torch.zeros(3, 5), 1)],
            r"samples have shapes \[3, 4\] and \[3, 5\] at \[0\], but only equal shapes stack; Loader\(..., col",
        ),
        ([torch.zeros(4, 2), torch.zeros(4)], r"if these are columns, put them in a tuple, as in \(x, y\)"),
        ([np.zeros(n) for n in range(5)], r"shapes \[0\] and \[1\] and \[2\] and others"),
        ([torch.zeros(1), torch.zeros(1).long()], r"dtypes torch.float32 and torch.int64, but only equal dtypes stack"),
        ([Item(torch.zeros(1), "a"), Item(torch.zeros(2), "b")], r"shapes \[1\] and \[2\] at .image"),
        ([(1, 2), (1, 2, 3)], r"samples have 2 and 3 parts; Loader\(..., collate_fn=fn\)"),
        ([{"x": 1}, {"x": 1, "y": 2}], "only some samples have 'y'"),
        ([(1, None), (1, None)], r"a NoneType at \[1\] can't be stacked into a batch; use tensors.*transform="),
        ([1, None], "samples have both int and NoneType, which do not stack"),
        ([2**70, 1], "the numbers can't be converted to a tensor"),
        ([np.array(["a"])] * 2, "an array of dtype <U1 can't be converted to a tensor"),
    ],
)
def test_what_does_not_stack_raises_with_its_place(samples, text):
    with pytest.raises(BadData, match=text):
        collate(samples)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_failing_sample_or_batch_is_named(workers):
    options = {"batch_size": 2, "workers": workers}
    with pytest.raises(ZeroDivisionError) as caught:
        list(Loader([1, 1, 1, 0], transform=lambda number: 1 / number, **options).at(epoch=2))
    assert caught.value.__notes__[0] == "while loading sample 3 (epoch 2, batch 1)"
    with pytest.raises(BadData, match="shapes") as caught:
        list(Loader([torch.zeros(n % 10) for n in range(20)], batch_size=10).at(epoch=1, batch=1))
    assert caught.value.__notes__ == ["while collating samples 10, 11, 12, 13, 14, 15, 16, 17, … to batch 1 (epoch 1)"]
