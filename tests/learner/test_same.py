import itertools

import numpy
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from stoker import InvalidArgument
from stoker.data import Loader
from stoker.distributed import World
from stoker.learner._same import check_same, looked_at


class Two(World):
    def __init__(self, theirs):
        super().__init__(0, 2)
        object.__setattr__(self, "group", theirs)

    def gathered(self, value):
        return [value, self.group]


def test_alone_nothing_is_asked():
    check_same(World(), lambda: pytest.fail("asked"))


def test_what_differs_is_told_with_both_values():
    check_same(Two({"lr": "0.1"}), lambda: {"lr": 0.1})
    with pytest.raises(InvalidArgument) as error:
        check_same(Two({"lr": "0.1", "valid": "x" * 300}), lambda: {"lr": 0.2, "keep": "best"})
    assert str(error.value) == (
        "rank 1 is at another training than rank 0\n  lr: 0.1 there, 0.2 here\n  keep: nothing there, best here\n"
        f"  valid: {'x' * 200}… there, nothing here\n"
        "Every process runs the same script on the same data; stoker gives each its share of it"
    )


def looked(source, **settings):
    return looked_at(Loader(source, **{"batch_size": 2, **settings}))


def columns(change=None, dtype=torch.float32):
    x = torch.arange(9).to(dtype)
    if change is not None:
        x[change] = 100
    return x, torch.zeros(9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_first_middle_and_last_sample_count(dtype):
    whole = looked(columns(dtype=dtype))
    assert whole is not None and whole == looked(columns(dtype=dtype))
    assert all(looked(columns(change, dtype)) != whole for change in (0, 4, 8))


def test_any_holder_is_looked_at_before_its_transform():
    samples = [{"text": "a", "length": 1}, {"text": "b", "length": 2}]
    assert looked(samples) == looked(list(samples)) != looked(samples[::-1])
    assert looked(samples, shuffle=3) == looked(samples)
    assert looked(numpy.arange(4)) != looked(numpy.arange(4)[::-1].copy())
    assert looked(columns(), transform=lambda x, y: pytest.fail("asked")) == looked(columns())
    assert looked([object(), object()], batcher=list) is not None  # only which kind it is


class Drawn(Dataset):
    def __init__(self, draw):
        self.draw = draw

    def __len__(self):
        return 3

    def __getitem__(self, number):
        return self.draw()


class Stream(IterableDataset):
    def __iter__(self):
        return iter([1])


def test_what_would_say_nothing_is_left_out():
    before = torch.get_rng_state()
    assert looked(Drawn(lambda: torch.rand(2))) == looked(Drawn(lambda: torch.rand(2)))
    assert torch.equal(torch.get_rng_state(), before)
    count = itertools.count()
    assert looked(Drawn(lambda: next(count))) is None
    assert looked(Drawn(lambda: 1 / 0)) is None
    assert looked(Stream()) is None
    assert looked([1, 2, 3], transform=float, workers=1) is None
    assert looked_at(Loader(torch.utils.data.DataLoader([1, 2, 3]))) is None
