"""Copying batches to a CUDA device in a background thread, while the step before is running."""

import threading
import weakref
from collections import deque
from collections.abc import Iterator
from functools import cache
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from stoker.data._batch import map_parts, move_batch
from stoker.errors import InvalidArgument

T = TypeVar("T")


def prefetch(batches: Iterator[Any], device: torch.device, *, depth: int = 2) -> Iterator[Any]:
    """Yields the batches with their tensors on a CUDA device; a thread copies them while the caller's work runs there.

    At most `depth` batches wait to be taken, and the device is at most about as many batches behind. The host waits
    only if a batch is not ready. Do not use it for batches that draw random numbers in this process
    (`Loader.needs_main_thread`). Closing the iterator ends the thread. A CUDA graph that is captured meanwhile needs
    `capture_error_mode="thread_local"`.
    """
    if device.type != "cuda":
        raise InvalidArgument(f"prefetch copies to a CUDA device only; got {device}; use move_batch instead")
    if depth < 1:
        raise InvalidArgument(f"depth has to be at least 1; got {depth}")
    return _receive(batches, device, depth)


class _Transfer(NamedTuple):
    """A batch whose copies are queued."""

    batch: Any
    tensors: list[Tensor]  # those of the batch that are on the device
    copied: torch.cuda.Event


def _receive(batches: Iterator[Any], device: torch.device, depth: int) -> Iterator[Any]:
    """The caller's side. It holds a reference to a batch until the next one is requested.

    A step may release a part of the batch while another stream than the current one still reads it.
    """
    side = _side_stream(device)
    side.wait_stream(torch.cuda.current_stream(device))  # the caller's stream may still be writing the source
    used: deque[torch.cuda.Event] = deque()
    transfers = BackgroundIterator(_transfer_all(batches, side, used), depth=depth)
    try:
        for transfer in transfers:
            yield _arrive(transfer, device, used)
            del transfer
    finally:
        transfers.close()


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """One stream for all iterations, of high priority.

    torch hands out the streams of a small pool in turn; a CUDA graph may be captured on one of default priority.
    """
    return torch.cuda.Stream(device, priority=-1)


def _arrive(transfer: _Transfer, device: torch.device, used: deque[torch.cuda.Event]) -> Any:
    stream = torch.cuda.current_stream(device)
    done = torch.cuda.Event(blocking=True)
    done.record(stream)  # after all work on the batches before this one
    used.append(done)
    stream.wait_event(transfer.copied)  # the stream waits, not the host
    for tensor in transfer.tensors:
        tensor.record_stream(stream)  # the side stream reuses the memory only after this stream is done with it
    return move_batch(transfer.batch, device)  # moves what the thread did not copy


def _transfer_all(
    batches: Iterator[Any], side: torch.cuda.Stream, used: deque[torch.cuda.Event]
) -> Iterator[_Transfer]:
    """The thread's side, where waiting is free."""
    try:
        with torch.cuda.stream(side):
            for batch in batches:
                copied = torch.cuda.Event(blocking=True)
                try:
                    yield _send(batch, copied, side)
                finally:
                    copied.synchronize()  # the host memory of the batch may be reused from here on
                del batch
                while used:  # a host that is far ahead of its device would fill it with batches
                    used.popleft().synchronize()
    finally:
        _close(batches)


def _send(batch: Any, copied: torch.cuda.Event, side: torch.cuda.Stream) -> _Transfer:
    tensors: list[Tensor] = []

    def send(part: Any) -> Any:
        if not isinstance(part, Tensor) or part.layout != torch.strided:
            return part
        if type(part) is Tensor and part.device.type == "cpu" and not (part.requires_grad or part.is_quantized):
            # torch caches pinned memory, and does not reuse it before the copies that read it are done.
            pinned = part if part.is_pinned() else torch.empty_like(part, pin_memory=True).copy_(part)
            part = pinned.to(side.device, non_blocking=True)
        if part.device == side.device:
            tensors.append(part)
        return part

    moved = map_parts(send, batch)
    copied.record(side)
    return _Transfer(moved, tensors, copied)


class BackgroundIterator(Iterator[T], Generic[T]):
    """Runs an iterator in a thread, which is at most `depth` items ahead.

    An exception is raised in place of its item. `close`, garbage collection and the end of the program stop the thread
    after the item it is working on. Only the thread uses the iterator, and closes it at the end.
    """

    def __init__(self, source: Iterator[T], *, depth: int) -> None:
        self._items: SimpleQueue[tuple[bool, Any]] = SimpleQueue()  # (True, item) or (False, final exception)
        self._permits: SimpleQueue[None] = SimpleQueue()  # one for each item that the thread may compute
        for _ in range(depth):
            self._permits.put(None)
        stopped: list[bool] = []
        # The thread has no reference to this object, so that it can be garbage collected.
        arguments = (source, self._items, self._permits, stopped)
        thread = threading.Thread(target=_run_iterator, args=arguments, daemon=True, name="stoker-prefetch")
        self.close = weakref.finalize(self, _stop_thread, thread, self._permits, stopped)
        thread.start()

    def __next__(self) -> T:
        if not self.close.alive:
            raise StopIteration
        is_item, value = self._items.get()
        if is_item:
            self._permits.put(None)
            return value
        self.close()
        raise value


def _run_iterator(
    source: Iterator[Any], items: "SimpleQueue[tuple[bool, Any]]", permits: "SimpleQueue[None]", stopped: list[bool]
) -> None:
    try:
        while True:
            permits.get()
            if stopped:
                break
            items.put((True, next(source)))
    except BaseException as error:  # StopIteration is one of them
        items.put((False, error))
    finally:
        _close(source)


def _stop_thread(thread: threading.Thread, permits: "SimpleQueue[None]", stopped: list[bool]) -> None:
    # Garbage collection can interrupt any thread anywhere; a list and a SimpleQueue have no lock to deadlock on.
    stopped.append(True)
    permits.put(None)
    if thread.is_alive() and thread is not threading.current_thread():
        thread.join(timeout=5)  # seconds; a thread that waits for its source ends with the next item


def _close(source: Iterator[Any]) -> None:
    """Closes a generator; other iterators need no closing."""
    getattr(source, "close", lambda: None)()
