"""Joining the other processes and leaving them, by torchrun's environment or the user's own process group."""

import atexit
import os
import time
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from stoker.distributed._world import MANY_RANKS, TIMEOUT, World, drop_groups, set_timeout
from stoker.errors import InvalidArgument, PeerFailed

_LAUNCHER_TIMEOUT = timedelta(seconds=30)
_POLL = 0.02  # seconds between two looks into the store, for up to `MANY_RANKS`


@dataclass(slots=True, eq=False, repr=False)
class _Membership:
    """What this process has joined. Torch's process groups are global, and so is this."""

    world: World | None = None
    group: Any = None  # torch's default group at that time: a user may make another one later
    made_here: bool = False  # whether the default group is ours, not the user's
    broken: bool = False  # whether a rank has failed: then the exit waits for no other rank
    failures: int = 0  # how often this rank has failed since it joined
    ended: str | None = None  # why the ranks can't continue together, if they can't


membership = _Membership()


def world() -> World:
    """The processes that train together, by torchrun's environment or by the process group that exists.

    >>> world().rank, world().size
    (0, 1)

    It starts nothing. Without either, it is a world of one process.
    """
    has_group = dist.is_available() and dist.is_initialized()
    if has_group and membership.world and dist.group.WORLD is membership.group:
        return membership.world
    if has_group:
        rank, size = dist.get_rank(), dist.get_world_size()
    else:
        rank, size = _read_number("RANK", 0), _read_number("WORLD_SIZE", 1)
    if not 0 <= rank < size:
        raise InvalidArgument(f"the environment has RANK={rank} and WORLD_SIZE={size}; ranks are 0 to {size - 1}")
    return World(rank, size, _read_number("LOCAL_RANK", rank), _read_number("LOCAL_WORLD_SIZE", size))


def join(device: torch.device | str | None = None, *, timeout: float | None = None) -> World:
    """The world with its process groups: the user's own if there is one, otherwise made from torchrun's environment.

    The groups live until the process ends or `leave()` is called. With one process, nothing is started. `timeout` is
    in seconds, 600 by default; a later call can change it, for all groups but the user's own.
    """
    here = world()
    if here.size == 1:
        return here
    if here is membership.world:
        if timeout is not None and timeout != here.timeout:
            membership.world = here = replace(here, timeout=timeout)
            set_timeout(timeout)
            if membership.made_here:
                dist.distributed_c10d._set_pg_timeout(timedelta(seconds=timeout), membership.group)
        return here
    here = replace(here, timeout=timeout or TIMEOUT)
    if here.size >= MANY_RANKS:
        # gloo connects two ranks when they first send to each other. Otherwise each process has a socket for every
        # other rank in each of three groups: with 340 ranks more than the usual limit of 1024 open files.
        os.environ.setdefault("TORCH_GLOO_LAZY_INIT", "1")
    if not dist.is_initialized():
        kind = (local_device(here) if device is None else torch.device(device)).type
        _make_default_group(kind, here, timedelta(seconds=here.timeout))
    membership.group = dist.group.WORLD
    membership.world = here.with_own_group()
    return membership.world


def ensure_group(device: torch.device) -> None:
    """Makes a process group if there is none, also for one process: FSDP and device meshes need one."""
    here = join(device)
    if not dist.is_initialized():
        _make_default_group(device.type, here, timedelta(seconds=TIMEOUT))


def leave() -> None:
    """Leaves the processes that `join` joined. Runs automatically when the process ends."""
    if dist.is_initialized() and dist.group.WORLD is membership.group is not None:
        if membership.broken and membership.made_here:
            membership.group.abort()  # destroying would wait for operations on a GPU, which may never finish
        if membership.made_here:
            dist.destroy_process_group()
        elif membership.world:
            dist.destroy_process_group(membership.world.cpu_group())
        drop_groups()
    for field in fields(_Membership):
        setattr(membership, field.name, field.default)


def local_device(world: World) -> torch.device:
    """The device of this rank: its own GPU, or the CPU."""
    count = torch.cuda.device_count()  # 1 if the launcher shows each process its own only
    return torch.device("cuda", world.local_rank % count) if count else torch.device("cpu")


def _make_default_group(kind: str, here: World, timeout: timedelta) -> None:
    if kind == "cuda":
        torch.cuda.set_device(local_device(here))
    if here.size == 1:
        store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    else:
        shared = _connect_to_store(timeout)
        prefix = _agree_on_prefix(shared, here.rank, here.size, timeout)
        store = dist.PrefixStore(prefix, shared)  # pyright: ignore[reportPrivateImportUsage]
    backend = "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timeout, store=store, rank=here.rank, world_size=here.size)
    membership.group, membership.made_here = dist.group.WORLD, True
    atexit.unregister(leave)
    atexit.register(leave)


def _connect_to_store(timeout: timedelta) -> Any:
    """The store in which ranks find each other. torchrun's own exists before them, so its timeout is shorter."""
    is_torchruns = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    try:
        store, _, _ = next(rendezvous("env://", timeout=min(timeout, _LAUNCHER_TIMEOUT) if is_torchruns else timeout))
    except dist.DistError as error:
        where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        who = "torchrun, which started this process," if is_torchruns else "rank 0"
        raise PeerFailed(f"{who} can't be reached at {where}: it has ended, or its network is down") from error
    store.set_timeout(timeout)
    return store


def _agree_on_prefix(store: Any, rank: int, size: int, timeout: timedelta) -> str:
    """A prefix of the store's keys that all ranks of this start have in common, and no other start.

    torchrun's store outlives its workers, so it may hold the addresses of an earlier start. Rank 0 counts the starts
    and writes the number. Another rank may still read the number of the start before, so it leaves a token there and
    continues only when rank 0 of that start has seen it.
    """
    deadline = time.monotonic() + timeout.total_seconds()
    if rank == 0:
        prefix = f"stoker/{store.add('stoker/starts', 1)}"
        store.set("stoker/start", prefix)
        tokens = [_wait_for_key(store, f"{prefix}/here/{other}", deadline, _POLL) for other in range(1, size)]
        store.set(f"{prefix}/seen", " ".join(tokens))
        return prefix
    token = os.urandom(8).hex()
    pause = _POLL * max(1.0, size / MANY_RANKS)  # one process answers all ranks
    while True:
        prefix = _wait_for_key(store, "stoker/start", deadline, pause)
        store.set(f"{prefix}/here/{rank}", token)
        while _read_key(store, "stoker/start") == prefix:
            if token in (_read_key(store, f"{prefix}/seen") or "").split():
                return prefix
            _pause(deadline, pause)


def _wait_for_key(store: Any, key: str, deadline: float, pause: float) -> str:
    while (found := _read_key(store, key)) is None:
        _pause(deadline, pause)
    return found


def _read_key(store: Any, key: str) -> str | None:
    try:
        return store.get(key).decode() if store.check([key]) else None
    except dist.DistError as error:
        raise PeerFailed("the store in which ranks find each other is gone: torchrun or rank 0 has ended") from error


def _pause(deadline: float, seconds: float) -> None:
    if time.monotonic() > deadline:
        raise PeerFailed("the other ranks did not join: one of them ended before that, or can't be reached")
    time.sleep(seconds)


def _read_number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    if text and not text.isdecimal():
        raise InvalidArgument(f"the environment has {name}={text!r}; a launcher such as torchrun sets a number")
    return int(text) if text else default
