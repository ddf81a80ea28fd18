"""A step as a CUDA graph: the operations that it would launch one by one, recorded once and launched together."""

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor

from stoker._text import format_size
from stoker.data import RowSelection
from stoker.engine._batch import Batch
from stoker.engine._replayable import CannotReplay, explain_failure
from stoker.engine._step import StepResult, TrainStep
from stoker.engine.executors._compiled import trace_and_compile
from stoker.engine.executors._executor import PoolContext, StepQueue
from stoker.engine.executors._graph_memory import (
    GraphPool,
    allocate_workspaces,
    clear_workspaces,
    reserve_stream,
    run_on_stream,
)
from stoker.engine.executors._plan import Plan
from stoker.engine.executors._replay import FlatBatch, NewState, Program, Replay, detach_outputs, map_outputs
from stoker.optim import Optimizer

T = TypeVar("T")
GROUP_SIZE = 8  # steps to a launch, if nothing happens between them
_SMALL_MODEL = 2**25  # elements of parameters and state; steps of larger models take longer than their launch
_UNUSED_LIMIT = 256 * 2**20  # bytes of memory that may be reserved and unused, or a twentieth of all
_recording = threading.Lock()  # fits of one process record one at a time


class CudaGraph(Replay):
    """Launches CUDA graphs, and checks whether their values were finite when the flags have arrived on the host.

    The whole fit runs on the stream on which graphs are recorded, eager batches and validation too: nothing that one of
    them frees is overwritten while another one reads it, and cuBLAS has one set of workspaces (32 MiB for each stream
    and thread on an H200).
    """

    def __init__(self, step: TrainStep, plan: Plan, device: torch.device, *, exact: bool) -> None:
        super().__init__(step, plan, exact=exact)
        self._device = device
        self._queue = StepQueue(device, flag_per_step=False)
        self._pool: GraphPool | None = None  # from the first graph on
        self._graph_bytes = 0
        self._is_first_step, self._may_share_pool, self._has_recorded = True, True, True
        self._groups = False  # this step may be launched together with the next ones
        self._pending: list[list[Tensor]] = []  # batches that will be launched together
        self._outside = torch.cuda.current_stream(device)  # of the caller
        self._stack = ExitStack()
        stream = self._stack.enter_context(reserve_stream(device))
        self._stack.enter_context(run_on_stream(stream))
        allocate_workspaces(device)

    # --- the contract of executors

    def run(self, batch: Batch, lr: Any) -> StepResult:
        """Runs one batch, at once or together with the next ones."""
        self._groups = self._can_group(lr)
        if self._pending and not self._groups:
            self._launch_pending()
        return super().run(batch, lr)

    def synchronize(self) -> None:
        """Waits for every step that was launched; raises if one was not finite."""
        self._launch_pending()
        while self._queue:
            self._check_oldest()

    def drain(self) -> tuple[int, int] | None:
        """Waits for every step that was launched; returns the position of one that was not finite."""
        self._launch_pending()
        while self._queue:
            if self._queue.wait_for_oldest() is None:
                return self._log.take_first_bad().position
        return None

    @contextmanager
    def share_graph_pool(self) -> Iterator[PoolContext]:
        """Lends the graphs' memory between two launches, and checks that nothing is left there."""
        pool = self._pool
        if pool is None or self._is_disabled or not self._may_share_pool:
            yield nullcontext
            return
        self.synchronize()
        before = pool.addresses_in_use()
        try:
            yield pool.allocate_here
        finally:
            if pool.addresses_in_use() - before:  # a launch would overwrite it: new graphs get another pool
                self._may_share_pool, self._pool = False, None
                self.plan.notes.append("recorded again: a validation left tensors in memory that graphs write to")
                self._start_over()

    def close(self) -> None:
        """Frees graphs and their memory, and returns to the caller's stream."""
        super().close()
        self._pending.clear()
        self._pool = None
        self._stack.close()
        torch.cuda.synchronize(self._device)
        clear_workspaces()

    # --- recording

    def _record(self, flat: FlatBatch, lr: Any) -> Program:
        step = self._step
        written = step.tensors()
        if any(tensor.device != self._device for tensor in written):
            raise CannotReplay("the optimizer keeps its counters on the host; omit foreach=, or set capturable=True")
        if any(tensor.device != self._device for tensor in flat.tensors):
            raise CannotReplay("a batch holds a tensor on the host, whose values a graph would not see change")
        changing = flat.changing
        # Columns that rows are gathered from stay where they are; other tensors are copied in before each launch.
        static = [*(each.clone() for each in flat.tensors[:changing]), *flat.tensors[changing:]]
        inputs = static[:changing]
        compute = self._prepare(flat, lr)
        graph = torch.cuda.CUDAGraph()
        result = self._capture(graph, lambda: compute(flat.with_tensors(static), static))

        def launch(tensors: list[Tensor]) -> StepResult:
            for target, new in zip(inputs, tensors[:changing], strict=True):
                target.copy_(new, non_blocking=True)
            graph.replay()
            return result

        program = Program(launch, result=result)
        is_small = sum(tensor.numel() for tensor in written) < _SMALL_MODEL
        if is_small and isinstance(flat.batch.value, RowSelection):
            program.make_group = lambda: self._record_group(flat, static, compute)
        return program

    def _prepare(self, flat: FlatBatch, lr: Any) -> Callable[[Batch, list[Tensor]], StepResult]:
        """What to record: a compiled program if the plan says so and it can be made, otherwise the step itself."""
        step, wanted = self._step, self._step.wants_output

        def run(batch: Batch) -> StepResult:
            return detach_outputs(step.run(batch, lr, sync=False), wanted=wanted)

        def run_operations(batch: Batch, tensors: list[Tensor]) -> StepResult:
            result = run(batch)
            step.flags.end_step()
            return result

        if self.plan.mode != "compiled":
            return run_operations
        effects, before = step.side_effects(), step.host_state()
        try:
            traced, compiled = trace_and_compile(step, self.plan, flat, run, exact=self._exact)
            # One call on copies loads and tunes the kernels; nothing of the training moves.
            random = torch.cuda.get_rng_state(self._device)
            with torch.no_grad():
                compiled([*(tensor.clone() for tensor in traced.fixed), *flat.tensors])
            torch.cuda.set_rng_state(random, self._device)
        except NewState:
            raise
        except Exception as error:
            self.plan.fall_back("captured", explain_failure(error))
            effects.undo()
            step.restore_host_state(before)
            self._report_fall_back()
            return run_operations

        def run_compiled(batch: Batch, tensors: list[Tensor]) -> StepResult:
            with torch.no_grad():
                outputs = compiled([*traced.fixed, *tensors]) or ()
            return traced.rebuild(outputs)

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
            with _recording, _without_garbage_collection(), _repair_generator(self._device), capture:
                found = run()
                self._queue.send_flag(self._step.flags.nonfinite)
        except BaseException:
            self._pool.abandon()
            self._pool = None
            raise
        self._note_memory(torch.cuda.memory_reserved(self._device) - reserved)
        return found

    def _note_memory(self, grown: int) -> None:
        self._graph_bytes += max(grown, 0)
        start = "graph memory "
        self.plan.notes = [note for note in self.plan.notes if not note.startswith(start)]
        self.plan.notes.append(f"{start}{format_size(self._graph_bytes)}, one pool for all shapes")

    # --- launching

    def _can_group(self, lr: Any) -> bool:
        """Whether the host does nothing between the last step and this one: it reads no output, and rates are equal."""
        step = self._step
        same_rates = step.constant_rates or lr == step.rates.last
        return same_rates and not step.wants_output and not self._exact

    def _replay(self, program: Program, batch: Batch, lr: Any, tensors: list[Tensor]) -> StepResult:
        if program is not self._last or program.make_group is None or not self._groups:
            return super()._replay(program, batch, lr, tensors)
        self._apply_host_effects(program, batch)
        self._pending.append(tensors)
        if len(self._pending) == GROUP_SIZE:
            self._launch_pending()
        assert program.result is not None
        return program.result

    def _complete(self, answer: StepResult, batch: Batch, lr: Any) -> StepResult:
        # The next launch overwrites the outputs of this one.
        return map_outputs(torch.clone, answer) if self._step.wants_output else answer

    def _launch_pending(self) -> None:
        pending, self._pending, program = self._pending, [], self._last
        if program is None or not pending:
            return
        if len(pending) == GROUP_SIZE and program.launch_group is None:
            self._make_group(program)
        if len(pending) == GROUP_SIZE and program.launch_group is not None:
            self._before_launch()
            program.launch_group([tensors[0] for tensors in pending])
            self._after_launch()
            return
        for remaining, tensors in zip(range(len(pending) - 1, -1, -1), pending, strict=True):
            self._before_launch()
            program.launch(tensors)
            self._queue.add(self._log.number - remaining)

    def _make_group(self, program: Program) -> None:
        assert program.make_group is not None
        before = self._step.host_state()
        try:
            program.launch_group = program.make_group()
        except Exception as error:  # single steps are recorded already
            program.make_group = None
            self.plan.notes.append(f"one step to a launch: {explain_failure(error)}")
        finally:
            self._step.restore_host_state(before)

    def _record_group(
        self, flat: FlatBatch, static: list[Tensor], compute: Callable[[Batch, list[Tensor]], StepResult]
    ) -> Callable[[list[Tensor]], None]:
        """A launch of GROUP_SIZE steps, one after the other, with the rows of each."""
        graph, size = torch.cuda.CUDAGraph(), len(static[0])
        all_rows = static[0].new_zeros(GROUP_SIZE * size)

        def run_all() -> None:
            for rows in all_rows.split(size):
                tensors = [rows, *static[1:]]
                compute(flat.with_tensors(tensors), tensors)

        self._capture(graph, run_all)
        self.plan.notes.append(f"{GROUP_SIZE} steps to a launch")

        def launch(rows: list[Tensor]) -> None:
            torch.cat(rows, out=all_rows)
            graph.replay()

        return launch

    def _run_without_programs(self, batch: Batch, lr: Any) -> StepResult:
        if self._is_disabled and self._has_recorded:
            self._has_recorded = False
            clear_workspaces()  # with the memory of the graphs
        return super()._run_without_programs(batch, lr)

    def _after_eager_step(self) -> None:
        """After the first step: moves the optimizer's state out of large blocks, which graphs could not use then."""
        if not self._is_first_step:
            return
        self._is_first_step = False
        torch.cuda.empty_cache()
        reserved = torch.cuda.memory_reserved(self._device)
        unused = reserved - torch.cuda.memory_allocated(self._device)
        if unused > min(_UNUSED_LIMIT, reserved // 20):
            with run_on_stream(self._outside):  # beside the weights, in blocks with free space
                compact_optimizer_state(self._step.state.optimizer)

    def _before_launch(self) -> None:
        while self._queue.is_full:
            self._check_oldest()

    def _after_launch(self) -> None:
        self._queue.add(self._log.number)

    def _check_oldest(self) -> None:
        number = self._queue.wait_for_oldest()
        if number is None:
            self._last = None
            self._log.raise_first_bad()
        self._log.forget_until(number)


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Collecting a dead graph or event while another graph is recorded would invalidate the recording."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
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
    state = [{name: dict(own) for name, own in rule.items()} for rule in optimizer.state_tensors()]
    owners = [own for rule in state for own in rule.values()]
    devices = [{key: each.device for key, each in own.items() if each is not None} for own in owners]
    for own in owners:
        own.update({key: each.cpu() for key, each in own.items() if each is not None})
    optimizer.set_state_tensors(state)
    torch.cuda.empty_cache()
    for own, there in zip(owners, devices, strict=True):
        own.update({key: each.to(there[key]) for key, each in own.items() if each is not None})
    optimizer.set_state_tensors(state)
