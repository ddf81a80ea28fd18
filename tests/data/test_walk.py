import pytest
import torch

from stoker.data import Loader, RowSelection
from stoker.errors import InvalidArgument


def test_a_walk_knows_where_it_is():
    walk = Loader(torch.arange(10), batch_size=4).at(epoch=3, batch=1)
    assert (walk.epoch, walk.batch, len(walk)) == (3, 1, 2)


def test_a_walk_can_be_walked_again_in_every_way():
    walk = Loader(torch.arange(10), batch_size=4, shuffle=0).at(epoch=1)
    for way in (list, lambda walk: list(walk.raw()), lambda walk: [pick.batch() for pick in walk.picks()]):
        first, second = way(walk), way(walk)
        assert [batch.tolist() for batch in first] == [batch.tolist() for batch in second]
        assert len(first) == 3


def test_picks_come_one_by_one():
    picks = Loader(torch.arange(10), batch_size=4).at(epoch=0).picks()
    assert isinstance(next(picks), RowSelection)
    assert [pick.numbers.tolist() for pick in picks] == [[4, 5, 6, 7], [8, 9]]


def test_only_columns_have_picks():
    with pytest.raises(InvalidArgument, match="only columns in memory have rows to pick, without a transform"):
        Loader([1, 2], batch_size=2).at(epoch=0).picks()
