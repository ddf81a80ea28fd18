import random

import numpy as np
import pytest
import torch

from stoker.data._batches import Here, Recipe, Task, tasks_in_order, tasks_of_stream
from stoker.data._order import own_random_numbers
from stoker.data._source import Stream
from stoker.errors import BadData, InvalidArgument


class Rolls:
    """A data set that draws by itself."""

    def __len__(self):
        return 10

    def __getitem__(self, number):
        return number, torch.rand(()).item(), np.random.rand(), random.random()


class Letters:
    def __init__(self, text):
        self.text = text

    def __iter__(self):
        return iter(self.text)


class Once:
    """Gives its samples in the first epoch only: the mistake that everybody makes once."""

    def __init__(self):
        self.reader = iter([1, 2])

    def __iter__(self):
        return self.reader


def build(source, *numbers, epoch=0, batch=0, seed=0, transform=None, batcher=list):
    with own_random_numbers():
        return Recipe(source, transform, batcher, seed).build(Task(epoch, batch, list(numbers)))


def test_a_samples_random_numbers_are_its_own():
    alone, (_, among, _) = build(Rolls(), 3), build(Rolls(), 7, 3, 5, batch=9)
    assert alone == [among]
    assert build(Rolls(), 3, epoch=1) != alone
    assert build(Rolls(), 3, seed=1) != alone
    for kind in range(1, 4):
        assert len({sample[kind] for sample in build(Rolls(), *range(10))}) == 10


def test_a_transform_draws_by_the_sample_too():
    def add(number, *drawn):
        return number, torch.randn(()).item()

    assert build(Rolls(), 1, 2, transform=add)[1] == build(Rolls(), 2, transform=add)[0]


def test_a_batchers_random_numbers_are_the_batchs():
    def cut(samples):
        return torch.rand(()).item()

    first = build([1, 2, 3], 0, 1, batcher=cut)
    assert first == build([1, 2, 3], 1, 2, batcher=cut)  # whatever its samples drew
    assert len({first, build([1], 0, batch=1, batcher=cut), build([1], 0, epoch=1, batcher=cut)}) == 3


def test_transforms_are_called_with_the_parts_of_a_tuple():
    assert build([(1, 2)], 0, transform=lambda a, b: a + b) == [3]
    assert build([{"a": 1}], 0, transform=lambda sample: sample["a"]) == [1]
    assert build([[1, 2]], 0, transform=lambda sample: sample) == [[1, 2]]


def test_a_failing_sample_is_named():
    with pytest.raises(ZeroDivisionError) as caught:
        build([1, 0], 0, 1, transform=lambda number: 1 / number, epoch=2, batch=5)
    assert caught.value.__notes__ == ["while loading sample 1 (epoch 2, batch 5)"]


def test_a_failing_batch_is_named():
    with pytest.raises(BadData, match="shapes") as caught:
        build([torch.zeros(1), torch.zeros(2)], *([0, 1] * 5), batcher=None, epoch=1, batch=4)
    assert caught.value.__notes__ == ["while joining samples 0, 1, 0, 1, 0, 1, 0, 1, … to batch 4 (epoch 1)"]


def test_tasks_in_order():
    cuts = [(4, 6), (6, 7)]
    assert list(tasks_in_order(cuts, None, epoch=1, batch=2)) == [Task(1, 2, [4, 5]), Task(1, 3, [6])]
    order = torch.tensor([6, 5, 4, 3, 2, 1, 0])
    assert [task.numbers for task in tasks_in_order(cuts, order, epoch=0, batch=2)] == [[2, 1], [0]]


def streamed(text, batch=0, drop_last=False):
    tasks = tasks_of_stream(Stream(Letters(text)), size=2, drop_last=drop_last, epoch=0, batch=batch)
    return [(task.batch, task.numbers, "".join(task.samples)) for task in tasks]


def test_tasks_of_a_stream():
    whole = [(0, [0, 1], "ab"), (1, [2, 3], "cd"), (2, [4], "e")]
    assert streamed("abcde") == whole
    assert streamed("abcde", drop_last=True) == whole[:2]
    assert streamed("abcd") == whole[:2]
    assert streamed("abcde", batch=1) == whole[1:]
    assert streamed("abcde", batch=3) == streamed("abcd", batch=2) == []  # the end is a place to continue from


@pytest.mark.parametrize(("text", "batch"), [("abcde", 4), ("abcd", 3), ("a", 7)])
def test_a_stream_that_ends_before_the_batch_says_so(text, batch):
    with pytest.raises(
        InvalidArgument, match=f"no batch {batch} in epoch 0: the source ended after {len(text)} samples"
    ):
        streamed(text, batch=batch)


def test_a_stream_that_cannot_start_again_says_so():
    stream = Stream(Once())
    assert len(list(tasks_of_stream(stream, size=2, drop_last=False, epoch=0, batch=0))) == 1
    with pytest.raises(BadData, match=r"no samples in epoch 1; an iterable has to start again each time that iter\(\)"):
        list(tasks_of_stream(stream, size=2, drop_last=False, epoch=1, batch=0))


def test_what_is_built_here_is_built_one_at_a_time():
    made = []
    maker = Here(Recipe([1, 2, 3], made.append, len, 0))
    maker.prepare(tasks_in_order([(0, 1)], None, epoch=0, batch=0), start=(0, 0))  # does nothing
    batches = maker.build(tasks_in_order([(0, 1), (1, 3)], None, epoch=0, batch=0))
    assert next(batches) == 1
    assert made == [1]
