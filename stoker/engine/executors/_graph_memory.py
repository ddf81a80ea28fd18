"""Streams and memory of CUDA graphs. torch's private allocator functions are used here and nowhere else.

`_cuda_beginAllocateCurrentThreadToPool`, `_cuda_endAllocateToPool`, `_cuda_releasePool` direct allocations into the
memory pool of graphs; `_cuda_clearCublasWorkspaces` frees cuBLAS's workspaces. If one of them moves, the CUDA tests of
tests/executors fail.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

_STREAMS = 32  # that torch has for each device
_used_streams: set[int] = set()  # by fits that run
_lock = threading.Lock()
_C: Any = torch._C


@contextmanager
def reserve_stream(device: torch.device) -> Iterator[torch.cuda.Stream]:
    """A stream that no other fit uses: torch reuses 32 streams, and another fit may be recording on one."""
    with _lock:
        stream = torch.cuda.Stream(device)
        for _ in range(_STREAMS):
            if stream.cuda_stream not in _used_streams:
                break
            stream = torch.cuda.Stream(device)
        _used_streams.add(stream.cuda_stream)
    try:
        yield stream
    finally:
        _used_streams.discard(stream.cuda_stream)


@contextmanager
def run_on_stream(stream: torch.cuda.Stream) -> Iterator[None]:
    """Launches everything on a stream; it and the current stream wait for each other at both ends."""
    outside = torch.cuda.current_stream(stream.device)
    stream.wait_stream(outside)
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        outside.wait_stream(stream)


def clear_workspaces() -> None:
    """Frees the workspaces of cuBLAS, of all streams, and all unused memory.

    A recording allocates them again in its pool: anybody may clear them, and what a graph writes to must stay its own.
    """
    _C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()


def allocate_workspaces(device: torch.device) -> None:
    """Makes cuBLAS allocate its workspaces while nothing else is there, so that they split no large block."""
    torch.cuda.empty_cache()
    with torch.enable_grad():
        square = torch.zeros(16, 16, device=device, requires_grad=True)
        product = torch.addmm(square[0], square, square)
        torch.autograd.grad(product.sum(), square)  # autograd's thread has its own workspaces


class GraphPool:
    """Memory that only graphs use.

    Between two launches everything in it is free, except for what graphs keep. So other computations can use it in
    between, as long as none of their results is needed after the next launch: `addresses_in_use` before and after
    tells.
    """

    def __init__(self, device: torch.device) -> None:
        self._index = device.index or 0
        self.handle: Any = torch.cuda.graph_pool_handle()

    @contextmanager
    def allocate_here(self) -> Iterator[None]:
        """Allocates new tensors in the pool."""
        _C._cuda_beginAllocateCurrentThreadToPool(self._index, self.handle)
        try:
            yield
        finally:
            self._end()

    def abandon(self) -> None:
        """After a recording that failed: otherwise torch may take it for one that still runs, and free nothing."""
        with suppress(RuntimeError):  # torch may have done so already
            self._end()

    def _end(self) -> None:
        _C._cuda_endAllocateToPool(self._index, self.handle)
        _C._cuda_releasePool(self._index, self.handle)

    def addresses_in_use(self) -> set[int]:
        """The addresses of tensors in the pool that are still referenced; cuBLAS's workspaces do not count."""
        _C._cuda_clearCublasWorkspaces()
        segments = [each for each in torch.cuda.memory_snapshot() if tuple(each["segment_pool_id"]) == self.handle]
        blocks = [block for each in segments for block in each["blocks"]]
        return {block["address"] for block in blocks if block["state"] == "active_allocated"}
