"""A step as one CUDA graph: the operations that it would launch one by one, recorded once and launched together."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor

from stoker.data import RowSelection
from stoker.program._compiled import Programs
from stoker.program._made import Batch, Left, Made, NotYet
from stoker.program._plan import Plan, size
from stoker.program._pool import Pool, aside, clear_workspaces, own_stream
from stoker.program._reason import Cannot, reason_of
from stoker.program._repeated import Repeated
from stoker.program._runs import UnderWay
from stoker.program._stations import Stations
from stoker.program._tree import Shape, matched, taken_apart, together, written_back

T = TypeVar("T")
GROUP = 8  # steps to a launch, where nothing happens between them
_SMALL = 2**25  # numbers in parameters and state; the steps of larger models take longer than launches
_IDLE = 256 * 2**20  # bytes that may stay unused, or a twentieth of all


class Graphs:
    """Records steps as CUDA graphs that share their memory: the stations as they are, or a program of them."""

    __slots__ = ("_device", "_memory", "_plan", "_programs", "_under_way", "pool")

    def __init__(self, device: torch.device, plan: Plan, under_way: UnderWay, programs: Programs | None) -> None:
        self._device, self._plan, self._under_way, self._programs = device, plan, under_way, programs
        self.pool: Pool | None = None  # from the first graph on
        self._memory = 0  # bytes that recordings have taken

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
        record = self._prepared(stations, own, kept, before)
        stations.forget()
        shape, after, said, again = self._recorded(graph, stations, lambda: record(stations, own, kept, before))
        stations.forget()

        def launch(tensors: list[Tensor]) -> None:
            for place, new in zip(inputs, tensors[:numbers], strict=True):
                place.copy_(new, non_blocking=True)
            graph.replay()

        made = Made(launch, before, (shape, after), said, again)
        small = sum(tensor.numel() for tensor in stations.inputs().written) < _SMALL
        if again and small and isinstance(batch.value, RowSelection):
            made.several = lambda: self._several(stations, own, kept, before, record)
        return made

    def _several(
        self, stations: Stations, batch: Batch, kept: Shape, before: list[Tensor], record: Callable[..., Left]
    ) -> Callable[[list[Tensor]], None]:
        """A launch of GROUP steps, one after the other, with the numbers of the rows of each."""
        graph, size = torch.cuda.CUDAGraph(), len(batch.tensors[0])
        numbers = batch.tensors[0].new_zeros(GROUP * size)

        def all_of_them() -> None:
            for own in numbers.split(size):
                tensors = [own, *batch.tensors[1:]]
                value = together(batch.shape, iter(tensors))
                record(stations, batch._replace(value=value, tensors=tensors), kept, before)
                stations.forget()  # its memory is the next one's

        self._recorded(graph, stations, all_of_them)
        self._plan.notes.append(f"{GROUP} steps to a launch")

        def launch(picked: list[Tensor]) -> None:
            torch.cat(picked, out=numbers)
            graph.replay()

        return launch

    def _recorded(self, graph: torch.cuda.CUDAGraph, stations: Stations, run: Callable[[], T]) -> T:
        """Records what a function launches, and the verdict on its way to the host."""
        clear_workspaces()
        taken = torch.cuda.memory_reserved(self._device)
        # Other threads (one that fetches data, one that writes a checkpoint) go on meanwhile.
        self.pool = self.pool or Pool(self._device)
        stream = torch.cuda.current_stream(self._device)  # torch's own for graphs is of whatever device came first
        recording = torch.cuda.graph(graph, self.pool.handle, stream, capture_error_mode="thread_local")
        try:
            with _one_at_a_time, _recoverable(self._device), recording:
                found = run()
                self._under_way.send(stations.verdict.poison)
        except BaseException:
            self.pool.abandon()
            self.pool = None
            raise
        self._note(torch.cuda.memory_reserved(self._device) - taken)
        return found

    def _prepared(self, stations: Stations, batch: Batch, kept: Shape, before: list[Tensor]) -> Callable[..., Left]:
        """What to record: a compiled program where there can be one, else the stations, which is the next best."""
        if self._programs is None:
            return _as_they_run
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
            return _as_they_run

    def _note(self, grown: int) -> None:
        self._memory, start = self._memory + max(grown, 0), "graph memory "
        self._plan.notes = [note for note in self._plan.notes if not note.startswith(start)]
        self._plan.notes.append(f"{start}{size(self._memory)}, one pool for all shapes")


_one_at_a_time = threading.Lock()  # of the fits of a process that record


@contextmanager
def _recoverable(device: torch.device) -> Iterator[None]:
    """A recording that fails leaves the device's generator in the middle of it; one that ends well ends that, too.

    A new state for the generator would be no help: the graphs that are there already go on with the one that it had.
    """
    stream = torch.cuda.current_stream(device)
    try:
        yield
    except BaseException:
        torch.cuda.set_stream(stream)  # torch leaves its own one only where the recording ends well
        torch.cuda.synchronize(device)
        with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream, capture_error_mode="thread_local"):
            torch.zeros(1, device=device)
        raise


def _as_they_run(stations: Stations, batch: Batch, kept: Shape, before: list[Tensor]) -> Left:
    """The stations as they run, one operation after the other."""
    after: list[Tensor] = []
    with stations.on_device():
        stations.run(batch.value)
        stations.verdict.end()
        shape = taken_apart(stations.kept(), after)
        again = matched(before, after, (kept, shape))
        if again:
            written_back(before, after)
            stations.hold(together(kept, iter(before)))  # for the next one, where several are recorded
        return Left(shape, before if again else after, stations.said(), again)


def _take_workspaces(device: torch.device) -> None:
    """Those of cuBLAS: taken while nothing else is there, they lie in no large block of others."""
    torch.cuda.empty_cache()
    with torch.enable_grad():
        square = torch.zeros(16, 16, device=device, requires_grad=True)
        product = torch.addmm(square[0], square, square)
        torch.autograd.grad(product.sum(), square)  # in autograd's thread, which has its own


def _changing(batch: Batch) -> int:
    """How many of a batch's tensors, its first ones, differ from batch to batch: all but the columns of a pick."""
    return 1 if isinstance(batch.value, RowSelection) else len(batch.tensors)


