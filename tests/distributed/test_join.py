"""Joining by the environment or by the user's own group, and leaving without waiting for the dead."""

import os
import signal
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

from stoker.checkpoint._saver import _separate_group
from stoker.distributed import Parallel, World, data_world, gather_results, joined, leave, local_device, world
from stoker.errors import InvalidArgument, PeerFailed

from .processes import launched, run

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


@pytest.fixture
def environment(monkeypatch):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch.setenv


def test_without_an_environment_there_is_one(environment):
    assert world() == joined() == World()
    assert not dist.is_initialized()


def test_the_environment_says_who_this_is(environment):
    for name, value in zip(NAMES, ("5", "8", "1", "4"), strict=True):
        environment(name, value)
    assert world() == World(rank=5, size=8, local_rank=1, local_size=4)
    assert not world().is_first
    assert not dist.is_initialized()  # asking starts nothing


def test_one_process_under_torchrun_starts_nothing(environment):
    environment("RANK", "0")
    environment("WORLD_SIZE", "1")
    assert joined() == World()
    assert not dist.is_initialized()


def test_an_environment_that_makes_no_sense(environment):
    environment("WORLD_SIZE", "2")
    environment("RANK", "two")
    with pytest.raises(InvalidArgument, match="says RANK='two'; a launcher such as torchrun gives a number there"):
        world()
    environment("RANK", "2")
    with pytest.raises(InvalidArgument, match="says RANK=2 and WORLD_SIZE=2; ranks are 0 to 1"):
        world()


def test_each_rank_has_a_local_device_its_own(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    devices = [local_device(World(rank, 4, rank % 2)) for rank in range(4)]
    assert [str(device) for device in devices] == ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)  # each process sees only its own
    assert str(local_device(World(3, 4, 3))) == "cuda:0"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert str(local_device(World(3, 4, 3))) == "cpu"


def join_and_leave(rank, size):
    """By the environment, twice, and again after leaving."""
    sums = []
    for _ in range(2):
        here = joined("cpu", timeout=60)
        assert here is joined() is world()
        assert (here.rank, here.size, here.local_rank, here.local_size) == (rank, size, rank, size)
        assert here.control is not None and dist.get_backend(here.cpu_group()) == "gloo"
        sums.append(float(here.sum(torch.tensor(1.0))))
        leave()
        assert not dist.is_initialized()
        leave()  # nothing to leave
        assert world().control is None and world().size == size
    return sums


def test_joining_by_the_environment():
    assert launched(join_and_leave, 2) == [[2.0, 2.0]] * 2


def wait_for_another(rank, size):
    """A thread's group and a mesh's wait as long as the world says, also where a later fit says another time."""
    from torch.distributed.device_mesh import init_device_mesh

    here = joined("cpu", timeout=90)
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("tp", "dp"))
    split = data_world(here, Parallel(mesh=mesh))
    groups = [dist.group.WORLD, here.cpu_group(), _separate_group(here).cpu_group(), split.group, split.cpu_group()]
    first = [waits_of(group) for group in groups]
    assert joined("cpu").timeout == joined("cpu", timeout=90).timeout == split.timeout == 90
    later = joined("cpu", timeout=0.5)
    assert later is joined() is world() and later.timeout == 0.5 and _separate_group(later) is _separate_group(here)
    second = [waits_of(group) for group in groups]
    if rank == 0:  # and it is meant
        with pytest.raises(PeerFailed, match="connection to the other ranks was lost"):
            gather_results(_separate_group(later), lambda: None)
    store = dist.distributed_c10d._get_default_store()
    store.set(f"over/{rank}", "yes")
    store.wait(["over/0"])
    return first, second


def waits_of(group):
    return group._get_backend(torch.device("cpu")).options._timeout.total_seconds()


def test_every_group_waits_as_long_as_was_said():
    for first, second in launched(wait_for_another, 2):
        assert first == [90.0] * 5
        assert second[:3] == [0.5] * 3


def join_the_users_group(rank, size):
    group = dist.group.WORLD
    assert world().size == size and world().control is None
    here = joined()
    assert (here.rank, here.size) == (rank, size) and dist.group.WORLD is group
    assert here.sum(torch.tensor(1.0)) == size
    leave()
    assert dist.is_initialized() and dist.group.WORLD is group  # it is not ours to destroy
    again = joined()
    assert again.sum(torch.tensor(1.0)) == size
    store = dist.PrefixStore("another", dist.distributed_c10d._get_default_store())
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    assert world().control is None and joined() is not again  # it is another group now
    assert joined().sum(torch.tensor(1.0)) == size
    return True


def test_the_users_own_group_is_respected():
    assert run(join_the_users_group, 2) == [True, True]


ENDS = """
import os, signal, sys
from stoker.distributed import Agreement, joined
here = joined("cpu")
Agreement(here).hand_in({})  # stays under way
print("joined", flush=True)
if sys.argv[1] == "dead" and here.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
"""


def started(case, rank, port):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHELASTIC_USE_AGENT_STORE": "True", "RANK": str(rank)}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    command = [sys.executable, "-W", "error", "-c", ENDS, case]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_process_ends_without_waiting_for_the_dead():
    """The default timeout is ten minutes; a test that waited for it would be ended by its own."""
    cases = {"well": [0, 0], "dead": [0, -signal.SIGKILL]}
    stores = {case: dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for case in cases}
    processes = {case: [started(case, rank, stores[case].port) for rank in range(2)] for case in cases}
    for case, both in processes.items():
        outputs = [process.communicate() for process in both]
        assert [process.returncode for process in both] == cases[case], outputs
        assert outputs == [("joined\n", "")] * 2
