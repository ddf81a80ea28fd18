"""A step as a CUDA graph: the operations that it would launch one by one, recorded once and launched together."""

import gc
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor

from stoker._text import format_size
from stoker._tree import map_leaves, map_tensors
from stoker.data import RowSelection
from stoker.engine._batch import Batch
from stoker.engine._plan import Plan
from stoker.engine._replayable import CannotReplay, explain_failure
from stoker.engine._step import StepResult, TrainStep
from stoker.engine.executors._compiled import trace_and_compile
from stoker.engine.executors._executor import Executor, PoolContext, SpanResult, StepsInFlight
from stoker.engine.executors._graph_memory import (
    GraphPool,
    allocate_workspaces,
    clear_workspaces,
    reserve_stream,
    run_on_stream,
)
from stoker.engine.executors._programs import (
    FlatBatch,
    HostState,
    NewState,
    Program,
    ProgramCache,
    detach_outputs,
    map_outputs,
    side_effects_of,
    step_tensors,
)
from stoker.optim import Optimizer

S = TypeVar("S")
T = TypeVar("T")
STEPS_PER_LAUNCH = 8  # if they have the same learning rates
_LONGEST_SPAN = 32  # updates, so that a signal is noticed soon
_SMALL_MODEL = 2**25  # elements of parameters and state; steps of larger models take longer than their launch
_UNUSED_LIMIT = 256 * 2**20  # bytes of memory that may be reserved and unused, or a twentieth of all
_recording = threading.Lock()  # fits of one process record one at a time


