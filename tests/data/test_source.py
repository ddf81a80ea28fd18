import random
from collections import OrderedDict
from types import MappingProxyType

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset, random_split

from stoker.data import Source
from stoker.data._columns import Columns
from stoker.data._order import own_random_numbers
from stoker.data._source import Stream, as_source
from stoker.data._view import View
from stoker.errors import BadData, WrongType

X, Y = torch.arange(8.0).view(4, 2), torch.arange(4)


class Squares(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, number):
        return number**2


class Lines(IterableDataset):
    def __iter__(self):
        return iter("abc")


class Doubled(TensorDataset):
    def __getitem__(self, number):
        return tuple(2 * tensor[number] for tensor in self.tensors)


class Endless:
    def __getitem__(self, number):
        return number


class Again:
    """An iterable of nobody's class."""

    def __iter__(self):
        return iter([1, 2])


def numbers():
    yield 1


@pytest.mark.parametrize(
    "source",
    [X, X.numpy(), (X, Y), (X.numpy(), Y), {"x": X}, OrderedDict(x=X), MappingProxyType({"x": X}), TensorDataset(X, Y)],
)
def test_what_is_in_memory_is_columns(source):
    assert isinstance(as_source(source), Columns)
    assert len(as_source(source)) == 4


def test_torchs_own_views_of_tensors_stay_vectorised():
    part, _ = random_split(TensorDataset(X, Y), [0.5, 0.5], generator=torch.Generator().manual_seed(0))
    made = as_source(part)
    assert isinstance(made, View)
    assert made.vectorised
    assert torch.equal(made.slice(0, 2)[1], torch.stack([y for _, y in part]))
    assert as_source(Subset(Squares(), [3, 1]))[0] == 9


def test_samples_by_number_are_used_as_they_are():
    for source in ([1, 2], range(3), Squares(), Doubled(X, Y)):
        assert as_source(source) is source


def test_a_tensor_dataset_with_its_own_getitem_is_asked():
    assert as_source(Doubled(X, Y))[3][1] == 6


def test_iterables_are_streams():
    for source in (Lines(), Again()):
        assert isinstance(as_source(source), Stream)
    loader = DataLoader(TensorDataset(X))
    assert as_source(loader) is loader


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (numbers(), "a generator can be walked only once, and every epoch walks the source anew; give a list"),
        (iter([1]), "a list_iterator can be walked only once"),
        (numbers, "got the function numbers; put what it yields into a list, or into the __iter__ of a torch Iterable"),
        (Squares, "got the class Squares; make an instance of it"),
        ({1, 2}, "got a set, which has no order; make it a list"),
        ("abc", "a source is a tensor or array, .*; got a str"),
        (3, "got a int"),
        (None, "got a NoneType"),
        (Endless(), "Endless has __getitem__ but no __len__; add a __len__"),
    ],
)
def test_what_is_no_source_is_explained(source, text):
    with pytest.raises(WrongType, match=text):
        as_source(source)


@pytest.mark.parametrize("source", [[], torch.zeros(0, 3), np.zeros((0,)), (X[:0], Y[:0]), TensorDataset(X[:0])])
def test_no_samples_are_an_error(source):
    with pytest.raises(BadData, match="the source has no samples"):
        as_source(source)


def test_the_protocol_is_what_people_have():
    for source in ([1], Squares(), TensorDataset(X), as_source(X)):
        assert isinstance(source, Source)
    assert not isinstance(Lines(), Source)


class Noisy(IterableDataset):
    def __iter__(self):
        start = random.random()
        for _ in range(3):
            yield start, torch.rand(()).item(), np.random.rand(), random.random()


def test_what_a_stream_draws_is_keyed_by_epoch_and_place():
    with own_random_numbers():
        first = list(Stream(Noisy()).read(0))
        torch.rand(7)
        assert list(Stream(Noisy()).read(0)) == first != list(Stream(Noisy()).read(1))
        slowly = []
        for sample in Stream(Noisy()).read(0):  # whatever others draw between two samples
            np.random.rand(3), random.random(), torch.rand(2)
            slowly.append(sample)
        assert slowly == first


def test_a_failing_stream_says_where():
    class Breaks(IterableDataset):
        def __iter__(self):
            yield 1
            raise OSError("the disk is gone")

    with own_random_numbers(), pytest.raises(OSError, match="the disk is gone") as caught:
        list(Stream(Breaks()).read(4))
    assert caught.value.__notes__ == ["while reading sample 1 of the stream (epoch 4)"]
