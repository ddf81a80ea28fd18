"""Before they train, ranks compare a checksum of some samples; tests/distributed covers the rest with processes."""

import itertools

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from stoker import InvalidArgument, callbacks
from stoker.data import Loader
from stoker.distributed import World
from stoker.learner._ranks import callbacks_of_rank, check_ranks_agree, checksum_samples


class Two(World):
    """Rank 0 of two; the other one answers with `theirs`."""

    def __init__(self, theirs):
        super().__init__(0, 2)
        object.__setattr__(self, "group", theirs)

    def all_gather(self, value):
        return [value, self.group]


def test_a_difference_between_ranks_is_an_error_with_both_values():
    check_ranks_agree(World(), lambda: pytest.fail("one process has no other rank to compare with"))
    check_ranks_agree(Two({"lr": "0.1"}), lambda: {"lr": 0.1})
    with pytest.raises(InvalidArgument) as error:
        check_ranks_agree(Two({"lr": "0.1", "valid": "x" * 300}), lambda: {"lr": 0.2, "keep": "best"})
    assert str(error.value) == (
        "rank 1 runs another training than rank 0\n  lr: 0.1 there, 0.2 here\n  keep: nothing there, best here\n"
        f"  valid: {'x' * 200}… there, nothing here\n"
        "Every process has to run the same script on the same data; stoker gives each its share"
    )


def test_callbacks_that_write_metrics_run_on_rank_0_only(tmp_path):
    given = [callbacks.EarlyStopping(), callbacks.CSV(tmp_path / "metrics.csv")]
    assert callbacks_of_rank(given, World()) == given
    assert callbacks_of_rank(given, World(rank=1, size=2)) == given[:1]


def checksum(source, **settings):
    return checksum_samples(Loader(source, **{"batch_size": 2, **settings}))


def columns(change=None, dtype=torch.float32):
    x = torch.arange(9).to(dtype)
    if change is not None:
        x[change] = 100
    return x, torch.zeros(9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_the_first_middle_and_last_sample_count(dtype):
    whole = checksum(columns(dtype=dtype))
    assert whole is not None and whole == checksum(columns(dtype=dtype))
    assert all(checksum(columns(change, dtype)) != whole for change in (0, 4, 8))


def test_samples_of_any_type_count_before_their_transform():
    samples = [{"text": "a", "length": 1}, {"text": "b", "length": 2}]
    assert checksum(samples) == checksum(list(samples)) != checksum(samples[::-1])
    assert checksum(samples, shuffle=3) == checksum(samples)
    assert checksum(numpy.arange(4)) != checksum(numpy.arange(4)[::-1].copy())
    assert checksum(columns(), transform=lambda x, y: pytest.fail("called")) == checksum(columns())
    assert checksum([object(), object()], batcher=list) is not None  # by type


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


def test_samples_that_cannot_be_compared_have_no_checksum():
    before = torch.get_rng_state()
    assert checksum(Drawn(lambda: torch.rand(2))) == checksum(Drawn(lambda: torch.rand(2)))
    assert torch.equal(torch.get_rng_state(), before)
    count = itertools.count()
    assert checksum(Drawn(lambda: next(count))) is None
    assert checksum(Drawn(lambda: 1 / 0)) is None
    assert checksum(Stream()) is None
    assert checksum([1, 2, 3], transform=float, workers=1) is None
    assert checksum_samples(Loader(DataLoader([1, 2, 3]))) is None
