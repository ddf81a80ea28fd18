"""The memory of a fit's graphs, which others may use between two launches."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class Pool:
    """Memory that only graphs use, and a stream on which they are recorded.

    Between two launches everything in it is free but what graphs keep for good. So what is computed in between can be
    there too, as long as none of it is needed after the next launch: `held` before and after tells.
    """

    __slots__ = ("_device", "handle", "stream")

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.handle: Any = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream(device)  # torch's own for graphs is of whatever device came first

    @contextmanager
    def lent(self) -> Iterator[None]:
        """While it is open, new tensors are in the pool; the streams wait for each other at both ends."""
        index, outside = self.stream.device_index, torch.cuda.current_stream(self._device)
        self.stream.wait_stream(outside)
        with torch.cuda.stream(self.stream):
            torch._C._cuda_beginAllocateCurrentThreadToPool(index, self.handle)  # pyright: ignore[reportAttributeAccessIssue]
            try:
                yield
            finally:
                torch._C._cuda_endAllocateToPool(index, self.handle)  # pyright: ignore[reportAttributeAccessIssue]
                torch._C._cuda_releasePool(index, self.handle)  # pyright: ignore[reportAttributeAccessIssue]
                outside.wait_stream(self.stream)

    def held(self) -> set[int]:
        """Where the tensors are that somebody holds."""
        segments = [each for each in torch.cuda.memory_snapshot() if tuple(each["segment_pool_id"]) == self.handle]
        blocks = [block for each in segments for block in each["blocks"]]
        return {block["address"] for block in blocks if block["state"] == "active_allocated"}
