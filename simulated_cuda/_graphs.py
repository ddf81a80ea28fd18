"""`torch.cuda.CUDAGraph`, and pools of memory for graphs."""

import itertools
import threading
from typing import Any

from simulated_cuda._backend import backend

Pool = tuple[int, int]
_pools = itertools.count(1)
_threads = threading.local()  # .pools: which this thread has allocated in before
_unfinished: list[Pool] = []  # pools of captures that failed, until `end_allocating_in`


class CUDAGraph:
    """Operations that were recorded, and are repeated on the same memory."""

    def __init__(self, keep_graph: bool = False) -> None:
        self.id: int | None = None
        self._pool: Pool | None = None

    def capture_begin(self, pool: Pool | None = None, capture_error_mode: str = "global", **_: Any) -> None:
        if capture_error_mode not in ("global", "thread_local", "relaxed"):
            raise RuntimeError(f"unknown capture_error_mode {capture_error_mode!r}")
        if self.id is not None:
            raise RuntimeError("this graph has been captured already")
        self._pool = graph_pool_handle() if pool is None else pool
        backend.begin_capture(self._pool[1])

    def capture_end(self) -> None:
        try:
            self.id = backend.end_capture()
        except RuntimeError:
            if self._pool is not None:
                # torch raises before it tells its allocator, which takes the capture for one that still runs.
                _unfinished.append(self._pool)
                backend.add_pool_user(self._pool[1])
            raise

    def replay(self) -> None:
        backend.replay(0 if self.id is None else self.id)

    def reset(self) -> None:
        if self.id is not None:
            backend.delete_graph(self.id)
            self.id = None

    def pool(self) -> Pool | None:
        return self._pool

    def __del__(self) -> None:
        if backend is not None:  # at the end of the interpreter
            self.reset()


def graph_pool_handle() -> Pool:
    return (0, next(_pools))


def begin_allocating_in(device: int, pool: Pool) -> None:
    """`torch._C._cuda_beginAllocateCurrentThreadToPool`: this thread allocates in a pool, which it also keeps."""
    before = backend.set_pool(pool[1])
    _threads.__dict__.setdefault("pools", []).append(before)
    backend.add_pool_user(pool[1])


def end_allocating_in(device: int, pool: Pool) -> None:
    """`torch._C._cuda_endAllocateToPool`, also for the pool of a capture that failed."""
    if pool in _unfinished:
        _unfinished.remove(pool)
        return
    pools = _threads.__dict__.setdefault("pools", [])
    if not pools:
        raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
    backend.set_pool(pools.pop())


def release_pool(device: int, pool: Pool) -> None:
    """`torch._C._cuda_releasePool`: the end of what `begin_allocating_in` keeps."""
    backend.remove_pool_user(pool[1])


def empty_cache() -> None:
    """`torch.cuda.empty_cache`, which frees nothing while torch takes a capture for unfinished."""
    if not _unfinished:
        backend.empty_cache()
