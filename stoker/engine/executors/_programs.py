"""Programs are steps that were recorded or compiled once: which one fits a batch, and when to make one."""

import copy
import gc
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stoker._select import named_parameters
from stoker._tree import OpaqueValue, Structure, flatten, map_leaves, tensors_in, unflatten
from stoker.data import RowSelection
from stoker.engine._batch import Batch
from stoker.engine._buffers import preserve_buffers
from stoker.engine._plan import Plan
from stoker.engine._replayable import (
    CannotReplay,
    SideEffects,
    explain_failure,
    find_user_hooks,
    fingerprint_modules,
    object_key,
)
from stoker.engine._rng import preserve_rng
from stoker.engine._step import StepResult, TrainStep
from stoker.engine._undo import free_cached_memory

_MOST_PROGRAMS = 12  # batches of further kinds run eagerly
# How many samples show what a first step creates: primes, since a mean over samples is recognised by its divisor.
_FEW_SAMPLES = (13, 11, 7, 5, 3, 2)


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

    def take_few_samples(self) -> Batch | None:
        """A batch of at most half of the samples; None if there are too few, or a tensor has no row for each."""
        samples = self.batch.samples
        size = next((size for size in _FEW_SAMPLES if 2 * size <= samples), None)
        rows, columns = self.tensors[: self.changing], self.tensors[self.changing :]
        if size is None or any(each.dim() == 0 or len(each) != samples for each in rows):
            return None
        part = self.with_tensors([*(each[:size] for each in rows), *columns])
        return replace(part, size=None if part.size is None else size)


def flatten_batch(batch: Batch) -> FlatBatch:
    """Separates a batch; raises `OpaqueValue` if it may hide tensors."""
    if isinstance(batch.value, RowSelection):
        columns = batch.value.columns()
        tensors, structure, kind = [batch.value.rows, *columns], None, tuple(map(object_key, columns))
    else:
        tensors, structure = flatten((batch.value, batch.mix))
        kind = structure
    kinds = [(tensor.shape, tensor.stride(), tensor.dtype) for tensor in tensors]
    return FlatBatch(batch, tensors, structure, (kind, *kinds))


# --- what a program depends on


def step_tensors(step: TrainStep, *, whole: bool = True) -> list[Tensor]:
    """Every tensor that a step reads or writes in each batch, each once. Their memory stays where it is.

    Parameters and buffers, state of the optimizer, accumulators, gradient norms, EMA, totals, flags of the guard,
    learning rates, and class weights. Without `whole`, those of its part up to the gradients: what only the update
    writes is left out.
    """
    state, count = step.state, step.steps.loss_count
    tensors = [
        *(tensor for module in step.modules for tensor in (*module._parameters.values(), *module._buffers.values())),
        *(_optimizer_tensors(state.optimizer.state_tensors()) if whole else []),
        *(tensor for window in state.accumulators.values() if whole for tensor in window.tensors()),
        *(tensor for norm in state.gradient_norms.values() if whole for tensor in norm.values()),
        *([] if state.ema is None else state.ema.tensors()),
        *state.totals.tensors(),
        *step.device_guard.tensors(),
        *step.rates.all(),
        *([] if count is None else count.class_weights),
    ]
    return list({id(tensor): tensor for tensor in tensors if tensor is not None}.values())


def _optimizer_tensors(rules: Sequence[Mapping[str, Mapping[str, Tensor | None]]]) -> list[Tensor | None]:
    return [tensor for rule in rules for state in rule.values() for tensor in state.values()]


def fingerprint_step(step: TrainStep, *, whole: bool = True) -> Any:
    """What the step's Python depends on, except for what differs from batch to batch."""
    return fingerprint_modules(step.modules, step_tensors(step, whole=whole), step.callables())


def fingerprint_batch(step: TrainStep, batch: Batch, lr: Any) -> Any:
    """What differs from batch to batch, and the step's Python decides by."""
    if not step.rates.are_constants:
        rates: Any = tuple(lr) if isinstance(lr, Mapping) else None
    else:
        rates = tuple(lr.values()) if isinstance(lr, Mapping) else lr
    windows = tuple(
        (objective, *window.bookkeeping[1:]) if batch.closes_window else (objective, window.bookkeeping[2])
        for objective, window in step.state.accumulators.items()
    )  # which parameters were added before; for the last micro-batch also their weight
    return batch.closes_window, batch.is_padding, batch.parts is None, rates, windows, step.state.model.training