class Captured(Repeated):
    """Launches graphs, and looks at their verdicts when these have come over."""

    __slots__ = ("_device", "_graphs", "_is_first", "_lends", "_outside", "_pending", "_records", "_under_way")

    def __init__(self, stations: Stations, plan: Plan, device: torch.device) -> None:
        self._under_way = UnderWay(device, by_run=False)
        programs = Programs(plan) if plan.mode == "compiled" else None
        self._graphs = Graphs(device, plan, self._under_way, programs)
        super().__init__(stations, plan, self._graphs)
        self._device, self._is_first, self._lends, self._records = device, True, True, True
        self._outside = torch.cuda.current_stream(device)  # where the fit was called
        self._pending: list[list[Tensor]] = []  # batches that are to be launched together with the next ones

    @contextmanager
    def fitting(self) -> Iterator[None]:
        """The whole fit is on the stream on which graphs are recorded, eager batches and validation as well.

        So nothing that one of them lets go of is written over while another one reads it, what is free for one is for
        the other, and cuBLAS's workspaces, 32 MiB for each stream and thread on an H200, are the same ones.
        """
        with own_stream(self._device) as stream, aside(stream):
            _take_workspaces(self._device)
            yield

    def run(self, given: Any) -> None:
        """One batch, at once or together with the next ones."""
        if self._pending and not self._stations.alone():
            self._launch()
        super().run(given)

    def touched(self) -> None:
        """Somebody may have changed something."""
        self._launch()
        super().touched()

    @contextmanager
    def between(self) -> Iterator[Callable[[], AbstractContextManager[None]]]:
        """Lends the graphs' memory to what is computed between two launches, and looks what was left there."""
        pool = self._graphs.pool
        if pool is None or self._given_up or not self._lends:
            yield nullcontext
            return
        self.settle()
        before = pool.held()
        try:
            yield pool.lent
        finally:
            if pool.held() - before:  # a launch would write there: it is left to its holder, and others are recorded
                self._lends, self._graphs.pool = False, None
                self.plan.notes.append("recorded again: a validation has left tensors in memory that graphs write to")
                self._start_anew()

    def _repeat(self, made: Made, given: Any, tensors: list[Tensor]) -> None:
        if made is not self._last or made.several is None or not self._stations.alone():
            super()._repeat(made, given, tensors)
            return
        self._counted(made, given)
        self._pending.append(tensors)
        self._stations.say(made.said)
        if len(self._pending) == GROUP:
            self._launch()

    def _launch(self) -> None:
        pending, self._pending, made = self._pending, [], self._last
        if made is None or not pending:
            return
        if len(pending) == GROUP and made.group is None:
            self._record_group(made)
        if len(pending) == GROUP and made.group is not None:
            self._before_launch()
            made.group([tensors[0] for tensors in pending])
            self._after_launch()
            return
        for left, tensors in zip(range(len(pending) - 1, -1, -1), pending, strict=True):
            self._before_launch()
            made.launch(tensors)
            self._under_way.started(self._number - left)

    def _record_group(self, made: Made) -> None:
        assert made.several is not None
        stations = self._stations
        try:
            made.group = made.several()
        except Exception as error:  # one by one they have been recorded
            made.several = None
            self.plan.notes.append(f"one step to a launch: {reason_of(error)}")
        finally:  # recording has left its own
            stations.forget()
            stations.hold(together(made.after[0], iter(made.before)))
            stations.say(made.said)

    def _by_itself(self, given: Any) -> None:
        if self._given_up and self._records:
            self._records = False
            self._stations.forget()
            clear_workspaces()  # with what the graphs had
        super()._by_itself(given)

    def _after_eagerly(self) -> None:
        """After the first run: what it has made lies in the middle of large blocks, which graphs could not use then."""
        if not self._is_first:
            return
        self._is_first = False
        torch.cuda.empty_cache()
        taken = torch.cuda.memory_reserved(self._device)
        if taken - torch.cuda.memory_allocated(self._device) > min(_IDLE, taken // 20):
            with aside(self._outside):  # beside the weights, in blocks that have room
                self._stations.settle_in()

    def settle(self) -> None:
        """Waits for every run that was launched; raises where one was not finite."""
        self._launch()
        while self._under_way:
            self._hear(self._under_way)

    def _before_launch(self) -> None:
        while self._under_way.is_full:
            self._hear(self._under_way)

    def _after_launch(self) -> None:
        self._under_way.started(self._number)
