import pytest
import torch

from stoker import BadData
from stoker.data import Loader
from stoker.distributed import World
from stoker.loop._in_step import in_step


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(torch.arange(3))


class Two(World):
    """Two ranks, of which the other one has so many batches."""

    def __init__(self, theirs):
        super().__init__(0, 2)
        object.__setattr__(self, "local_size", theirs)  # frozen, and without room for more

    def any(self, flag):
        object.__setattr__(self, "local_rank", self.local_rank + 1)
        return flag or self.local_rank > self.local_size

    def gathered(self, value):
        return [value, self.local_rank > self.local_size]


def test_what_has_a_length_and_what_is_alone_is_walked_as_it_is():
    batches = [1, 2]
    assert in_step(Loader(Stream(), batch_size=1), batches, World()) is batches
    assert in_step(Loader([1, 2], batch_size=1), batches, Two(2)) is batches


def test_a_stream_ends_on_all_ranks_or_is_refused():
    stream = Loader(Stream(), batch_size=1)
    assert [int(batch) for batch in in_step(stream, stream, Two(3))] == [0, 1, 2]
    with pytest.raises(BadData, match="rank 1's stream ended after 2 batches, and rank 0's goes on: every rank reads"):
        list(in_step(stream, stream, Two(2)))
    with pytest.raises(BadData, match="rank 0's stream ended after 3 batches, and rank 1's goes on"):
        list(in_step(stream, stream, Two(4)))