def side_effects_of(step: TrainStep) -> SideEffects:
    """What a replayed step must not change."""
    return SideEffects(step.state.model, step.state.loss, step.callables())


class HostState:
    """What a step changes in Python: which state tensors there are, and what accumulators have counted.

    Taken before a trace or a recording, to undo it or to see what it has changed. `SideEffects` is the same for what
    a step must not change.
    """

    def __init__(self, step: TrainStep) -> None:
        state = step.state
        self._step = step
        self._totals = state.totals.references()
        self._optimizer = [dict(rule) for rule in state.optimizer.state_tensors()]
        self.windows = {objective: window.references() for objective, window in state.accumulators.items()}

    def tensor_ids(self) -> list[int]:
        """The identities of all state tensors there are."""
        optimizer = [tensor for tensor in _optimizer_tensors(self._optimizer) if tensor is not None]
        return list(map(id, tensors_in((self._totals, optimizer, list(self.windows.values())))))

    def restore(self) -> bool:
        """Undoes what tracing a step has changed in Python; returns whether it had made new state tensors."""
        state = self._step.state
        is_new = self.tensor_ids() != HostState(self._step).tensor_ids()
        state.totals.restore_references(self._totals)
        if is_new:
            state.optimizer.set_state_tensors(self._optimizer)
        for objective in [objective for objective in state.accumulators if objective not in self.windows]:
            del state.accumulators[objective]
        for objective, references in self.windows.items():
            state.accumulators[objective].restore_references(references)
        return is_new


class NewState(Exception):
    """A traced step has created state tensors, which do not exist after the trace."""


class WindowChange(NamedTuple):
    """What a step does to the bookkeeping of an accumulation window."""

    objective: str | None
    closes: bool
    weight: float | None  # what it adds; None if the weight is a tensor
    names: frozenset[str]  # of the parameters that the window holds afterwards

    def apply(self, step: TrainStep) -> None:
        """Does on the host what the step's Python would have done."""
        window = step.state.accumulators[self.objective]
        count, weight, _ = window.bookkeeping
        if self.closes:
            window.reset()
        elif self.weight is None or weight is None:
            window.set_bookkeeping(count + 1, None, self.names)
        else:
            window.set_bookkeeping(count + 1, weight + self.weight, self.names)


def _find_window_changes(before: HostState, after: HostState) -> list[WindowChange]:
    changes: list[WindowChange] = []
    for objective, (new, *_) in after.windows.items():
        if objective not in before.windows or before.windows[objective][0] == new:
            continue
        old_count, old_weight, _ = before.windows[objective][0]
        new_count, new_weight, names = new
        weight = None if new_weight is None or old_weight is None else new_weight - old_weight
        changes.append(WindowChange(objective, new_count <= old_count, weight, names))
    return changes


# --- the first step


def prepare_first_step(step: TrainStep, flat: FlatBatch, lr: Any, *, whole: bool) -> bool:
    """Creates what the first step of a fit creates, so that it can be compiled too; returns whether that worked.

    An eager step of a large model needs twice the memory of the compiled one, so none should run. The gradients of a
    few samples show what the loss is a mean over and which parameters are trained. That creates the totals and, if the
    whole step is compiled (`whole`), the optimizer's state; everything else is as before. If anything fails, the
    first batch runs eagerly.
    """
    state, ctx = step.state, step.ctx
    if step.ranks.world.size > 1 or step.ranks.model_is_distributed:
        return False  # a forward pass is a message between ranks
    if step.settings.accumulate > 1 or flat.batch.parts is not None or state.totals.samples:
        return False
    few_samples = flat.take_few_samples()
    if few_samples is None:
        return False
    before, effects = HostState(step), side_effects_of(step)
    try:
        with preserve_rng(), preserve_buffers(state.model, state.loss):
            names = list(step.compute_local_gradients(few_samples).tensors)
    except Exception:  # the eager step raises it too, unless it was for the few samples
        before.restore()
        return False
    finally:
        effects.undo()
        ctx.batch = ctx.pred = ctx.output = ctx.loss = None
        free_cached_memory(step.device)
    state.totals.reset()
    if not whole:
        return True
    parameters = named_parameters(state.trained)
    return state.optimizer.create_state([parameters[name] for name in names], lr=step.host_guard.rates(lr))


# --- programs


