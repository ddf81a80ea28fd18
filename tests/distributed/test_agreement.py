"""A request of one rank is acted on by all ranks after the same batch."""

import pytest

from stoker.distributed import Agreement, World, join
from stoker.errors import InvalidArgument

from .processes import run


def answer(**requests):
    return {"stop": None, "leave": None, "terminated": None, "save": None, "warnings": []} | requests


def train(rank, size):
    """The answers after each of eight batches, and at two ends of the training."""
    agreement = Agreement(join())
    requests = [{} for _ in range(8)]
    if rank == size - 1:
        requests[1] = {"stop": "", "terminated": False, "warnings": []}  # a reason may be empty
        requests[3] = {"save": "late", "warnings": ["a", "b"]}
        requests[5] = {"warnings": [f"of {rank}"]}
    if rank == 0:
        requests[3] = {"save": None, "terminated": True, "warnings": ["first"]}
        requests[5] = {"save": "early"}
    else:
        requests[5] = {"save": f"rank {rank}"} | requests[5]
    found = [agreement.hand_in(each) for each in requests]
    ends = [agreement.settle({"leave": f"rank {rank}"}), agreement.settle({})]
    agreement.hand_in({"stop": "handed in" if rank == size - 1 else None, "warnings": ["x"]})
    ends += [agreement.settle({"stop": f"settled {rank}", "save": "now", "warnings": ["y"]}), agreement.settle({})]
    return found, ends


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.soak)])
def test_all_ranks_get_the_same_answer_after_the_same_batch(size):
    last = size - 1
    expected = [None] * 8
    expected[2] = answer(stop="")
    expected[4] = answer(save="late", terminated=True, warnings=[(0, "first"), (last, "a"), (last, "b")])
    expected[6] = answer(save="early", warnings=[(last, f"of {last}")])
    warnings = [(rank, text) for text in ("x", "y") for rank in range(size)]
    ends = [answer(leave="rank 0"), None, answer(stop="handed in", save="now", warnings=warnings), None]
    for found in run(train, size):
        assert found == (expected, ends)


def train_with_few_exchanges(rank, size):
    agreement = Agreement(join(), every=3)
    requests = [{} for _ in range(12)]
    if rank == 1:
        requests[0] = {"stop": "first", "warnings": ["a"]}
        requests[1] = {"stop": "second", "warnings": ["b"]}
        requests[10] = {"save": "late"}
    return [agreement.hand_in(each) for each in requests], agreement.settle({}), agreement.settle({})


def test_a_large_world_exchanges_requests_after_several_batches():
    expected = [None] * 12
    expected[5] = answer(stop="first", warnings=[(1, "a"), (1, "b")])
    assert run(train_with_few_exchanges, 2) == [(expected, answer(save="late"), None)] * 2


def test_one_process_gets_its_answer_at_once():
    agreement = Agreement(World())
    assert agreement.hand_in({}) is None
    assert agreement.hand_in({"save": "requested"}) == answer(save="requested")
    assert agreement.hand_in({"stop": None, "terminated": False, "warnings": []}) is None
    assert agreement.settle({"warnings": ["x"]}) == answer(warnings=[(0, "x")])
    assert agreement.settle({}) is None


def test_error_for_an_unknown_request():
    text = "the requests of ranks are stop, leave, terminated, save, warnings; got 'halt'"
    with pytest.raises(InvalidArgument, match=text):
        Agreement(World()).hand_in({"halt": "now"})
