"""A step as one CUDA graph: the operations that it would launch one by one, recorded once and launched together."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from stoker.data import Pick
from stoker.program._compiled import Programs
from stoker.program._plan import Plan, size
from stoker.program._reason import Cannot, reason_of
from stoker.program._repeated import Batch, Left, Made, NotYet, Repeated
from stoker.program._stations import Stations
from stoker.program._tree import Shape, matched, taken_apart, together, written_back

_IDLE = 256 * 2**20  # bytes that may stay unused
_AHEAD = 2  # runs that may be under way: the device never waits for the host, and a NaN is heard of soon


class Graphs:
    """Records steps as CUDA graphs that share their memory: the stations as they are, or a program of them."""

    __slots__ = ("_device", "_flag", "_plan", "_pool", "_programs", "_stream")

    def __init__(self, device: torch.device, plan: Plan, flag: Tensor, programs: Programs | None) -> None:
        self._device, self._plan, self._flag, self._programs = device, plan, flag, programs
        self._pool: Any = None
        self._stream = torch.cuda.Stream(device)  # torch's own for graphs is of whatever device came first

    def make(self, stations: Stations, batch: Batch, kept: Shape, before: list[Tensor]) -> Made:
        """Records what happens to such a batch; nothing is computed."""
        if any(tensor.device != self._device for tensor in stations.inputs().written):
            raise Cannot("the optimizer keeps its counters on the host; leave out foreach=, or give it capturable=True")
        if any(tensor.device != self._device for tensor in batch.tensors):
            raise Cannot("a batch holds a tensor on the host, whose values a graph would not see change")
        numbers = _changing(batch)
        # Columns that rows are gathered from stay where they are; all else is copied in before each launch.
        static = [*(each.clone() for each in batch.tensors[:numbers]), *batch.tensors[numbers:]]
        own = batch._replace(value=together(batch.shape, iter(static)), tensors=static)
        graph, inputs = torch.cuda.CUDAGraph(), static[:numbers]
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        record = self._prepared(stations, own, kept, before)
        stations.forget()
        torch.cuda.empty_cache()
        taken = torch.cuda.memory_reserved(self._device)
        # Other threads (one that fetches data, one that writes a checkpoint) go on meanwhile.
        recording = torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local")
        with _one_at_a_time, _recoverable(self._device), recording:
            shape, after, said, again = record(stations, own, kept, before)
            self._flag.copy_(stations.verdict.poison, non_blocking=True)
        self._note(torch.cuda.memory_reserved(self._device) - taken)
        stations.forget()

        def launch(tensors: list[Tensor]) -> None:
            for place, new in zip(inputs, tensors[:numbers], strict=True):
                place.copy_(new, non_blocking=True)
            graph.replay()

        return Made(launch, before, (shape, after), said, again)

    def _prepared(self, stations: Stations, batch: Batch, kept: Shape, before: list[Tensor]) -> Callable[..., Left]:
        """What to record: a compiled program where there can be one, else the stations, which is the next best."""
        if self._programs is None:
            return _recorded
        around = stations.surroundings()
        try:
            return self._programs.prepared(stations, batch, kept, before)
        except NotYet:
            raise
        except Exception as error:
            self._programs = None
            self._plan.narrow("captured", reason_of(error))
            around.put_back()
            stations.hold(together(kept, iter(before)))
            stations.changed(self._plan)
            return _recorded

    def _note(self, grown: int) -> None:
        start = "graph memory "
        self._plan.notes = [note for note in self._plan.notes if not note.startswith(start)]
        self._plan.notes.append(f"{start}{size(max(grown, 0))}, one pool for all shapes")


_one_at_a_time = threading.Lock()  # of the fits of a process that record


@contextmanager
def _recoverable(device: torch.device) -> Iterator[None]:
    """A recording that fails leaves the device's generator in the middle of it: it gets a new state, where it stood."""
    generator, stream = torch.cuda.default_generators[device.index or 0], torch.cuda.current_stream(device)
    state = generator.clone_state()
    try:
        yield
    except BaseException:
        torch.cuda.set_stream(stream)  # torch leaves its own one only where the recording ends well
        torch.cuda.synchronize(device)
        generator.graphsafe_set_state(state)
        raise


def _recorded(stations: Stations, batch: Batch, kept: Shape, before: list[Tensor]) -> Left:
    """The stations as they run, one operation after the other."""
    after: list[Tensor] = []
    with stations.on_device():
        stations.run(batch.value)
        stations.verdict.end()
        shape = taken_apart(stations.kept(), after)
        again = matched(before, after, (kept, shape))
        if again:
            written_back(before, after)
        return Left(shape, before if again else after, stations.said(), again)


def _changing(batch: Batch) -> int:
    """How many of a batch's tensors, its first ones, differ from batch to batch: all but the columns of a pick."""
    return 1 if isinstance(batch.value, Pick) else len(batch.tensors)


class Captured(Repeated):
    """Launches graphs, and looks at their verdicts when these have come over."""

    __slots__ = ("_device", "_events", "_flag", "_is_first", "_under_way")

    def __init__(self, stations: Stations, plan: Plan, device: torch.device) -> None:
        self._flag = torch.zeros(()).pin_memory()  # the verdict, as it comes over: NaN where a run was bad
        programs = Programs(plan) if plan.mode == "compiled" else None
        super().__init__(stations, plan, Graphs(device, plan, self._flag, programs))
        self._device, self._is_first = device, True
        self._events = [torch.cuda.Event() for _ in range(_AHEAD + 1)]
        self._under_way: deque[torch.cuda.Event] = deque()

    def _after_eagerly(self) -> None:
        """After the first run: what it has made lies in the middle of large blocks, which graphs could not use then."""
        if not self._is_first:
            return
        self._is_first = False
        torch.cuda.empty_cache()
        idle = torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(self._device)
        if idle > _IDLE:
            self._stations.settle_in()

    def settle(self) -> None:
        """Waits for every run that was launched; raises where one was not finite."""
        while self._under_way:
            self._look()

    def _before_launch(self) -> None:
        while len(self._under_way) >= _AHEAD:
            self._look()

    def _after_launch(self) -> None:
        event = self._events[self._number % len(self._events)]
        event.record(torch.cuda.current_stream(self._device))
        self._under_way.append(event)

    def _look(self) -> None:
        self._under_way.popleft().synchronize()
        if self._flag.item() != 0:  # on the host: nothing is asked of the device
            for event in self._under_way:
                event.synchronize()
            self._under_way.clear()
            self._flag.zero_()
            self._fail()
