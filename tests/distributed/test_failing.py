"""One rank's failure is that of all: the others name it, quickly, and say what it said."""

import os
import subprocess
import sys
from datetime import timedelta

import pytest
import torch

from stoker.distributed import World, failing, joined, left
from stoker.distributed._failing import _is_lost, _unknown
from stoker.errors import PeerFailed

from .processes import launched


def fail_on(rank, size, who):
    """What this rank raises when another fails in the middle of a fit."""
    here = joined("cpu")
    try:
        with failing(here):
            here.barrier()
            if rank == who:
                raise ValueError("sample 7 is bad")
            here.sum(torch.ones(3))
    except (PeerFailed, ValueError) as error:
        told = f"{type(error).__name__}: {error}"
    left()
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
        with pytest.raises(KeyError), failing(here):
            raise KeyError("alike")
    assert here.sum(torch.ones(())) == size
    told = None
    try:
        with failing(here):
            here.barrier()
            if rank == 1:
                left()
            else:
                here.barrier()
    except PeerFailed as error:
        told = str(error)
    return told


def test_a_failure_that_was_caught_is_over():
    told, nothing = launched(fail_alike_and_go_on, 2)
    assert nothing is None
    assert (
        told.startswith("the connection to the other ranks was lost (Connection closed by peer") and "GLHF" not in told
    )
    assert told.endswith("is stuck, or its network is gone; the output of the rank that ended first says more")


def wait_in_vain(rank, size):
    here = joined("cpu", timeout=0.5)
    store = torch.distributed.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["given up"], timedelta(seconds=100))
        return None
    try:
        with failing(here):
            here.barrier()
    except PeerFailed as error:
        told = str(error)
    store.set("given up", "yes")
    return told


def test_a_rank_that_does_not_come():
    told, nothing = launched(wait_in_vain, 2)
    assert nothing is None and "was lost (" in told
    assert "timeout" in told or "Timed out" in told, told


def test_which_errors_are_lost_connections():
    network = torch.distributed.DistNetworkError("gone")
    assert _is_lost(network) and _is_lost(torch.distributed.DistBackendError("NCCL error"))
    assert _is_lost(RuntimeError("[/x/gloo/transport/tcp/pair.cc:537] Read error [::1]:9: Connection reset by peer"))
    assert not _is_lost(RuntimeError("CUDA out of memory")) and not _is_lost(ValueError("Timed out"))
    assert "was lost (Read error [::1]:9)" in _unknown(
        RuntimeError("[/x.cc:5] Read error [::1]:9. This is typically so")
    )
    assert "was lost (DistNetworkError)" in _unknown(torch.distributed.DistNetworkError())


def test_alone_nothing_is_changed():
    with pytest.raises(ValueError, match="as it is"), failing(World()):
        raise ValueError("as it is")


FAILS = """
import os, torch
from stoker.distributed import failing, joined
here = joined("cpu")
with failing(here):
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
