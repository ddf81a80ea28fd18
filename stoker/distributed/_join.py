"""Joining the other processes, and leaving them: what torchrun's environment or the user's own process group says."""

import atexit
import os
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from stoker.distributed._meeting import meeting_place
from stoker.distributed._world import TIMEOUT, World, let_go, wait_for
from stoker.errors import InvalidArgument, PeerFailed

_LAUNCHER = timedelta(seconds=30)


@dataclass(slots=True)
class _Membership:
    """What this process has joined: torch's process groups are global, and so is this."""

    world: World | None = None
    group: Any = None  # torch's default group at that time: a user may make another one later
    made_here: bool = False  # the default group is ours, not the user's
    broken: bool = False  # some rank has failed: don't wait for anybody at the end
    failures: int = 0  # how often this rank has failed since it joined
    over: str | None = None  # why ranks can't go on together, where they can't


membership = _Membership()


def world() -> World:
    """The processes that train together, by torchrun's environment or by the process group that is there.

    >>> world().rank, world().size
    (0, 1)

    It starts nothing. Alone, it is a world of one.
    """
    there = dist.is_available() and dist.is_initialized()
    if there and membership.world and dist.group.WORLD is membership.group:
        return membership.world
    if there:
        rank, size = dist.get_rank(), dist.get_world_size()
    else:
        rank, size = _number("RANK", 0), _number("WORLD_SIZE", 1)
    if not 0 <= rank < size:
        raise InvalidArgument(f"the environment says RANK={rank} and WORLD_SIZE={size}; ranks are 0 to {size - 1}")
    return World(rank, size, _number("LOCAL_RANK", rank), _number("LOCAL_WORLD_SIZE", size))


def joined(device: torch.device | str | None = None, *, timeout: float | None = None) -> World:
    """The world with its process groups: the user's own where there is one, else made from torchrun's environment.

    They live until the process ends or `left()` is called. Where there is one process, nothing is started. `timeout`
    is in seconds, 600 at first; one that is given later holds from then on, for all groups but the user's own.
    """
    here = world()
    if here.size == 1:
        return here
    if here is membership.world:
        if timeout is not None and timeout != here.timeout:
            membership.world = here = replace(here, timeout=timeout)
            wait_for(timeout)
            if membership.made_here:
                dist.distributed_c10d._set_pg_timeout(timedelta(seconds=timeout), membership.group)
        return here
    here = replace(here, timeout=timeout or TIMEOUT)
    if not dist.is_initialized():
        kind = (device_of(here) if device is None else torch.device(device)).type
        _meet(kind, here, timedelta(seconds=here.timeout))
    membership.group = dist.group.WORLD
    membership.world = here.apart()
    return membership.world


def grouped(device: torch.device) -> None:
    """Makes a process group where there is none, also for one process: FSDP and device meshes need one."""
    here = joined(device)
    if not dist.is_initialized():
        _meet(device.type, here, timedelta(seconds=TIMEOUT))


def left() -> None:
    """Leaves the processes that `joined` met; at the end of a process it happens by itself."""
    if dist.is_initialized() and dist.group.WORLD is membership.group is not None:
        if membership.broken and membership.made_here:
            membership.group.abort()  # destroying waits for what is under way on a GPU, which may never end
        if membership.made_here:
            dist.destroy_process_group()
        elif membership.world:
            dist.destroy_process_group(membership.world.texts())
        let_go()
    for field in fields(_Membership):
        setattr(membership, field.name, field.default)


def device_of(world: World) -> torch.device:
    """The device of this rank: its own GPU, or the CPU."""
    count = torch.cuda.device_count()  # 1 where the launcher shows each process its own
    return torch.device("cuda", world.local_rank % count) if count else torch.device("cpu")


def _meet(kind: str, here: World, timeout: timedelta) -> None:
    """Makes the default process group."""
    if kind == "cuda":
        torch.cuda.set_device(device_of(here))
    if here.size == 1:
        store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    else:
        shared = _store(timeout)
        # torchrun's store outlives its workers: who joins again must not find the addresses of the first time.
        place = meeting_place(shared, here.rank, here.size, timeout)
        store = dist.PrefixStore(place, shared)  # pyright: ignore[reportPrivateImportUsage]
    backend = "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timeout, store=store, rank=here.rank, world_size=here.size)
    membership.group, membership.made_here = dist.group.WORLD, True
    atexit.unregister(left)
    atexit.register(left)


def _store(timeout: timedelta) -> Any:
    """Where ranks meet. torchrun's own is there before they are, so it is not waited for as long as for a rank."""
    of_torchrun = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    try:
        store, _, _ = next(rendezvous("env://", timeout=min(timeout, _LAUNCHER) if of_torchrun else timeout))
    except dist.DistError as error:
        where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        who = "torchrun, which has started this process, is" if of_torchrun else "rank 0 is"
        raise PeerFailed(f"{who} not to be reached at {where}: it has ended, or its network is gone") from error
    store.set_timeout(timeout)
    return store


def _number(name: str, otherwise: int) -> int:
    text = os.environ.get(name, "")
    if text and not text.isdecimal():
        raise InvalidArgument(f"the environment says {name}={text!r}; a launcher such as torchrun gives a number there")
    return int(text) if text else otherwise
