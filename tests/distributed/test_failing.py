"""One rank's failure is that of all: the others name it, quickly, and say what it said."""

import os
import re
import subprocess
import sys
from datetime import timedelta

import pytest
import torch

from stoker.distributed import World, joined, leave, propagate_failures
from stoker.distributed._failures import _describe_lost_connection as _unknown
from stoker.distributed._failures import _is_lost_connection as _is_lost
from stoker.errors import PeerFailed

from .processes import launched


def fail_on(rank, size, who):
    """What this rank raises when another fails in the middle of a fit."""
    here = joined("cpu")
    try:
        with propagate_failures(here):
            here.barrier()
            if rank == who:
                raise ValueError("sample 7 is bad")
            here.sum(torch.ones(3))
    except (PeerFailed, ValueError) as error:
        told = f"{type(error).__name__}: {error}"
    leave()
    return told


@pytest.mark.parametrize("who", [0, 2])
def test_the_others_say_which_rank_it_was(who):
    found = launched(fail_on, 3, who)
    assert found.pop(who) == "ValueError: sample 7 is bad"
    expected = f"PeerFailed: rank {who} has failed: ValueError: sample 7 is bad; its traceback is in its own output"
    assert found == [expected] * 2


def fail_alike_and_go_on(rank, size):
    """A failure of all ranks, which the user catches, is no reason that a later one has."""
    here = joined("cpu")
    for _ in range(2):
        with pytest.raises(KeyError), propagate_failures(here):
            raise KeyError("alike")
    assert here.sum(torch.ones(())) == size
    told = None
    try:
        with propagate_failures(here):
            here.barrier()
            if rank == 1:
                leave()
            else:
                here.barrier()
    except PeerFailed as error:
        told = str(error)
    return told


def test_a_failure_that_was_caught_is_over():
    told, nothing = launched(fail_alike_and_go_on, 2)
    assert nothing is None
    # The system's word for it depends on what was still on its way.
    lost = r"the connection to the other ranks was lost \((Read error \[\S+: )?Connection (closed|reset) by peer"
    assert re.match(lost, told) and "GLHF" not in told
    assert told.endswith("is stuck, or its network is gone; the output of the rank that ended first says more")


def wait_in_vain(rank, size):
    here = joined("cpu", timeout=0.5)
    store = torch.distributed.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["given up"], timedelta(seconds=100))
        return None
    try:
        with propagate_failures(here):
            here.barrier()
    except PeerFailed as error:
        told = str(error)
    store.set("given up", "yes")
    return told


def test_a_rank_that_does_not_come():
    told, nothing = launched(wait_in_vain, 2)
    assert nothing is None and "was lost (" in told
    assert "timeout" in told or "Timed out" in told, told


def catch_and_go_on(rank, size):
    """Rank 1 fails alone and catches it: what all of them do next would meet what the others still wait in."""
    here = joined("cpu", timeout=2)
    told = []
    for fails in (True, False, False):
        try:
            with propagate_failures(here), propagate_failures(here):  # as a fit does
                here.barrier()
                if fails and rank == 1:
                    raise ValueError("sample 7 is bad")
                here.sum(torch.ones(3))
        except (PeerFailed, ValueError) as error:
            told.append(f"{type(error).__name__}: {error}")
    leave()
    with propagate_failures(joined("cpu")):  # anew
        return told, float(joined("cpu").sum(torch.ones(())))


def test_after_a_failure_of_one_rank_that_was_caught_nothing_goes_on():
    (first, one), (second, two), (third, _) = launched(catch_and_go_on, 3)
    assert one == two == 3
    known = "rank 1 has failed: ValueError: sample 7 is bad; its traceback is in its own output"
    end = "That error was caught, but ranks are no longer at the same place. End all of them and start anew"
    assert first[0] == third[0] == f"PeerFailed: {known}" and second[0] == "ValueError: sample 7 is bad"
    for after in (*first[1:], *third[1:]):
        assert after.startswith(f"PeerFailed: the ranks can't continue together: {known}. {end}")
    for after in second[1:]:
        assert after.startswith(
            f"PeerFailed: the ranks can't continue together: this rank has failed, and others have not. {end}"
        )
    assert [len(each) for each in (first, second, third)] == [3, 3, 3]


def lose_and_agree(rank, size):
    """What others have made of a lost connection is one; what all have agreed on is a failure of all."""
    here = joined("cpu", timeout=0.5)
    with pytest.raises(PeerFailed, match="^agreed$"), propagate_failures(here):
        raise PeerFailed("agreed")
    with propagate_failures(here):
        here.barrier()
    with pytest.raises(PeerFailed) as told, propagate_failures(here):
        try:
            raise RuntimeError("[/x/gloo/transport/tcp/pair.cc:5] Connection closed by peer")
        except RuntimeError as error:
            raise PeerFailed("lost while they saved") from error
    with pytest.raises(PeerFailed, match="can't go on together: lost while they saved. That"), propagate_failures(here):
        pass
    return str(told.value)


def test_a_failure_of_another_rank_that_all_have_agreed_on_is_one_of_all():
    assert launched(lose_and_agree, 2) == ["lost while they saved"] * 2


def test_which_errors_are_lost_connections():
    network = torch.distributed.DistNetworkError("gone")
    assert _is_lost(network) and _is_lost(torch.distributed.DistBackendError("NCCL error"))
    assert _is_lost(RuntimeError("[/x/gloo/transport/tcp/pair.cc:537] Read error [::1]:9: Connection reset by peer"))
    assert not _is_lost(RuntimeError("CUDA out of memory")) and not _is_lost(ValueError("Timed out"))
    closed = "Application timeout caused pair closure"
    inside = RuntimeError(f"Got the following error when running the callback: RuntimeError: {closed}\n\nAt: ...")
    assert _is_lost(RuntimeError(closed)) and _is_lost(inside) and f"was lost ({closed})" in _unknown(inside)
    for own in ("Timed out while reading my database", "Connection reset by peer", "Application timeout: [x.cc:5]"):
        assert not _is_lost(RuntimeError(own))
    assert "was lost (Read error [::1]:9)" in _unknown(
        RuntimeError("[/x.cc:5] Read error [::1]:9. This is typically so")
    )
    assert "was lost (DistNetworkError)" in _unknown(torch.distributed.DistNetworkError())


def test_alone_nothing_is_changed():
    with pytest.raises(ValueError, match="as it is"), propagate_failures(World()):
        raise ValueError("as it is")


FAILS = """
import os, torch
from stoker.distributed import propagate_failures, joined
here = joined("cpu")
with propagate_failures(here):
    here.barrier()
    if here.rank == 1:
        raise ValueError("sample 7 is bad")
    here.sum(torch.ones(3))
"""


def test_under_torchrun_the_first_traceback_is_the_first_ones(tmp_path):
    (tmp_path / "fails.py").write_text(FAILS)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "fails.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 1
    first = done.stderr.index("[rank1]: ValueError: sample 7 is bad")
    assert (
        0
        < first
        < done.stderr.index("[rank0]: stoker.errors.PeerFailed: rank 1 has failed: ValueError: sample 7 is bad")
    )
