"""Ranks of one start meet in a place of their own, whatever earlier starts have left in the store."""

from datetime import timedelta
from threading import Thread

import pytest
import torch.distributed as dist

from stoker.distributed._join import _agree_on_prefix as meeting_place
from stoker.errors import PeerFailed

WAIT = timedelta(seconds=10)


def met(store, size, *, late=()):
    """Where each rank of a start comes to; the ranks in `late` begin when the others wait already."""
    found = {}

    def come(rank):
        found[rank] = meeting_place(store, rank, size, WAIT)

    order = [*(rank for rank in range(size) if rank not in late), *late]
    threads = [Thread(target=come, args=(rank,)) for rank in order]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[rank] for rank in range(size)]


@pytest.mark.parametrize("late", [(), (0,), (1, 2)], ids=["together", "first rank late", "others late"])
def test_every_start_has_a_place_of_its_own(late):
    store = dist.HashStore()
    places = [met(store, size, late=late if size == 3 else ()) for size in (3, 2, 3, 1, 4)]
    assert all(len(set(each)) == 1 for each in places)
    assert len({each[0] for each in places}) == len(places)


def test_who_finds_only_an_earlier_start_waits_for_its_own():
    store = dist.HashStore()
    met(store, 2)
    with pytest.raises(PeerFailed, match="the other ranks did not come"):
        meeting_place(store, 1, 2, timedelta(seconds=0.2))
    assert len(set(met(store, 2))) == 1
    with pytest.raises(PeerFailed, match="the other ranks did not come"):
        meeting_place(store, 0, 2, timedelta(seconds=0.2))
