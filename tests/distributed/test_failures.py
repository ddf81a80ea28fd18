"""A failure of one rank is a failure of all: the others name it, quickly, with its text."""

import re
from datetime import timedelta

import pytest
import torch

from stoker.distributed import join, leave, propagate_failures
from stoker.errors import PeerFailed

from .processes import launched


def fail_on(rank, size, failing):
    """What this rank raises when another one fails in the middle of a fit."""
    here = join("cpu")
    try:
        with propagate_failures(here):
            here.barrier()
            if rank == failing:
                raise ValueError("sample 7 is bad")
            here.sum(torch.ones(3))
    except (PeerFailed, ValueError) as error:
        text = f"{type(error).__name__}: {error}"
    leave()
    return text


def test_the_other_ranks_name_the_rank_that_failed():
    found = launched(fail_on, 3, 0)
    assert found.pop(0) == "ValueError: sample 7 is bad"
    expected = "PeerFailed: rank 0 has failed: ValueError: sample 7 is bad; its traceback is in its own output"
    assert found == [expected] * 2


def fail_together_and_continue(rank, size):
    here = join("cpu")
    for _ in range(2):
        with pytest.raises(KeyError), propagate_failures(here):
            raise KeyError("on all ranks")
    assert here.sum(torch.ones(())) == size
    text = None
    try:
        with propagate_failures(here):
            here.barrier()
            if rank == 1:
                leave()
            else:
                here.barrier()
    except PeerFailed as error:
        text = str(error)
    return text


def test_ranks_continue_after_a_failure_that_all_of_them_caught():
    text, nothing = launched(fail_together_and_continue, 2)
    assert nothing is None
    # Which words the system uses depends on what was still in flight.
    lost = r"the connection to the other ranks was lost \((Read error \[\S+: )?Connection (closed|reset) by peer"
    assert re.match(lost, text)
    assert "GLHF" not in text
    assert text.endswith("hangs, or its network is down; the output of the rank that ended first says more")


def wait_in_vain(rank, size):
    join("cpu")
    here = join("cpu", timeout=0.5)  # a later call can change it
    store = torch.distributed.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["given up"], timedelta(seconds=100))
        return None
    try:
        with propagate_failures(here):
            here.barrier()
    except PeerFailed as error:
        text = str(error)
    store.set("given up", "yes")
    return text


def test_a_rank_that_hangs_is_reported_after_the_timeout():
    text, nothing = launched(wait_in_vain, 2)
    assert nothing is None
    assert "was lost (" in text
    assert "timeout" in text or "Timed out" in text, text


def catch_and_continue(rank, size):
    """Rank 1 fails and catches it: its next message would meet another collective of the other ranks."""
    here = join("cpu", timeout=2)
    texts = []
    for fails in (True, False, False):
        try:
            with propagate_failures(here), propagate_failures(here):  # nested, as in a fit
                here.barrier()
                if fails and rank == 1:
                    raise ValueError("sample 7 is bad")
                here.sum(torch.ones(3))
        except (PeerFailed, ValueError) as error:
            texts.append(f"{type(error).__name__}: {error}")
    leave()
    with propagate_failures(join("cpu")):  # a new start
        return texts, float(join("cpu").sum(torch.ones(())))


def test_ranks_can_not_continue_after_a_failure_that_only_one_caught():
    (first, one), (second, two), (third, _) = launched(catch_and_continue, 3)
    assert one == two == 3
    known = "rank 1 has failed: ValueError: sample 7 is bad; its traceback is in its own output"
    end = "That error was caught, but the ranks are at different places now. End all processes and start again"
    assert first[0] == third[0] == f"PeerFailed: {known}"
    assert second[0] == "ValueError: sample 7 is bad"
    for after in (*first[1:], *third[1:]):
        assert after.startswith(f"PeerFailed: the ranks can't continue together: {known}. {end}")
    own = "this rank has failed, and others have not"
    for after in second[1:]:
        assert after.startswith(f"PeerFailed: the ranks can't continue together: {own}. {end}")
    assert [len(each) for each in (first, second, third)] == [3, 3, 3]


ERRORS = {
    "network": torch.distributed.DistNetworkError("gone"),
    "network without a text": torch.distributed.DistNetworkError(),
    "NCCL": torch.distributed.DistBackendError("NCCL error"),
    "gloo": RuntimeError("[/x/gloo/transport/tcp/pair.cc:537] Read error [::1]:9. This is typically so"),
    "gloo's timeout": RuntimeError("Application timeout caused pair closure"),
    "gloo in DDP": RuntimeError(
        "Got the following error when running the callback: RuntimeError: "
        "Application timeout caused pair closure\n\nAt: ..."
    ),
    "memory": RuntimeError("CUDA out of memory"),
    "a database": RuntimeError("Timed out while reading my database"),
    "a file": RuntimeError("Application timeout: [x.cc:5]"),
    "another class": ValueError("Connection reset by peer"),
}


def raise_each(rank, size):
    """How each error is reported, including one that user code raises for a lost connection."""
    found = {}
    for name, error in ERRORS.items():
        with pytest.raises((PeerFailed, RuntimeError, ValueError)) as raised, propagate_failures(join("cpu")):
            raise error
        found[name] = str(raised.value) if isinstance(raised.value, PeerFailed) else None
        leave()
    here = join("cpu", timeout=0.5)
    with pytest.raises(PeerFailed, match="^agreed$"), propagate_failures(here):
        raise PeerFailed("agreed")  # by all ranks, so they may continue
    with propagate_failures(here):
        here.barrier()
    with pytest.raises(PeerFailed, match="^lost while saving$"), propagate_failures(here):
        raise PeerFailed("lost while saving") from ERRORS["gloo"]
    with pytest.raises(PeerFailed, match="continue together: lost while saving. That"), propagate_failures(here):
        pass
    return found


def test_lost_connections_are_told_from_other_errors():
    for found in launched(raise_each, 2):
        lost = {name: text.partition("(")[2].partition("):")[0] for name, text in found.items() if text is not None}
        assert lost == {
            "network": "gone",
            "network without a text": "DistNetworkError",
            "NCCL": "NCCL error",
            "gloo": "Read error [::1]:9",
            "gloo's timeout": "Application timeout caused pair closure",
            "gloo in DDP": "Application timeout caused pair closure",
        }
