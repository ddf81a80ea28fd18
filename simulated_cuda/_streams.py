"""`torch.cuda.Stream` and `torch.cuda.Event`."""

import itertools
from typing import Any

import torch

from simulated_cuda._backend import backend

STREAMS_OF_A_PRIORITY = 32  # torch hands them out in turn
HIGH_PRIORITY = 1000  # added to the number of a stream
_created = itertools.count()


class Stream:
    """A queue of operations. They run at once; which of them may run at the same time is tracked."""

    def __init__(self, device: Any = None, priority: int = 0, *, cuda_stream: int | None = None, **_: Any) -> None:
        if cuda_stream is None:
            cuda_stream = 1 + next(_created) % STREAMS_OF_A_PRIORITY + (HIGH_PRIORITY if priority < 0 else 0)
        self.cuda_stream = self.stream_id = cuda_stream  # 0 is the default stream
        self.priority = priority
        self.device = torch.device("cuda", 0)
        self.device_index = 0

    def wait_stream(self, other: "Stream") -> None:
        self.wait_event(other.record_event())

    def wait_event(self, event: "Event") -> None:
        if backend.is_capturing():
            backend.raise_in_capture("waiting for another stream; a capture of several streams is not simulated")
        event.wait(self)

    def record_event(self, event: "Event | None" = None) -> "Event":
        event = Event() if event is None else event
        event.record(self)
        return event

    def synchronize(self) -> None:
        if self.cuda_stream == backend.current_stream():
            backend.synchronize("stream.synchronize")
        else:
            backend.host_waits_for(backend.record_event(self.cuda_stream))

    def query(self) -> bool:
        return self.record_event().query()

    def is_capturing(self) -> bool:
        """Whether this thread is recording on the stream; torch's optimizers ask."""
        return self.cuda_stream == backend.current_stream() and backend.is_capturing()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.cuda_stream == self.cuda_stream

    def __hash__(self) -> int:
        return hash(self.cuda_stream)

    def __repr__(self) -> str:
        return f"<simulated torch.cuda.Stream {self.cuda_stream}>"


class Event:
    """A place in a stream.

    If copies are under way, `query` says no at the first call, so that callers see both answers.
    """

    def __init__(self, device: Any = None, **_: Any) -> None:
        self._recorded: Any = None  # what the stream had to do at that place
        self._said_no = False

    def record(self, stream: Stream | None = None) -> None:
        backend.raise_if_capturing("recording an event; a capture of several streams is not simulated")
        self._recorded = backend.record_event(_number_of(stream))
        self._said_no = False

    def query(self) -> bool:
        if self._recorded is None:
            return True
        if backend.is_busy(self._recorded):
            return False
        if backend.has_pending_copies(self._recorded) and not self._said_no:
            self._said_no = True
            return False
        backend.host_waits_for(self._recorded)
        return True

    def synchronize(self) -> None:
        backend.raise_if_capturing("event.synchronize")
        if self._recorded is not None:
            backend.host_waits_for(self._recorded)

    def wait(self, stream: Stream | None = None) -> None:
        if self._recorded is not None:
            backend.stream_waits_for(_number_of(stream), self._recorded)

    def elapsed_time(self, other: "Event") -> float:
        return 1.0  # ms; nothing is known about time


class use_stream:
    """`with torch.cuda.stream(stream)`."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream
        self._before = 0

    def __enter__(self) -> None:
        if self.stream is not None:
            self._before = backend.set_stream(self.stream.cuda_stream)

    def __exit__(self, *_: object) -> None:
        if self.stream is not None:
            backend.set_stream(self._before)


def current_stream(device: Any = None) -> Stream:
    return Stream(cuda_stream=backend.current_stream())


def default_stream(device: Any = None) -> Stream:
    return Stream(cuda_stream=0)


def set_stream(stream: Stream) -> None:
    backend.set_stream(stream.cuda_stream)


def synchronize(device: Any = None) -> None:
    backend.raise_if_capturing("synchronize")
    backend.wait_for_device()


def _number_of(stream: Stream | None) -> int:
    return backend.current_stream() if stream is None else stream.cuda_stream
