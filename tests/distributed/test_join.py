"""Joining by the environment or by the user's own process group, and leaving without waiting for dead ranks."""

import operator
import os
import signal
import subprocess
import sys
from datetime import timedelta
from threading import Thread

import psutil
import pytest
import torch
import torch.distributed as dist

from stoker.distributed import Parallel, World, _join, data_world, gather_results, join, leave, local_device, world
from stoker.distributed._join import _agree_on_prefix  # an algorithm with a specification of its own
from stoker.errors import InvalidArgument, PeerFailed

from .processes import launched, run

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


@pytest.fixture
def environment(monkeypatch):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch.setenv


def test_without_an_environment_there_is_one_process(environment):
    assert world() == join() == World()
    assert not dist.is_initialized()


def test_the_environment_gives_rank_and_size(environment):
    for name, value in zip(NAMES, ("5", "8", "1", "4"), strict=True):
        environment(name, value)
    assert world() == World(rank=5, size=8, local_rank=1, local_size=4)
    assert not world().is_first
    assert not dist.is_initialized()  # asking starts nothing


def test_errors_for_an_invalid_environment(environment):
    environment("WORLD_SIZE", "2")
    environment("RANK", "two")
    with pytest.raises(InvalidArgument, match="has RANK='two'; a launcher such as torchrun sets a number"):
        world()
    environment("RANK", "2")
    with pytest.raises(InvalidArgument, match="has RANK=2 and WORLD_SIZE=2; ranks are 0 to 1"):
        world()


def test_each_rank_has_its_own_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    devices = [local_device(World(rank, 4, rank % 2)) for rank in range(4)]
    assert [str(device) for device in devices] == ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)  # each process sees only its own
    assert str(local_device(World(3, 4, 3))) == "cuda:0"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert str(local_device(World(3, 4, 3))) == "cpu"


def join_and_leave(rank, size):
    """Joins by the environment, twice, and again after leaving."""
    sums = []
    for _ in range(2):
        here = join("cpu", timeout=60)
        assert here is join() is world()
        assert (here.rank, here.size, here.local_rank, here.local_size) == (rank, size, rank, size)
        assert dist.get_backend(here.cpu_group()) == "gloo"
        sums.append(float(here.sum(torch.tensor(1.0))))
        leave()
        assert not dist.is_initialized()
        leave()  # there is nothing to leave
        assert world().control is None
        assert world().size == size
    return sums


def test_joining_by_the_environment():
    assert launched(join_and_leave, 2) == [[2.0, 2.0]] * 2


def use_timeouts(rank, size):
    from torch.distributed.device_mesh import init_device_mesh

    here = join("cpu", timeout=90)
    own = here.with_own_group()
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("tp", "dp"))
    split = data_world(here, Parallel(mesh=mesh))
    groups = [dist.group.WORLD, here.cpu_group(), own.cpu_group(), split.group, split.cpu_group()]
    first = [timeout_of(group) for group in groups]
    assert join("cpu").timeout == join("cpu", timeout=90).timeout == split.timeout == 90
    later = join("cpu", timeout=0.5)
    assert later is join() is world()
    assert later.timeout == 0.5
    second = [timeout_of(group) for group in groups]
    if rank == 0:
        with pytest.raises(PeerFailed, match="connection to the other ranks was lost"):
            gather_results(own, lambda: None)
    store = dist.distributed_c10d._get_default_store()
    store.set(f"over/{rank}", "yes")
    store.wait(["over/0"])
    return first, second


def timeout_of(group):
    return group._get_backend(torch.device("cpu")).options._timeout.total_seconds()


def test_a_timeout_applies_to_every_group_and_can_be_changed():
    for first, second in launched(use_timeouts, 2):
        assert first == [90.0] * 5
        assert second[:3] == [0.5] * 3


def join_the_users_group(rank, size):
    group = dist.group.WORLD
    assert world().size == size
    assert world().control is None
    here = join()
    assert (here.rank, here.size) == (rank, size)
    assert dist.group.WORLD is group
    assert here.sum(torch.tensor(1.0)) == size
    leave()
    assert dist.is_initialized()
    assert dist.group.WORLD is group  # it is not ours to destroy
    again = join()
    assert again.sum(torch.tensor(1.0)) == size
    store = dist.PrefixStore("another", dist.distributed_c10d._get_default_store())
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    assert world().control is None
    assert join() is not again  # the user's group is a new one
    assert join().sum(torch.tensor(1.0)) == size
    return True


def test_the_users_own_group_is_used_and_kept():
    assert run(join_the_users_group, 2) == [True, True]


ENDS = """
import os, signal, sys
from stoker.distributed import Agreement, join
here = join("cpu")
Agreement(here).exchange({})  # stays in flight
print("joined", flush=True)
if sys.argv[1] == "dead" and here.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
"""


def start(case, rank, port):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHELASTIC_USE_AGENT_STORE": "True", "RANK": str(rank)}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    command = [sys.executable, "-W", "error", "-c", ENDS, case]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.soak
def test_a_process_ends_without_waiting_for_dead_ranks():
    """The default timeout is ten minutes."""
    cases = {"well": [0, 0], "dead": [0, -signal.SIGKILL]}
    stores = {case: dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for case in cases}
    processes = {case: [start(case, rank, stores[case].port) for rank in range(2)] for case in cases}
    for case, both in processes.items():
        outputs = [process.communicate() for process in both]
        assert [process.returncode for process in both] == cases[case], outputs
        assert outputs == [("joined\n", "")] * 2


# --- the ranks of one start find each other, whatever earlier starts have left in the store


def find_each_other(store, size, *, late=()):
    """The prefix that each rank of a start agrees on; the ranks in `late` start last."""
    found = {}

    def begin(rank):
        found[rank] = _agree_on_prefix(store, rank, size, timedelta(seconds=10))

    order = [*(rank for rank in range(size) if rank not in late), *late]
    threads = [Thread(target=begin, args=(rank,)) for rank in order]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[rank] for rank in range(size)]


@pytest.mark.parametrize("late", [(), (0,), (1, 2)], ids=["together", "rank 0 late", "others late"])
def test_every_start_has_a_prefix_of_its_own(late):
    store = dist.HashStore()
    prefixes = [find_each_other(store, size, late=late if size == 3 else ()) for size in (3, 2, 3, 1, 4)]
    assert all(len(set(each)) == 1 for each in prefixes)
    assert len({each[0] for each in prefixes}) == len(prefixes)


def test_a_rank_that_finds_only_an_earlier_start_waits_for_its_own():
    store = dist.HashStore()
    find_each_other(store, 2)
    for rank in (1, 0):
        with pytest.raises(PeerFailed, match="the other ranks did not join"):
            _agree_on_prefix(store, rank, 2, timedelta(seconds=0.2))
        assert len(set(find_each_other(store, 2))) == 1


# --- many ranks


def sockets_after_joining(rank, size, lazy_from):
    _join.MANY_RANKS = lazy_from
    world = join()
    count = sum(connection.status == "ESTABLISHED" for connection in psutil.Process().net_connections())
    assert world.combine([rank], operator.add) == world.all_gather(rank) == list(range(size))
    return count


@pytest.mark.soak
def test_many_ranks_connect_when_they_first_send_to_each_other():
    few, many = (launched(sockets_after_joining, 5, lazy_from) for lazy_from in (5, 6))
    assert all(lazy <= eager - 2 * 4 for lazy, eager in zip(few, many, strict=True))  # two groups of four others
