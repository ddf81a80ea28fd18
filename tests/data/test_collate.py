from collections import namedtuple
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from stoker.data._collate import collate
from stoker.errors import BadData

Pair = namedtuple("Pair", ["a", "b"])


@dataclass
class Item:
    image: torch.Tensor
    name: str
    made: int = field(default=3, init=False)


def test_numbers_get_the_dtypes_that_people_expect():
    ints, floats, bools, mixed, complexes = collate([(1, 0.5, True, 1, 1j), (2, 1.5, False, 2.5, 2j)])
    assert (ints.dtype, floats.dtype, bools.dtype) == (torch.int64, torch.float32, torch.bool)
    assert mixed.tolist() == [1, 2.5]
    assert complexes.dtype == torch.complex64


def test_floats_follow_the_default_dtype():
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        assert collate([0.1, 0.2]).dtype == torch.float64
    finally:
        torch.set_default_dtype(before)


def test_arrays_and_tensors_keep_their_dtype():
    stacked = collate([(np.ones(2, np.float16), np.float64(1), torch.ones(2).bfloat16())] * 3)
    assert [part.dtype for part in stacked] == [torch.float16, torch.float64, torch.bfloat16]
    assert [tuple(part.shape) for part in stacked] == [(3, 2), (3,), (3, 2)]


def test_read_only_and_reversed_arrays_are_stacked():
    frozen = np.arange(3)
    frozen.flags.writeable = False
    assert collate([frozen, frozen[::-1]]).tolist() == [[0, 1, 2], [2, 1, 0]]


def test_structures_stay():
    samples = [{"pair": Pair(torch.zeros(2), "a"), "list": [torch.ones(1), "x"]}] * 2
    batch = collate(samples)
    assert type(batch["pair"]) is Pair
    assert batch["pair"].b == ["a", "a"]
    assert batch["list"][0].shape == (2, 1)
    assert batch["list"][1] == ["x", "x"]
    made = collate([Item(torch.zeros(2), "a"), Item(torch.ones(2), "b")])
    assert isinstance(made, Item)
    assert made.image.tolist() == [[0, 0], [1, 1]]
    assert made.name == ["a", "b"]


def test_a_list_of_numbers_is_a_row():
    assert collate([[1, 2, 3], [4, 5, 6]]).tolist() == [[1, 2, 3], [4, 5, 6]]
    assert collate([[[1.0], [2.0]], [[3.0], [4.0]]]).shape == (2, 2, 1)


def test_the_batch_is_the_one_torch_makes():
    samples = [(torch.full((2,), float(n)), {"n": n}, "abc"[n]) for n in range(3)]
    ours, theirs = collate(samples), default_collate(samples)
    assert torch.equal(ours[0], theirs[0])
    assert torch.equal(ours[1]["n"], theirs[1]["n"])
    assert ours[2] == list(theirs[2])


@pytest.mark.parametrize(
    ("samples", "text"),
    [
        (
            [(torch.zeros(3, 4), 1), (torch.zeros(3, 5), 1)],
            r"samples have shapes \[3, 4\] and \[3, 5\] at \[0\], and only equal ones can be stacked; pass batcher=",
        ),
        ([torch.zeros(4, 2), torch.zeros(4)], r"if these were meant as columns, put them in a tuple, as in \(x, y\)"),
        ([{"x": [1, 2]}, {"x": [1]}], r"shapes \[1\] and \[2\] at \['x'\]"),
        ([np.zeros(n) for n in range(5)], r"shapes \[0\] and \[1\] and \[2\] and others"),
        ([torch.zeros(1), torch.zeros(1).long()], r"dtypes torch.float32 and torch.int64, so the batch's would depend"),
        ([Item(torch.zeros(1), "a"), Item(torch.zeros(2), "b")], r"shapes \[1\] and \[2\] at .image"),
        ([(1, 2), (1, 2, 3)], "samples have 2 and 3 parts; pass batcher="),
        ([{"x": 1}, {"x": 1, "y": 2}], "some samples have 'y' and some have not"),
        ([(1, None), (1, None)], r"a NoneType at \[1\] can't be stacked into a batch; give tensors.*transform="),
        ([1, None], "samples have both int and NoneType, which don't stack"),
        ([torch.zeros(1), "a"], "samples have both Tensor and str"),
        ([(1,), [1]], "samples have both tuple and list"),
        ([2**70, 1], "numbers can't be made a tensor"),
        ([[1, [2]], [1, [2]]], "numbers can't be made a tensor"),
        ([np.array(["a"])] * 2, "an array of dtype <U1 can't be made a tensor"),
        ([object()], "a object can't be stacked"),
    ],
)
def test_what_cannot_be_stacked_is_named_with_its_place(samples, text):
    with pytest.raises(BadData, match=text):
        collate(samples)
