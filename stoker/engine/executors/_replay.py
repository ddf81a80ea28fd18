"""Executors that record or compile a step once and repeat it: which program fits a batch, and when to make one."""

import copy
import gc
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stoker._tree import OpaqueValue, Structure, flatten, map_leaves, unflatten
from stoker.data import RowSelection
from stoker.engine._batch import Batch
from stoker.engine._fingerprint import Identity
from stoker.engine._replayable import CannotReplay, explain_failure
from stoker.engine._step import HostState, StepResult, TrainStep
from stoker.engine.executors._executor import PoolContext, StepLog
from stoker.engine.executors._plan import Plan

_MOST_PROGRAMS = 12  # batches of further kinds run eagerly


class FlatBatch(NamedTuple):
    """A batch, separated into tensors and everything else."""

    batch: Batch
    tensors: list[Tensor]
    structure: Structure | None  # None for a `RowSelection`, whose tensors are the rows and the columns
    signature: Hashable

    def with_tensors(self, tensors: Sequence[Tensor]) -> Batch:
        """The same batch with other tensors: those that a CUDA graph reads, or those of a trace."""
        if self.structure is None:
            rows, *columns = tensors
            return replace(self.batch, value=self.batch.value.with_columns(columns).with_rows(rows))
        value, mix = unflatten(self.structure, tensors)
        return replace(self.batch, value=value, mix=mix)

    @property
    def changing(self) -> int:
        """How many of the tensors, the first ones, differ from batch to batch: all but the columns."""
        return 1 if self.structure is None else len(self.tensors)


def flatten_batch(batch: Batch) -> FlatBatch:
    """Separates a batch; raises `OpaqueValue` if it may hide tensors."""
    if isinstance(batch.value, RowSelection):
        columns = batch.value.columns()
        tensors, structure, kind = [batch.value.rows, *columns], None, tuple(map(Identity, columns))
    else:
        tensors, structure = flatten((batch.value, batch.mix))
        kind = structure
    return FlatBatch(batch, tensors, structure, (kind, *[(each.shape, each.stride(), each.dtype) for each in tensors]))


class WindowChange(NamedTuple):
    """What a step does to the bookkeeping of an accumulation window."""

    part: str | None
    closes: bool
    weight: float | None  # what it adds; None if the weight is a tensor
    names: frozenset[str]  # of the parameters that the window holds afterwards


@dataclass(slots=True)
class Program:
    """A step that was recorded or compiled."""

    launch: Callable[[list[Tensor]], Any]  # takes the tensors of a batch, returns a `StepResult` or `LocalGradients`
    window_changes: Sequence[WindowChange] = ()
    batch_fingerprint: Any = None
    source: Any = None  # of the row selections that it is for
    size: int = 0
    columns: Sequence[Tensor] = ()
    make_group: Callable[[], Callable[[list[Tensor]], None]] | None = None  # makes `launch_group`
    launch_group: Callable[[list[Tensor]], None] | None = None  # several steps in one launch, each with its rows
    result: StepResult | None = None  # if it is the same after every launch


