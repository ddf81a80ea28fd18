"""The memory of a fit's graphs, which others may use between two launches."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

_STREAMS = 32  # of torch's, for each device
_running: set[int] = set()  # streams of fits
_lock = threading.Lock()


@contextmanager
def own_stream(device: torch.device) -> Iterator[torch.cuda.Stream]:
    """A stream that no other fit has: torch hands out 32 of them, again and again, and one may be being recorded."""
    with _lock:
        stream = torch.cuda.Stream(device)
        for _ in range(_STREAMS):
            if stream.cuda_stream not in _running:
                break
            stream = torch.cuda.Stream(device)
        _running.add(stream.cuda_stream)
    try:
        yield stream
    finally:
        _running.discard(stream.cuda_stream)


@contextmanager
def aside(stream: torch.cuda.Stream) -> Iterator[None]:
    """While it is open, everything is launched on a stream of its own; the streams wait for each other at both ends."""
    outside = torch.cuda.current_stream(stream.device)
    stream.wait_stream(outside)
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        outside.wait_stream(stream)


def clear_workspaces() -> None:
    """Gives back those of cuBLAS, of all streams, and all memory that is free.

    While a graph is recorded they are taken anew, in its pool: anybody may clear them (torch does, where it
    records graphs of its own), and what a graph writes to has to stay its own.
    """
    torch._C._cuda_clearCublasWorkspaces()  # pyright: ignore[reportAttributeAccessIssue]
    torch.cuda.empty_cache()


class Pool:
    """Memory that only graphs use.

    Between two launches everything in it is free but what graphs keep for good. So what is computed in between can be
    there too, as long as none of it is needed after the next launch: `held` before and after tells.
    """

    __slots__ = ("_index", "handle")

    def __init__(self, device: torch.device) -> None:
        self._index = device.index or 0
        self.handle: Any = torch.cuda.graph_pool_handle()

    @contextmanager
    def lent(self) -> Iterator[None]:
        """While it is open, new tensors are in the pool."""
        torch._C._cuda_beginAllocateCurrentThreadToPool(self._index, self.handle)  # pyright: ignore[reportAttributeAccessIssue]
        try:
            yield
        finally:
            self._end()

    def abandon(self) -> None:
        """After a recording that failed: torch may take it for one that is still going on, and free nothing."""
        with suppress(RuntimeError):  # torch has done so itself
            self._end()

    def _end(self) -> None:
        torch._C._cuda_endAllocateToPool(self._index, self.handle)  # pyright: ignore[reportAttributeAccessIssue]
        torch._C._cuda_releasePool(self._index, self.handle)  # pyright: ignore[reportAttributeAccessIssue]

    def held(self) -> set[int]:
        """Where the tensors are that somebody holds; cuBLAS's workspaces are nobody's."""
        torch._C._cuda_clearCublasWorkspaces()  # pyright: ignore[reportAttributeAccessIssue]
        segments = [each for each in torch.cuda.memory_snapshot() if tuple(each["segment_pool_id"]) == self.handle]
        blocks = [block for each in segments for block in each["blocks"]]
        return {block["address"] for block in blocks if block["state"] == "active_allocated"}
