"""A request of one rank is acted on by all ranks after the same batch."""

import pytest

from stoker.distributed import Agreement, World, join

from .processes import run


def answer(**requests):
    return {"stop": None, "interrupt": None, "terminated": None, "save": None, "warnings": []} | requests


def train(rank, size, reduced=()):
    """The answers after each of eight batches, and at two ends; gradients of some batches take the flag along."""
    world = join()
    agreement = Agreement(world)
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
    found = []
    for number, each in enumerate(requests):
        if number in reduced:
            agreement.flag.receive(world.any(agreement.flag.own))
        found.append(agreement.exchange(each))
    ends = [agreement.exchange({"interrupt": f"rank {rank}"}, wait=True), agreement.exchange({}, wait=True)]
    agreement.exchange({"stop": "handed in" if rank == size - 1 else None, "warnings": ["x"]})
    ends += [
        agreement.exchange({"stop": f"settled {rank}", "save": "now", "warnings": ["y"]}, wait=True),
        agreement.exchange({}, wait=True),
    ]
    return found, ends


@pytest.mark.parametrize("reduced", [(), range(8), (0, 1, 3, 4, 7)])
def test_all_ranks_get_the_same_answer_after_the_same_batch(reduced):
    size, last = 3, 2
    expected = [None] * 8
    expected[2] = answer(stop="")
    expected[4] = answer(save="late", terminated=True, warnings=[(0, "first"), (last, "a"), (last, "b")])
    expected[6] = answer(save="early", warnings=[(last, f"of {last}")])
    warnings = [(rank, text) for text in ("x", "y") for rank in range(size)]
    ends = [answer(interrupt="rank 0"), None, answer(stop="handed in", save="now", warnings=warnings), None]
    for found in run(train, size, reduced):
        assert found == (expected, ends)


def train_with_few_exchanges(rank, size):
    agreement = Agreement(join(), every=3)
    requests = [{} for _ in range(12)]
    if rank == 1:
        requests[0] = {"stop": "first", "warnings": ["a"]}
        requests[1] = {"stop": "second", "warnings": ["b"]}
        requests[10] = {"save": "late"}
    return (
        [agreement.exchange(each) for each in requests],
        agreement.exchange({}, wait=True),
        agreement.exchange({}, wait=True),
    )


def test_a_large_world_exchanges_requests_after_several_batches():
    expected = [None] * 12
    expected[5] = answer(stop="first", warnings=[(1, "a"), (1, "b")])
    assert run(train_with_few_exchanges, 2) == [(expected, answer(save="late"), None)] * 2


def test_one_process_gets_its_answer_at_once():
    agreement = Agreement(World())
    assert agreement.exchange({}) is None
    assert agreement.exchange({"save": "requested"}) == answer(save="requested")
    assert agreement.exchange({"stop": None, "terminated": False, "warnings": []}) is None
    assert agreement.exchange({"warnings": ["x"]}, wait=True) == answer(warnings=[(0, "x")])
    assert agreement.exchange({}, wait=True) is None