class CudaGraph(Executor):
    """Launches CUDA graphs, and checks whether their values were finite when the flags have arrived on the host.

    The whole fit runs on the stream on which graphs are recorded, eager batches and validation too: nothing that one of
    them frees is overwritten while another one reads it, and cuBLAS has one set of workspaces (32 MiB for each stream
    and thread on an H200). `is_saved`: a resumed run has to give the same bits.
    """

    def __init__(self, step: TrainStep, plan: Plan, device: torch.device, *, is_saved: bool) -> None:
        super().__init__(step)
        self._plan, self._device, self._is_saved = plan, device, is_saved
        self._programs = ProgramCache(step, plan, self._record, self.synchronize)
        self._in_flight = StepsInFlight(step, device, flag_per_step=False)
        self._pool: GraphPool | None = None  # from the first graph on
        self._graph_bytes = 0
        self._is_first_step = True
        self._may_share_pool = True
        self._outside = torch.cuda.current_stream(device)  # of the caller
        self._stack = ExitStack()
        stream = self._stack.enter_context(reserve_stream(device))
        self._stack.enter_context(run_on_stream(stream))
        allocate_workspaces(device)

    # --- the contract of executors

    def run(self, batch: Batch, lr: Any) -> StepResult:
        """Runs one batch by its graph; eagerly if it has none."""
        found = self._find(batch, lr)
        if found is None:
            return self._run_eagerly(batch, lr)
        program, tensors = found
        result = self._launch([batch], program, program.launch, tensors)
        # The next launch overwrites the outputs of this one.
        return map_outputs(torch.clone, result) if self._step.wants_output else result

    def run_span(self, first: Batch, rows: Tensor, rates: Sequence[Any]) -> SpanResult:
        """Launches several steps together where they have the same learning rates. Each batch is an update."""
        done = 0
        while done < len(rows):
            batch, lr = first.later(rows[done], done), rates[done]
            found = self._find(batch, lr)
            if found is None or found[0].record_several is None:  # the next batches run one by one
                self.longest_span = 1
                break
            program, tensors = found
            count = STEPS_PER_LAUNCH if rates[done : done + STEPS_PER_LAUNCH] == [lr] * STEPS_PER_LAUNCH else 1
            if count > 1 and program.launch_several is None:
                self._add_launch_of_several(program)
            if count > 1 and program.launch_several is not None:
                own = rows[done : done + count]
                batches = [first.later(each, done + index) for index, each in enumerate(own.unbind())]
                self._launch(batches, program, program.launch_several, own)
            else:
                count = 1
                self._launch([batch], program, program.launch, tensors)
            done += count
        return SpanResult(done, done)

    def synchronize(self) -> None:
        """Waits for every step that was launched; raises if one was not finite."""
        self._in_flight.check_all()

    def drain(self) -> tuple[int, int] | None:
        """Waits for every step that was launched; returns the position of one that was not finite."""
        return self._in_flight.drain()

    def invalidate(self) -> None:
        """Looks before the next step whether its program still fits."""
        self._step.refresh()
        self._programs.invalidate()

    @contextmanager
    def share_graph_pool(self) -> Iterator[PoolContext]:
        """Lets validation use the graphs' memory between two launches; afterwards nothing may be left there.

        A launch would overwrite it. If something is left, the graphs are recorded again in another pool.
        """
        pool = self._pool
        if pool is None or self._programs.is_disabled or not self._may_share_pool:
            yield nullcontext
            return
        self.synchronize()
        before = pool.addresses_in_use()
        try:
            yield pool.allocate_here
        finally:
            if pool.addresses_in_use() - before:
                self._may_share_pool = False
                self._pool = None
                self._plan.notes.append("recorded again: a validation left tensors in memory that graphs write to")
                self._programs.clear()

    def free_memory(self) -> bool:
        """Frees the graphs and their pool, which only graphs can use."""
        self.synchronize()
        has_graphs = self._pool is not None
        self._programs.clear()
        self._pool = None
        gc.collect()  # an exception may be part of a cycle, and so hold tensors
        clear_workspaces()
        return has_graphs

    def close(self) -> None:
        """Frees graphs and their memory, and returns to the caller's stream."""
        self._programs.clear()
        self._pool = None
        self._stack.close()
        torch.cuda.synchronize(self._device)
        clear_workspaces()

    # --- recording

    def _record(self, flat: FlatBatch, lr: Any) -> Program:
        written = step_tensors(self._step)
        if any(tensor.device != self._device for tensor in written):
            raise CannotReplay("the optimizer keeps its counters on the host; omit foreach=, or set capturable=True")
        if any(tensor.device != self._device for tensor in flat.tensors):
            raise CannotReplay("a batch holds a tensor on the host, whose values a graph would not see change")
        # Columns that rows are gathered from stay where they are; other tensors are copied in before each launch.
        inputs = [tensor.clone() for tensor in flat.tensors[: flat.changing]]
        static = [*inputs, *flat.tensors[flat.changing :]]
        compute = self._make_computation(flat, lr)
        graph = torch.cuda.CUDAGraph()
        result = self._capture(graph, lambda: compute(flat.with_tensors(static), static))

        def launch(tensors: list[Tensor]) -> StepResult:
            for target, new in zip(inputs, tensors, strict=False):
                target.copy_(new, non_blocking=True)
            graph.replay()
            return result

        program = Program(launch)
        is_small = sum(tensor.numel() for tensor in written) < _SMALL_MODEL
        if is_small and isinstance(flat.batch.value, RowSelection):
            program.record_several = lambda: self._record_steps(flat, static, compute)
            if self._step.settings.accumulate == 1 and not self._step.wants_output:
                self.longest_span = _LONGEST_SPAN
        return program

    def _make_computation(self, flat: FlatBatch, lr: Any) -> Callable[[Batch, list[Tensor]], StepResult]:
        """What to record: a compiled program if the plan says so and it can be made, otherwise the step itself."""
        step, wanted, whole = self._step, self._step.wants_output, self._step.compiles_update

        def run_operations(batch: Batch, tensors: list[Tensor]) -> StepResult:
            result = detach_outputs(step.run(batch, lr, step.device_guard), wanted=wanted)
            step.device_guard.end_step()
            return result

        if not self._plan.is_compiled:
            return run_operations
        effects, before = side_effects_of(step), HostState(step)
        try:
            traced, compiled = trace_and_compile(step, self._plan, flat, lr, whole=whole, is_saved=self._is_saved)
        except NewState:
            raise
        except Exception as error:
            self._plan.fall_back("captured", explain_failure(error))
            effects.undo()
            before.restore()
            self._programs.report_fall_back()
            return run_operations

        def run_compiled(batch: Batch, tensors: list[Tensor]) -> StepResult:
            with torch.no_grad():
                computed = traced.rebuild(compiled([*traced.fixed, *tensors]) or ())
            if whole:
                return computed
            result = step.apply_local_gradients(computed, batch, lr, step.device_guard)  # recorded in the same graph
            step.device_guard.end_step()
            return result

        return run_compiled

    def _capture(self, graph: torch.cuda.CUDAGraph, run: Callable[[], T]) -> T:
        """Records what a function launches, and the copy of the finite flag to the host."""
        clear_workspaces()
        reserved = torch.cuda.memory_reserved(self._device)
        self._pool = self._pool or GraphPool(self._device)
        stream = torch.cuda.current_stream(self._device)  # torch's own stream for graphs may be another device's
        # "thread_local": threads that fetch data or write a checkpoint continue meanwhile.
        capture = torch.cuda.graph(graph, self._pool.handle, stream, capture_error_mode="thread_local")
        try:
            with _recording, _quiet(), _repair_generator(self._device), capture:
                result = run()
                self._in_flight.send_flag()
        except BaseException:
            self._pool.abandon()
            self._pool = None
            raise
        self._graph_bytes += max(torch.cuda.memory_reserved(self._device) - reserved, 0)
        start = "graph memory "
        self._plan.notes = [note for note in self._plan.notes if not note.startswith(start)]
        self._plan.notes.append(f"{start}{format_size(self._graph_bytes)}, one pool for all shapes")
        return result

    # --- running

    def _find(self, batch: Batch, lr: Any) -> tuple[Program, list[Tensor]] | None:
        """The graph for a batch and the tensors to launch it with; None if it has to run eagerly."""
        try:
            return self._programs.find(batch, lr)
        except CannotReplay as error:
            self._programs.disable(str(error))
            clear_workspaces()  # with the memory of the graphs
            return None

    def _launch(self, batches: Sequence[Batch], program: Program, launch: Callable[[S], T], inputs: S) -> T:
        """Launches the steps of these batches, and does on the host what their Python would have done."""
        step, in_flight = self._step, self._in_flight
        in_flight.wait_for_room()
        for batch in batches:
            in_flight.add(batch)
            for change in program.window_changes:
                change.apply(step)
        if self._is_saved:
            step.note_weights_changed()
        result = launch(inputs)
        in_flight.note_launch()
        return result

    def _run_eagerly(self, batch: Batch, lr: Any) -> StepResult:
        result = self._programs.run_eagerly(batch, lr)
        if self._is_first_step and not self._programs.is_disabled:
            self._is_first_step = False
            self._compact_memory()
        return result

    def _compact_memory(self) -> None:
        """After the first step: moves the optimizer's state out of large blocks, which graphs could not use then."""
        torch.cuda.empty_cache()
        reserved = torch.cuda.memory_reserved(self._device)
        unused = reserved - torch.cuda.memory_allocated(self._device)
        if unused > min(_UNUSED_LIMIT, reserved // 20):
            with run_on_stream(self._outside):  # beside the weights, in blocks with free space
                compact_optimizer_state(self._step.state.optimizer)

    # --- several steps to a launch

    def _add_launch_of_several(self, program: Program) -> None:
        """Records a graph of several steps for a program, if that is possible."""
        assert program.record_several is not None
        self.synchronize()
        before = HostState(self._step)
        try:
            program.launch_several = program.record_several()
        except Exception as error:  # single steps are recorded already
            program.record_several = None
            self._plan.notes.append(f"one step to a launch: {explain_failure(error)}")
        finally:
            before.restore()

    def _record_steps(
        self, flat: FlatBatch, static: list[Tensor], compute: Callable[[Batch, list[Tensor]], StepResult]
    ) -> Callable[[Tensor], None]:
        """A launch of several steps, one after the other, with the rows of each."""
        graph, size = torch.cuda.CUDAGraph(), len(static[0])
        all_rows = static[0].new_zeros(STEPS_PER_LAUNCH, size)

        def run_all() -> None:
            for rows in all_rows.unbind():
                tensors = [rows, *static[1:]]
                compute(flat.with_tensors(tensors), tensors)

        self._capture(graph, run_all)
        self._plan.notes.append(f"{STEPS_PER_LAUNCH} steps to a launch")

        def launch(rows: Tensor) -> None:
            all_rows.copy_(rows)
            graph.replay()

        return launch


@contextmanager
def _quiet() -> Iterator[None]:
    """Without garbage collection: collecting a dead graph while another one is recorded would invalidate the recording.

    And without torch's warning about an empty graph, if a recording fails before its first operation.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The CUDA Graph is empty")
            yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def _repair_generator(device: torch.device) -> Iterator[None]:
    """A failed recording leaves the device's generator in the middle of it; another one that succeeds ends that.

    A new state for the generator would not help: existing graphs continue with the old one.
    """
    stream = torch.cuda.current_stream(device)
    try:
        yield
    except BaseException:
        torch.cuda.set_stream(stream)  # torch only leaves its own stream if the recording succeeds
        torch.cuda.synchronize(device)
        with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream, capture_error_mode="thread_local"):
            torch.zeros(1, device=device)
        raise


def compact_optimizer_state(optimizer: Optimizer) -> None:
    """Moves the state of an optimizer to the host and back, so that it is allocated close together."""
    devices = map_tensors(lambda tensor: tensor.device, optimizer.state_tensors())
    on_host = map_tensors(Tensor.cpu, optimizer.state_tensors())
    optimizer.set_state_tensors(on_host)
    torch.cuda.empty_cache()
    optimizer.set_state_tensors(map_leaves(_move_back, on_host, devices))


def _move_back(tensor: Tensor | None, device: torch.device) -> Tensor | None:
    return None if tensor is None else tensor.to(device)