class Replay:
    """Runs batches through programs, or eagerly if no program can be made.

    The first batch of a kind runs eagerly and creates the state that later ones use.
    `exact`: a resumed run has to give the same bits.
    """

    def __init__(self, step: TrainStep, plan: Plan, *, exact: bool) -> None:
        self._step, self.plan, self._exact = step, plan, exact
        self._log = StepLog(step)
        self._is_disabled = False
        self._start_over()

    def _start_over(self) -> None:
        """Forgets all programs."""
        self._programs: dict[Hashable, Program] = {}
        self._fingerprints: dict[Any, int] = {}  # numbered: they are large, and hashing one takes long
        self._fingerprint: int | None = None  # the current one; None if something may have changed
        self._seen: Counter[Hashable] = Counter()
        self._known_states: set[Hashable] = set()  # fingerprints for which there is a program
        self._last: Program | None = None

    # --- the contract of executors

    def run(self, batch: Batch, lr: Any) -> StepResult:
        """Runs one batch."""
        if self._is_disabled:
            return self._run_without_programs(batch, lr)
        last = self._last
        if last is not None and self._is_same_kind(last, batch, lr):
            return self._replay(last, batch, lr, [batch.value.rows, *last.columns])
        self._launch_pending()
        try:
            flat = flatten_batch(batch)
        except OpaqueValue as error:
            self._disable(f"a batch holds a {error}, which can't be separated into tensors")
            return self._run_eagerly(batch, lr)
        program = self._find(flat, lr)
        if program is None and self._fingerprint is None and not self._is_disabled:
            program = self._find(flat, lr)  # `_disable` fell back to a program up to the gradients: make it now
        if program is None:
            return self._run_eagerly(batch, lr)
        return self._replay(program, batch, lr, flat.tensors)

    def invalidate(self) -> None:
        """Looks before the next step whether its program still fits."""
        self._launch_pending()
        self._step.refresh()
        self._fingerprint = None

    def synchronize(self) -> None:
        """Waits for steps in flight; here there are none."""

    def drain(self) -> tuple[int, int] | None:
        """Waits for steps in flight; here there are none."""
        return None

    def share_graph_pool(self) -> AbstractContextManager[PoolContext]:
        """All memory is shared anyway."""
        return nullcontext(nullcontext)

    def close(self) -> None:
        """Frees the programs."""
        self._start_over()

    # --- which program

    @property
    def _compiles(self) -> bool:
        """Compiled code rounds in its own way. So whether a batch is compiled must not depend on what this process has
        seen before: a resumed run has to give the same bits.
        """
        return self.plan.mode in ("compiled", "gradient")

    def _is_same_kind(self, last: Program, batch: Batch, lr: Any) -> bool:
        """Whether the last program fits this batch too, decided in a few microseconds."""
        value = batch.value
        if self._fingerprint is None or type(value) is not RowSelection or batch.mix is not None:
            return False
        if value.source is not last.source or len(value) != last.size:
            return False
        self._set_rates(lr)
        return self._batch_fingerprint(batch, lr) == last.batch_fingerprint

    def _set_rates(self, lr: Any) -> None:
        if not self._step.constant_rates:
            self._step.rates.set(lr)

    def _batch_fingerprint(self, batch: Batch, lr: Any) -> Any:
        return self._step.batch_fingerprint(batch, lr)

    def _find(self, flat: FlatBatch, lr: Any) -> Program | None:
        """The program for a batch, made now if it is time."""
        step, batch = self._step, flat.batch
        self._set_rates(lr)
        if self._fingerprint is None:
            if reason := step.find_reason_not_to_replay():
                self._disable(reason)
                return None
            self._fingerprint = self._fingerprints.setdefault(step.fingerprint(), len(self._fingerprints))
        state = (self._fingerprint, self._batch_fingerprint(batch, lr))
        key = (flat.signature, state)
        program = self._programs.get(key)
        if program is None and self._should_make(key, state):
            program = self._make(flat, lr)
            if program is not None:
                self._programs[key] = program
                self._known_states.add(state)
        if program is not None and isinstance(batch.value, RowSelection):
            program.source, program.size, program.columns = batch.value.source, len(batch.value), flat.tensors[1:]
        return program

    def _should_make(self, key: Hashable, state: Hashable) -> bool:
        if len(self._programs) >= _MOST_PROGRAMS:
            note = f"{_MOST_PROGRAMS} kinds of batches have a program of their own; others run eagerly"
            if note not in self.plan.notes:
                self.plan.notes.append(note)
            return False
        if self._compiles:
            return self._step.has_begun
        self._seen[key] += 1
        # With cudnn.benchmark, cuDNN times its kernels for a new shape, which can't be recorded.
        is_known_state = state in self._known_states and not torch.backends.cudnn.benchmark
        return is_known_state or self._seen[key] > 1

    def _make(self, flat: FlatBatch, lr: Any) -> Program | None:
        """Records or compiles a step. Afterwards nothing has run, and the training state is unchanged."""
        step = self._step
        self.synchronize()
        before, effects = step.host_state(), step.side_effects()
        program, error = None, None
        try:
            program = self._record(flat, lr)
            program.window_changes = _window_changes(before, step.host_state())
        except Exception as problem:
            error = problem
        if step.restore_host_state(before) and (error is None or isinstance(error, NewState)):
            return None  # the step creates state, as a first one does: it has to run eagerly
        if error is None:
            if (change := effects.describe_change(step.side_effects())) is None:
                assert program is not None
                program.batch_fingerprint = self._batch_fingerprint(flat.batch, lr)
                return program
            error = CannotReplay(change)
        reason = explain_failure(error)
        del error
        self._disable(reason)
        effects.undo()
        gc.collect()  # the exception held autograd nodes, which belong to the stream of a recording
        return None

    def _record(self, flat: FlatBatch, lr: Any) -> Program:
        """Records or compiles a step; raises `CannotReplay`, or whatever the user's code raises."""
        raise NotImplementedError

    def _disable(self, reason: str) -> None:
        """Runs everything eagerly from here on."""
        self._is_disabled = True
        self.plan.fall_back("eager", reason)
        self._programs.clear()
        self._last = None
        self._report_fall_back()

    def _report_fall_back(self) -> None:
        if self._step.settings.compile:
            self._step.ctx.warn(self.plan.warning)

    # --- running

    def _run_eagerly(self, batch: Batch, lr: Any) -> StepResult:
        self.synchronize()
        self._last, self._fingerprint = None, None  # a first step creates state
        always_misses = not self._programs and len(self._fingerprints) > _MOST_PROGRAMS
        effects = self._step.side_effects() if always_misses else None
        result = self._run_without_programs(batch, lr)
        self._after_eager_step()
        if effects is not None and not self._is_disabled:
            change = effects.describe_change(self._step.side_effects(), generators=False)
            self._disable(
                change or "what the step's Python depends on differs in every batch: for example a module's attribute"
            )
        return result

    def _run_without_programs(self, batch: Batch, lr: Any) -> StepResult:
        return self._step.run(batch, lr)

    def _after_eager_step(self) -> None:
        """Called after each eager step, which may have created state."""

    def _replay(self, program: Program, batch: Batch, lr: Any, tensors: list[Tensor]) -> StepResult:
        self._before_launch()
        self._apply_host_effects(program, batch)
        answer = program.launch(tensors)
        self._last = program
        self._after_launch()
        return self._complete(answer, batch, lr)

    def _apply_host_effects(self, program: Program, batch: Batch) -> None:
        """Does on the host what the step's Python would have done."""
        self._log.add(batch)
        if self._exact:
            self._step.note_weights_changed()
        for change in program.window_changes:
            _apply_window_change(self._step, change)

    def _complete(self, answer: Any, batch: Batch, lr: Any) -> StepResult:
        """The result of a replayed step."""
        return answer

    def _launch_pending(self) -> None:
        """Launches steps that were held back to be launched together."""

    def _before_launch(self) -> None:
        """Waits until another step may be in flight."""

    def _after_launch(self) -> None:
        """Notes that a step is in flight, or checks it at once."""


