"""A request of one rank is acted on by all ranks after the same batch."""

import time

from stoker.distributed import Agreement, World, join

from .processes import run


def answer(**requests):
    return {"stop": None, "interrupt": None, "terminated": None, "save": None, "warnings": []} | requests


def train(rank, size):
    """The answers after each of eight batches, and at two ends."""
    world = join()
    agreement = Agreement(world, every_batch=rank == 0)
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
    found = [agreement.exchange(each) for each in requests]
    ends = [agreement.exchange({"interrupt": f"rank {rank}"}, wait=True), agreement.exchange({}, wait=True)]
    agreement.exchange({"stop": "handed in" if rank == size - 1 else None, "warnings": ["x"]})
    ends += [
        agreement.exchange({"stop": f"settled {rank}", "save": "now", "warnings": ["y"]}, wait=True),
        agreement.exchange({}, wait=True),
    ]
    return found, ends


def test_all_ranks_get_the_same_answer_after_the_same_batch():
    size, last = 3, 2
    expected = [None] * 8
    expected[2] = answer(stop="")
    expected[4] = answer(save="late", terminated=True, warnings=[(0, "first"), (last, "a"), (last, "b")])
    expected[6] = answer(save="early", warnings=[(last, f"of {last}")])
    warnings = [(rank, text) for text in ("x", "y") for rank in range(size)]
    ends = [answer(interrupt="rank 0"), None, answer(stop="handed in", save="now", warnings=warnings), None]
    for found in run(train, size):
        assert found == (expected, ends)


def train_with_short_batches(rank, size):
    """A batch takes 5 ms on rank 0 and 1 ms on rank 1; those of the validation take 1 s."""
    agreement, now = Agreement(join()), 0.0
    time.monotonic = lambda: now
    found = {}
    for number in range(40):
        kind = "train" if number < 30 else "valid"
        now += 1.0 if kind == "valid" else 0.001 if rank else 0.005
        requests = {"save": f"at {number}"} if rank == 1 and number in (0, 5, 31) else {}
        if (agreed := agreement.exchange(requests, kind=kind)) is not None:
            found[number] = agreed
    return found, agreement.exchange({"warnings": ["x"]}, wait=True), agreement.exchange({}, wait=True)


def test_requests_are_exchanged_after_as_many_short_batches_as_the_slowest_rank_has_in_20_ms():
    # The first exchanges come after every batch; from the third on, at batch 2, they come after four.
    found = {1: answer(save="at 0"), 10: answer(save="at 5"), 32: answer(save="at 31")}
    warnings = [(rank, "x") for rank in range(2)]
    assert run(train_with_short_batches, 2) == [(found, answer(warnings=warnings), None)] * 2


def train_with_hooks_on_one_rank(rank, size):
    agreement = Agreement(join(), every_batch=rank == 1)
    requests = [{"stop": f"at {number}"} if rank == 0 and number in (3, 20) else {} for number in range(24)]
    return [number for number, each in enumerate(requests) if agreement.exchange(each) is not None]


def test_one_rank_can_have_requests_exchanged_after_every_batch():
    assert run(train_with_hooks_on_one_rank, 2) == [[4, 21]] * 2


def test_one_process_gets_its_answer_at_once():
    agreement = Agreement(World())
    assert agreement.exchange({}) is None
    assert agreement.exchange({"save": "requested"}) == answer(save="requested")
    assert agreement.exchange({"stop": None, "terminated": False, "warnings": []}) is None
    assert agreement.exchange({"warnings": ["x"]}, wait=True) == answer(warnings=[(0, "x")])
    assert agreement.exchange({}, wait=True) is None
