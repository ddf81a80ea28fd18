"""How many samples a batch holds, whatever it is made of."""

from collections import namedtuple
from types import SimpleNamespace

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from stoker.steps import count_samples

Pair = namedtuple("Pair", "x y")
X, Y = torch.ones(5, 3), torch.ones(5)
SEQUENCES = [torch.ones(length, 2) for length in (4, 1, 3)]
IMAGES = [torch.ones(3, 8, 8), torch.ones(3, 6, 9), torch.ones(3, 7, 7), torch.ones(3, 4, 4)]
BOXES = [{"boxes": torch.ones(count, 4), "labels": torch.ones(count)} for count in (3, 1, 0, 2)]


@pytest.mark.parametrize(
    ("batch", "samples"),
    {
        "tensor": (X, 5),
        "tuple": ((X, Y), 5),
        "list of parts, as a DataLoader gives it": ([X, Y], 5),
        "list of two parts of two": ([X[:2], Y[:2]], 2),
        "named tuple": (Pair(X, Y), 5),
        "mapping": ({"x": X, "y": Y}, 5),
        "nested parts": (([X, X], Y), 5),
        "nested list of parts first": ([[X, X], Y], 5),
        "mappings as parts": (({"x": X}, {"y": Y}), 5),
        "mappings with the same names as parts": (({"a": X, "b": Y}, {"a": Y, "b": X}), 5),
        "sequences": (SEQUENCES, 3),
        "sequences and labels": ((SEQUENCES, torch.arange(3)), 3),
        "sequences in a mapping": ({"x": SEQUENCES}, 3),
        "images and boxes": ((IMAGES, BOXES), 4),
        "images and boxes in tuples": ((tuple(IMAGES), tuple(BOXES)), 4),
        "one image with three boxes": ((IMAGES[:1], BOXES[:1]), 1),
        "images and classes": ((IMAGES, [1, 0, 1, 1]), 4),
        "list of mappings": ([{"x": each} for each in SEQUENCES], 3),
        "text": (["a", "b"], 2),
        "text and labels": ((["a", "b", "c"], torch.arange(3)), 3),
        "text in a mapping": ({"text": ["a", "b"], "y": Y[:2]}, 2),
        "packed": (pack_sequence(SEQUENCES, enforce_sorted=False), 3),
        "packed in a tuple": ((pack_sequence(SEQUENCES, enforce_sorted=False), torch.arange(3)), 3),
        "nested tensor": (torch.nested.nested_tensor(SEQUENCES, layout=torch.jagged), 3),
        "graphs": (SimpleNamespace(num_graphs=7, x=X), 7),
        "graphs in a tuple": ((SimpleNamespace(num_graphs=7, x=X), Y), 7),
        "nothing that counts": (SimpleNamespace(x=X), 1),
    }.values(),
)
def test_samples_are_counted_in_every_kind_of_batch(batch, samples):
    assert count_samples(batch) == samples


def test_the_loaders_count_decides_where_a_batch_is_ambiguous():
    images = [torch.ones(3, 8, 8), torch.ones(3, 8, 8)]  # as many channels
    assert count_samples(images, size=2) == 2 and count_samples(images, size=3) == 3
    assert count_samples(torch.ones(9, 4, 2), size=4) == 4  # time first
    assert count_samples(object(), size=6) == 6
    assert count_samples((X, Y), size=7) == 5  # a transform has dropped two
    pair = [{"ids": X, "mask": X}, {"ids": X, "mask": X}]  # of texts: two columns, with a row for each sample
    assert count_samples((pair, Y), size=5) == count_samples(pair, size=5) == 5
    assert count_samples([{"boxes": torch.ones(3, 4)}] * 2, size=2) == 2