class NewState(Exception):
    """A traced step has created state tensors, which do not exist after the trace."""


def _window_changes(before: HostState, after: HostState) -> list[WindowChange]:
    changes: list[WindowChange] = []
    for part, (new, *_) in after.accumulators.items():
        if part not in before.accumulators or before.accumulators[part][0] == new:
            continue
        old_count, old_weight, _ = before.accumulators[part][0]
        new_count, new_weight, names = new
        weight = None if new_weight is None or old_weight is None else new_weight - old_weight
        changes.append(WindowChange(part, new_count <= old_count, weight, names))
    return changes


def _apply_window_change(step: TrainStep, change: WindowChange) -> None:
    window = step.state.accumulators[change.part]
    count, weight, _ = window.bookkeeping
    if change.closes:
        window.reset()
    elif change.weight is None or weight is None:
        window.set_bookkeeping(count + 1, None, change.names)
    else:
        window.set_bookkeeping(count + 1, weight + change.weight, change.names)


def detach_outputs(result: StepResult, *, wanted: bool) -> StepResult:
    """A step's result without autograd graphs, and without outputs that are not read."""
    if not wanted:
        return StepResult(updated=result.updated, skipped=result.skipped)
    return map_outputs(Tensor.detach, result)


def map_outputs(function: Callable[[Tensor], Tensor], result: StepResult) -> StepResult:
    """A step's result with `function(tensor)` for every tensor in its outputs."""

    def change(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return function(leaf)
        tensors = {name: each for name, each in getattr(leaf, "__dict__", {}).items() if isinstance(each, Tensor)}
        if not tensors:
            return leaf
        twin = copy.copy(leaf)  # an output of a class of the user's own
        for name, each in tensors.items():
            setattr(twin, name, function(each))
        return twin

    names = ("loss", "batch", "pred", "output")
    return replace(result, **{name: map_leaves(change, getattr(result, name)) for name in names})
