"""One outcome for all ranks, as one of them sees it: the other's answers are made up. Real ranks: tests/distributed."""

import errno

import pytest

from stoker.checkpoint._agree import Elsewhere, agreed, apart, by_first, said
from stoker.distributed import World
from stoker.errors import PeerFailed


class Two(World):
    """Rank 0 of two; the other one has the same answer, or failed with a text, or is gone."""

    def __init__(self, failure=None, gone=False):
        super().__init__(size=2)
        object.__setattr__(self, "other", (failure, gone))

    def gathered(self, value):
        failure, gone = self.other
        if gone:
            raise RuntimeError("[gloo/transport/tcp/pair.cc] Connection closed by peer")
        return [value, (value[0] if failure is None else None, failure)]


def broken():
    raise ValueError("odd")


def test_alone_it_is_the_work_itself():
    assert agreed(World(), lambda: 3) == [3] and by_first(World(), lambda: 3) == 3
    with pytest.raises(ValueError, match="^odd$"):
        agreed(World(), broken)
    assert apart(World()) == World()


def test_every_rank_has_all_answers():
    assert agreed(Two(), lambda: 3) == [3, 3] and by_first(Two(), lambda: 3) == 3


def test_who_has_failed_raises_its_own_and_the_others_its_words():
    with pytest.raises(ValueError, match="^odd$"):
        agreed(Two(), broken)
    with pytest.raises(Elsewhere, match=r"^rank 1: ValueError: odd\. See to that$"):
        agreed(Two(said(ValueError("odd"))), lambda: 3)


def test_a_rank_that_is_gone_is_no_failure_of_the_disk():
    with pytest.raises(PeerFailed, match="^the connection to the other ranks was lost while they saved") as failed:
        agreed(Two(gone=True), lambda: 3)
    assert not isinstance(failed.value, Elsewhere)


def test_what_is_said_has_an_advice():
    assert said(OSError(errno.ENOSPC, "full")) == "OSError: [Errno 28] full. Make room there"
    assert said(OSError(errno.EROFS, "no")) == "OSError: [Errno 30] no. Make it writable"
    assert said(Elsewhere("rank 1: ValueError: odd. See to that")) == "rank 1: ValueError: odd. See to that"
