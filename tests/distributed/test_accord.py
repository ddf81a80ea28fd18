"""A wish of one rank is acted on by all after the same batch."""

import pytest

from stoker.distributed import Agreement, World, joined
from stoker.errors import InvalidArgument

from .processes import run


def heard(**wishes):
    return {"stop": None, "leave": None, "terminated": None, "save": None, "warnings": []} | wishes


def train(rank, size):
    """Eight batches; what each rank hears after each of them."""
    accord = Agreement(joined())
    wishes = [{} for _ in range(8)]
    if rank == size - 1:
        wishes[1] = {"stop": "", "terminated": False, "warnings": []}  # a reason may be empty
        wishes[3] = {"save": "late", "warnings": ["a", "b"]}
        wishes[5] = {"warnings": [f"of {rank}"]}
    if rank == 0:
        wishes[3] = {"save": None, "terminated": True, "warnings": ["first"]}
        wishes[5] = {"save": "early"}
    if rank:
        wishes[5] = {"save": f"rank {rank}"} | wishes[5]
    found = [accord.hand_in(each) for each in wishes]
    ends = [accord.settle({"leave": f"rank {rank}"})]
    ends.append(accord.settle({}))
    accord.hand_in({"stop": "handed in" if rank == size - 1 else None, "warnings": ["x"]})
    ends.append(accord.settle({"stop": f"settled {rank}", "save": "now", "warnings": ["y"]}))
    ends.append(accord.settle({}))
    return found, ends


@pytest.mark.parametrize("size", [2, 3])
def test_all_ranks_hear_the_same_after_the_same_batch(size):
    last = size - 1
    expected = [None] * 8
    expected[2] = heard(stop="")
    expected[4] = heard(save="late", terminated=True, warnings=[(0, "first"), (last, "a"), (last, "b")])
    expected[6] = heard(save="early", warnings=[(last, f"of {last}")])
    ends = [
        heard(leave="rank 0"),
        None,
        heard(
            stop="handed in",
            save="now",
            warnings=[(rank, "x") for rank in range(size)] + [(rank, "y") for rank in range(size)],
        ),
        None,
    ]
    for found in run(train, size):
        assert found == (expected, ends)


def train_with_few_exchanges(rank, size):
    accord = Agreement(joined(), every=3)
    wishes = [{} for _ in range(12)]
    if rank == 1:
        wishes[0] = {"stop": "first", "warnings": ["a"]}
        wishes[1] = {"stop": "second", "warnings": ["b"]}
        wishes[10] = {"save": "late"}
    return [accord.hand_in(each) for each in wishes], accord.settle({}), accord.settle({})


def test_a_large_world_exchanges_after_several_batches():
    expected = [None] * 12
    expected[5] = heard(stop="first", warnings=[(1, "a"), (1, "b")])
    assert run(train_with_few_exchanges, 2) == [(expected, heard(save="late"), None)] * 2
    assert [Agreement(World(0, size))._every for size in (1, 2, 127, 128, 1024)] == [1, 1, 1, 2, 16]


def test_alone_a_wish_is_heard_at_once():
    accord = Agreement(World())
    assert accord.hand_in({}) is None
    assert accord.hand_in({"save": "asked for"}) == heard(save="asked for")
    assert accord.hand_in({"stop": None, "terminated": False, "warnings": []}) is None
    assert accord.settle({"warnings": ["x"]}) == heard(warnings=[(0, "x")])
    assert accord.settle({}) is None


def test_a_wish_that_nobody_knows():
    with pytest.raises(
        InvalidArgument, match="the requests of ranks are stop, leave, terminated, save, said, not on 'halt'"
    ):
        Agreement(World()).hand_in({"halt": "now"})