@dataclass(slots=True)
class Program:
    """A step that was recorded or compiled."""

    launch: Callable[[list[Tensor]], Any]  # takes the tensors of a batch, returns a `StepResult` or `LocalGradients`
    window_changes: Sequence[WindowChange] = ()
    batch_fingerprint: Any = None
    source: Any = None  # of the row selections that it is for
    size: int = 0
    columns: Sequence[Tensor] = ()
    record_several: Callable[[], Callable[[Tensor], None]] | None = None  # makes `launch_several`
    launch_several: Callable[[Tensor], None] | None = None  # takes the rows of several steps: [steps, samples]
    function: Callable[[list[Tensor]], Any] | None = None  # what `launch` calls on the CPU, with `fixed` first
    fixed: Sequence[Tensor] = ()

    def fits(self, batch: Batch, batch_fingerprint: Any) -> bool:
        """Whether it is for a row selection like this one, if nothing else has changed."""
        value = batch.value
        if type(value) is not RowSelection or value.source is not self.source or len(value) != self.size:
            return False
        return batch.mix is None and batch_fingerprint == self.batch_fingerprint


class ProgramCache:
    """Finds the program for a batch, and makes it when it is time.

    `record(flat_batch, lr)` makes one, of `step.run(batch, lr, step.device_guard)` and `device_guard.end_step()`. It
    raises `CannotReplay`, or whatever the user's code raises. `synchronize` is called before it and before a batch
    without a program: then no step is in flight.

    An executor asks `find` for a program, and calls `run_eagerly` if there is none. Otherwise it applies the program's
    `window_changes`, calls `step.note_weights_changed()` if the run is saved, and launches the program; it reads the
    flags of the guard at once, or later with `StepsInFlight` (CUDA only).
    """

    def __init__(
        self,
        step: TrainStep,
        plan: Plan,
        record: Callable[[FlatBatch, Any], Program],
        synchronize: Callable[[], None] = lambda: None,
    ) -> None:
        self._step, self._plan, self._record, self._synchronize = step, plan, record, synchronize
        self.is_disabled = False  # everything runs eagerly
        self._first_step_is_done = False  # a step was run, or `prepare_first_step` has replaced it
        self.clear()

    def clear(self) -> None:
        """Forgets all programs."""
        self._programs: dict[Hashable, Program] = {}
        self._fingerprints: dict[Any, int] = {}  # numbered: they are large, and hashing one takes long
        self._fingerprint: int | None = None  # the step's current one; None if something may have changed
        self._seen: Counter[Hashable] = Counter()
        self._known_fingerprints: set[Hashable] = set()  # of step and batch, for which there is a program of some shape
        self._last: Program | None = None

    def invalidate(self) -> None:
        """Looks before the next step whether its program still fits."""
        self._fingerprint = self._last = None

    def disable(self, reason: str) -> None:
        """Runs everything eagerly from here on."""
        self.is_disabled = True
        self.clear()
        self._plan.fall_back("eager", reason)
        self.report_fall_back()

    def report_fall_back(self) -> None:
        """Warns, if the user has asked for more."""
        if self._step.settings.compile:
            self._step.ctx.warn(self._plan.warning)

    def find(self, batch: Batch, lr: Any) -> tuple[Program, list[Tensor]] | None:
        """The program for a batch and the tensors to launch it with; None if the batch has to run eagerly.

        Raises `CannotReplay` if the step can't be recorded or compiled.
        """
        if self.is_disabled:
            return None
        last, value = self._last, batch.value
        batch_fingerprint = self._set_rates_and_fingerprint(batch, lr)
        if last is not None and last.fits(batch, batch_fingerprint):  # decided in a few microseconds
            return last, [value.rows, *last.columns]
        try:
            flat = flatten_batch(batch)
        except OpaqueValue as error:
            raise CannotReplay(f"a batch holds a {error}, which can't be separated into tensors") from None
        if self._fingerprint is None:
            if reason := next(find_user_hooks(self._step.state.model), None):
                raise CannotReplay(reason)
            if not self._first_step_is_done:
                self._first_step_is_done = self._step.ctx.update > 0 or self._prepare_first_step(flat, lr)
            fingerprint = fingerprint_step(self._step, whole=not self._plan.ends_with_gradients)
            self._fingerprint = self._fingerprints.setdefault(fingerprint, len(self._fingerprints))
        program = self._find_or_make(flat, lr, batch_fingerprint)
        if program is None:
            return None
        if isinstance(value, RowSelection):
            program.source, program.size, program.columns = value.source, len(value), flat.tensors[1:]
        self._last = program
        return program, flat.tensors

    def _set_rates_and_fingerprint(self, batch: Batch, lr: Any) -> Any:
        """Writes the learning rates to their tensors; returns the fingerprint of the batch."""
        step = self._step
        if self._plan.ends_with_gradients:
            return step.state.model.training, batch.is_padding
        if not step.rates.are_constants:
            step.rates.set(lr)
        return fingerprint_batch(step, batch, lr)

    def _prepare_first_step(self, flat: FlatBatch, lr: Any) -> bool:
        """Prepares the first step of a fit; returns whether it can be compiled. A CUDA graph needs an eager step."""
        plan = self._plan
        return plan.is_compiled and prepare_first_step(self._step, flat, lr, whole=not plan.ends_with_gradients)

    def _find_or_make(self, flat: FlatBatch, lr: Any, batch_fingerprint: Any) -> Program | None:
        fingerprints = (self._fingerprint, batch_fingerprint)
        key = (flat.signature, fingerprints)
        program = self._programs.get(key)
        if program is None and self._should_make(flat.batch, key, fingerprints):
            program = self._make(flat, lr)
            if program is not None:
                program.batch_fingerprint = batch_fingerprint
                self._programs[key] = program
                self._known_fingerprints.add(fingerprints)
        return program

    def _should_make(self, batch: Batch, key: Hashable, fingerprints: Hashable) -> bool:
        """Whether a program for this kind of batch is to be made now; a CUDA graph only for the second batch of it."""
        if not self._step.is_loss_known(batch):
            return False
        if len(self._programs) >= _MOST_PROGRAMS:
            note = f"{_MOST_PROGRAMS} kinds of batches have a program of their own; others run eagerly"
            if note not in self._plan.notes:
                self._plan.notes.append(note)
            return False
        if self._plan.is_compiled:
            # Compiled code rounds differently, so a batch's program must not depend on what this process has seen.
            return self._first_step_is_done
        self._seen[key] += 1
        # With cudnn.benchmark, cuDNN times its kernels for a new shape, which can't be recorded.
        is_new_shape_of_known_step = fingerprints in self._known_fingerprints and not torch.backends.cudnn.benchmark
        return is_new_shape_of_known_step or self._seen[key] > 1

    def _make(self, flat: FlatBatch, lr: Any) -> Program | None:
        """Records or compiles a step. Afterwards nothing has run, and the training state is unchanged."""
        self._synchronize()
        before, effects = HostState(self._step), side_effects_of(self._step)
        program, error = None, None
        try:
            program = self._record(flat, lr)
            program.window_changes = _find_window_changes(before, HostState(self._step))
        except Exception as problem:
            error = problem
        if before.restore() and (error is None or isinstance(error, NewState)):
            return None  # the step creates state, as a first one does: it has to run eagerly
        reason = effects.describe_change(side_effects_of(self._step)) if error is None else explain_failure(error)
        if reason is None:
            return program
        del program, error
        effects.undo()
        gc.collect()  # the exception held autograd nodes, which belong to the stream of a recording
        raise CannotReplay(reason)

    def run_eagerly(self, batch: Batch, lr: Any) -> StepResult:
        """Runs a batch without a program. The step may create state, so the next batch looks up its program again."""
        self._synchronize()  # a batch after a bad one must not change the weights
        self.invalidate()
        always_misses = not self._programs and len(self._fingerprints) > _MOST_PROGRAMS
        if self.is_disabled or not always_misses:
            return self._step.run_eagerly(batch, lr)
        effects = side_effects_of(self._step)
        result = self._step.run_eagerly(batch, lr)
        change = effects.describe_change(side_effects_of(self._step), generators=False)
        self.disable(
            change or "what the step's Python depends on differs in every batch: for example a module's attribute"
        )
        return result


def detach_outputs(result: StepResult, *, wanted: bool) -> StepResult:
    """A step's result without autograd graphs, and without outputs that are not read."""
    if not wanted:
        return StepResult(updated=result.updated, moved=result.moved, skipped=result.skipped)
    return map_outputs(Tensor.detach, result)


def map_outputs(function: Callable[[Tensor], Tensor], result: StepResult) -> StepResult:
    """A step's result with `function(tensor)` for every tensor in its outputs."""

    def change(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return function(leaf)
        attributes = getattr(leaf, "__dict__", {})
        tensors = {name: value for name, value in attributes.items() if isinstance(value, Tensor)}
        if not tensors:
            return leaf
        changed = copy.copy(leaf)  # an output of a class of the user's own
        for name, tensor in tensors.items():
            setattr(changed, name, function(tensor))
        return changed

    names = ("loss", "batch", "pred", "output")
    return replace(result, **{name: map_leaves(change, getattr(result, name)) for name in names})
