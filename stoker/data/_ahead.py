"""Batches on their way to a CUDA device while the step before is running."""

from collections import deque
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stoker.data._background import Background, close
from stoker.data._move import map_batch, moved
from stoker.errors import InvalidArgument


def ahead(batches: Iterator[Any], device: torch.device, *, depth: int = 2) -> Iterator[Any]:
    """The batches with their tensors on a CUDA device, copied by a thread beside the work that the caller queues there.

    At most `depth` of them wait to be taken, and the device is never more than about as many batches behind. The host
    waits only where a batch isn't made yet. It's not for batches that are made with this process's random numbers
    (`Loader.draws_here`), which belong to the thread that trains. Closing what comes back ends the thread. A graph that
    is captured meanwhile has to be captured with `capture_error_mode="thread_local"`.
    """
    if device.type != "cuda":
        raise InvalidArgument(f"batches are copied ahead to a CUDA device only; got {device}; use moved instead")
    if depth < 1:
        raise InvalidArgument(f"depth has to be at least 1; got {depth}")
    return _landed(batches, device, depth)


class _Flight(NamedTuple):
    """A batch whose copies have been queued."""

    batch: Any
    tensors: list[Tensor]  # those in it that are on a device
    copied: torch.cuda.Event


def _landed(batches: Iterator[Any], device: torch.device, depth: int) -> Iterator[Any]:
    """The caller's side, which keeps a batch until the next one is asked for, and no longer.

    So long, because a step may let go of a part of it while another stream than this one works on that.
    """
    side = _side_stream(device)
    side.wait_stream(torch.cuda.current_stream(device))  # what the source reads may still be being written
    used: deque[torch.cuda.Event] = deque()
    flights = Background(_flights(batches, side, used), depth=depth)
    try:
        for flight in flights:
            yield _arrived(flight, device, used)
            del flight
    finally:
        flights.close()


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all, of high priority: torch hands out few streams, again and again, and a graph may be captured on one
    of the others."""
    return torch.cuda.Stream(device, priority=-1)


def _arrived(flight: _Flight, device: torch.device, used: deque[torch.cuda.Event]) -> Any:
    stream = torch.cuda.current_stream(device)
    done = torch.cuda.Event(blocking=True)
    done.record(stream)  # with all that uses the batches before
    used.append(done)
    stream.wait_event(flight.copied)  # the stream waits, not the host
    for tensor in flight.tensors:
        tensor.record_stream(stream)  # its memory is not given to the side stream again before this one is done with it
    return moved(flight.batch, device)  # what the thread has left alone


def _flights(batches: Iterator[Any], side: torch.cuda.Stream, used: deque[torch.cuda.Event]) -> Iterator[_Flight]:
    """The thread's side, where waiting costs nothing."""
    try:
        with torch.cuda.stream(side):
            for batch in batches:
                copied = torch.cuda.Event(blocking=True)
                try:
                    yield _sent(batch, copied, side)
                finally:
                    copied.synchronize()  # from here on the host's memory is free again, whoever's it is
                del batch
                while used:  # else a host that is far ahead of its device would fill it with batches
                    used.popleft().synchronize()
    finally:
        close(batches)


def _sent(batch: Any, copied: torch.cuda.Event, side: torch.cuda.Stream) -> _Flight:
    tensors: list[Tensor] = []

    def send(part: Any) -> Any:
        if not isinstance(part, Tensor) or part.layout != torch.strided:
            return part
        if type(part) is Tensor and part.device.type == "cpu" and not (part.requires_grad or part.is_quantized):
            # torch keeps pinned memory for its next use, and knows of the copies that still read it
            staged = part if part.is_pinned() else torch.empty_like(part, pin_memory=True).copy_(part)
            part = staged.to(side.device, non_blocking=True)
        if part.device == side.device:
            tensors.append(part)
        return part

    there = map_batch(send, batch)
    copied.record(side)
    return _Flight(there, tensors, copied)
