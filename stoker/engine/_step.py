"""`TrainStep`: all that happens to one batch, from the forward pass to the metrics.

`TrainStep.run(batch, lr)` reads top to bottom: forward, loss, backward, accumulate, clip, update, metrics, EMA. It
reports by its `StepResult`. Executors (`stoker.engine.executors`) decide how it runs: operation by operation, recorded
in a CUDA graph, or compiled. CUDA graphs, whole compiled programs and `DeferredEager` pass `sync=False`: then no value
is read on the host (no `.item()`), and the device decides whether an update is applied, by `FiniteFlags`.
"""

import ctypes
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from stoker._select import named_parameters
from stoker._tree import tensors_in
from stoker.callbacks import Context, Hooks, mixed_loss
from stoker.engine._batch import Batch, count_samples
from stoker.engine._fingerprint import SideEffects, find_user_hooks, fingerprint_modules
from stoker.engine._finite import FiniteFlags, NonFiniteSearch, is_finite, largest_values
from stoker.engine._forward import call_as_forward
from stoker.engine._precision import autocast
from stoker.engine._rank_sync import RankSync
from stoker.engine._replayable import CannotReplay, pretend_compiling
from stoker.engine._settings import Settings
from stoker.engine._state import TrainState
from stoker.engine._totals import copy_all, loss_weight
from stoker.errors import NotFinite, WrongType
from stoker.gradients import Accumulator, Differentiator, GradientReducer, Gradients
from stoker.steps import Objective, Output, Supervised, SupervisedOutput

HOOKS_BEFORE_GRADIENTS = ("on_train_batch_after_pred", "on_train_batch_after_loss")
HOOKS_AFTER_GRADIENTS = ("on_train_batch_after_backward", "on_train_batch_after_step")
HOOKS_BETWEEN_BATCHES = ("on_train_batch_begin", "on_train_batch_end", "on_update")


@dataclass(slots=True)
class StepResult:
    """What a training step did with a batch."""

    updated: bool = False  # it counts as an update
    skipped: bool = False  # nothing of the batch counts: its loss is not finite, or it is padding
    loss: Tensor | None = None  # of the last objective
    batch: Any = None  # as the model saw it
    pred: Any = None
    output: Output | None = None


class LossTerm(NamedTuple):
    """A loss to differentiate."""

    name: str | None  # of an objective, and so of the parameters; None for all parameters
    value: Tensor
    weight: float | Tensor  # the number of samples or tokens that it averages over


class Update(NamedTuple):
    """What became of gradients."""

    counts: bool = False  # as an update of the schedule
    moved: bool = False  # weights have changed
    bad_loss: bool = False  # the loss is not finite: losses and metrics leave the batch out too


_NOTHING, _APPLIED = Update(), Update(counts=True, moved=True)
_NO_CONTEXT = nullcontext()


class LocalGradients(NamedTuple):
    """What the part of a step up to the gradients computes."""

    loss: Tensor
    weight: float | Tensor
    tensors: dict[str, Tensor]
    result: StepResult


@dataclass(slots=True)
class BareLoss:
    """The output of a step that returned nothing but a loss."""

    loss: Tensor


@dataclass(slots=True)
class TrainStep:
    """The training step of a fit."""

    settings: Settings
    state: TrainState
    supervised: Supervised | None  # None if the model has a `train_step`
    device: torch.device
    hooks: Hooks
    ctx: Context  # for hooks inside of the step
    ranks: RankSync
    reducer: GradientReducer | None = None  # adds up gradients over ranks
    constant_rates: bool = False  # learning rates are plain numbers that only callbacks change
    flags: FiniteFlags = field(init=False)
    rates: "LearningRates" = field(init=False)
    _modules: list[nn.Module] = field(init=False)
    _first_parameter: nn.Parameter | None = field(init=False)
    _differentiators: dict[str | None, Differentiator] = field(default_factory=dict)
    _buffers: list[Tensor] = field(default_factory=list)  # copies from before the batch or the epoch
    _suspect: tuple[str, str, str] | None = None  # a loss that was not finite within an accumulation window
    _has_forward_hooks: bool = field(init=False)  # a callback listens between forward and backward
    _has_gradient_hooks: bool = field(init=False)  # a callback listens between backward and the end of the step
    _is_watched: bool = field(init=False)  # a callback listens after backward or between batches

    def __post_init__(self) -> None:
        self.flags, self.rates = FiniteFlags(self.device), LearningRates(self.device)
        self._has_forward_hooks = any(map(self.hooks.has, HOOKS_BEFORE_GRADIENTS))
        self._has_gradient_hooks = any(map(self.hooks.has, HOOKS_AFTER_GRADIENTS))
        self._is_watched = self._has_gradient_hooks or any(map(self.hooks.has, HOOKS_BETWEEN_BATCHES))
        self.refresh()

    # --- one batch

    def run(self, batch: Batch, lr: Any, *, sync: bool = True) -> StepResult:
        """Forward, loss, backward, accumulate, clip, update, metrics, EMA."""
        result = self._start(batch)
        updates: list[Update] = []
        with _frozen_batch_norm(self.state.model) if batch.is_padding else _NO_CONTEXT:
            for loss in self._losses(batch, result, sync=sync):
                grads, reduced = self._differentiate(loss)
                updates.append(self._use_gradients(grads, reduced, batch, lr, sync=sync))
                if not updates[-1].bad_loss:
                    self._count_loss(loss, batch, sync=sync)
        return self._finish(batch, lr, result, updates, sync=sync)

    def run_until_gradients(self, batch: Batch) -> LocalGradients:
        """The first half of `run`, on this rank alone and without reading values; `apply_gradients` is the rest."""
        result = self._start(batch)
        computed: LocalGradients | None = None
        with _frozen_batch_norm(self.state.model) if batch.is_padding else _NO_CONTEXT:
            for loss in self._losses(batch, result, sync=False, alone=True):
                if loss.name is not None:
                    raise CannotReplay("the step yields objectives, and each is applied before the next is computed")
                grads = self._differentiator(None)(loss.value)
                computed = LocalGradients(loss.value.detach(), loss.weight, dict(grads.items()), result)
                self._count_loss(loss, batch, sync=False)
        assert computed is not None
        if result.output is not None and not batch.is_padding:
            self.state.totals.update(result.output, static=True)
        return computed

    def apply_gradients(self, computed: LocalGradients, batch: Batch, lr: Any) -> StepResult:
        """The second half of `run`: reduces gradients over ranks, accumulates, updates."""
        model, weight = self.state.model, computed.weight
        if self.device.type == "cpu" and isinstance(weight, Tensor):
            weight = weight.item()  # as in a step that is not compiled
        grads = Gradients._of(dict(computed.tensors), named_parameters(model), model)
        loss = LossTerm(None, computed.loss, weight)
        if self.reducer is not None:
            loss = loss._replace(value=_zero_if_weightless(loss))
            if not self.sums_on_each_rank:
                grads = self.reducer.reduce(grads, computed.loss, weight)
                loss = loss._replace(weight=self.reducer.weight)
        self._publish(computed.result)
        updates = [self._use_gradients(grads, loss, batch, lr, sync=True)]
        return self._finish(batch, lr, computed.result, updates, sync=True, has_counted=True)

    def _start(self, batch: Batch) -> StepResult:
        model = self.state.model
        if not model.training:  # it was given in eval mode, or a callback switched it
            model.train()
        if self.settings.on_nan == "skip":
            self.remember_buffers()
        return StepResult(batch=batch.gather(), skipped=batch.is_padding)

    def _finish(
        self, batch: Batch, lr: Any, result: StepResult, updates: list[Update], *, sync: bool, has_counted: bool = False
    ) -> StepResult:
        """Closes the window, updates metrics (unless the first half has) and the EMA."""
        result.skipped = batch.is_padding or any(update.bad_loss for update in updates[-1:])
        if batch.closes_window:  # also for an objective that this batch did not yield, but an earlier one did
            updates = [*updates, *self._close_windows(batch, lr, sync=sync)]
        result.updated = any(update.counts for update in updates)
        if result.output is not None and not result.skipped and not has_counted:
            self.state.totals.update(result.output, static=True)
        if self.state.ema is not None and any(update.moved for update in updates):
            self.state.ema.update(None if sync else self.flags.allowed)
        return result

    def flush_windows(self, last_batch: Batch, lr: Any) -> bool:
        """Applies the update of windows that the epoch ended in; returns whether there was one."""
        updates = self._close_windows(last_batch, lr, sync=True)
        if self.state.ema is not None and any(update.moved for update in updates):
            self.state.ema.update()
        return any(update.counts for update in updates)

    def _count_loss(self, loss: LossTerm, batch: Batch, *, sync: bool) -> None:
        if not batch.is_padding:
            is_sum = loss.name is None and self.state.reduce == "sum"
            self.state.totals.add_loss(loss.name or "loss", loss.value, loss.weight, is_sum=is_sum, sync=sync)

    # --- forward and loss

    def _losses(self, batch: Batch, result: StepResult, *, sync: bool, alone: bool = False) -> Iterator[LossTerm]:
        """Yields the losses of a batch; each is applied before the next is computed. Fills in the outputs of `result`.

        `alone`: other ranks do not take part.
        """
        reducer = None if alone else self.reducer
        if self.supervised is not None:
            answer: Any = self._supervised_output(batch, result, reducer)
        else:
            model, batch_value = self.state.model, result.batch
            with autocast(self.settings.precision, self.device):
                if reducer is None:
                    answer = model.train_step(batch_value)  # pyright: ignore[reportCallIssue]
                else:
                    train_step: Any = model.train_step
                    answer = self._reduced_forward(
                        reducer, batch, lambda: call_as_forward(model, train_step, batch_value)
                    )
            if isinstance(answer, Generator):
                yield from self._objectives(answer, batch, result, alone=reducer is None)
                return
            answer = as_output(answer, model)
            result.pred = getattr(answer, "predictions", None)
            if self._has_forward_hooks:
                self._publish(result, output=answer)
                self.hooks.fire("on_train_batch_after_pred", self.ctx)
        result.output = answer
        # With `compile` the weight of a loss stays a tensor, in eager batches as well: the same arithmetic.
        weight = loss_weight(answer, result.batch, sync=sync and not self.settings.compile)
        yield self._run_loss_hooks(LossTerm(None, answer.loss, 0 if batch.is_padding else weight), result)

    def _supervised_output(self, batch: Batch, result: StepResult, reducer: GradientReducer | None) -> Output:
        """The forward pass and the loss of a model without a `train_step`."""
        supervised, model = self.supervised, self.state.model
        assert supervised is not None
        assert supervised.loss is not None
        parts = supervised.parts(result.batch)
        with autocast(self.settings.precision, self.device):
            if reducer is None:
                result.pred = model(*parts.args, **parts.kwargs)
            else:
                if self.state.loss is not None:
                    self.ranks.broadcast_within_split(list(self.state.loss.buffers()))
                result.pred = self._reduced_forward(reducer, batch, lambda: model(*parts.args, **parts.kwargs))
        if self._has_forward_hooks:
            self._publish(result)
            self.hooks.fire("on_train_batch_after_pred", self.ctx)
            result.pred = self.ctx.pred
        with autocast(self.settings.precision, self.device):
            if batch.mix is None:
                return supervised.score(result.pred, parts)
            other, share = batch.mix
            loss = mixed_loss(supervised.loss, result.pred, parts.targets, other, share, sample_weight=parts.weight)
            return SupervisedOutput(loss, result.pred, parts.targets, parts.weight)

    def _reduced_forward(self, reducer: GradientReducer, batch: Batch, call: Callable[[], Any]) -> Any:
        """The forward pass of this rank's share of a batch."""
        try:
            return reducer.forward(call)
        except ValueError as error:
            if batch.samples == 1:
                error.add_note(
                    f"rank {self.ranks.world.rank}'s share of this batch is one sample, too few for batch norm: "
                    "choose another batch_size, or Loader(..., drop_last=True)"
                )
            raise

    def _objectives(
        self, step: Generator[Any, Any, Any], batch: Batch, result: StepResult, *, alone: bool
    ) -> Iterator[LossTerm]:
        """Yields the losses of the objectives that a `train_step` yields."""
        model, weight = self.state.model, 0 if batch.is_padding else count_samples(result.batch)
        while True:
            try:
                with autocast(self.settings.precision, self.device):
                    objective = next(step) if alone else call_as_forward(model, next, step)
            except StopIteration as end:
                result.output = None if end.value is None else as_output(end.value, model)
                return
            objective = as_objective(objective, model)
            yield self._run_loss_hooks(LossTerm(objective.name, objective.loss, weight), result)

    def _publish(self, result: StepResult, output: Output | None = None) -> None:
        """Makes the batch and its outputs visible to callbacks."""
        ctx = self.ctx
        ctx.batch, ctx.pred, ctx.output = result.batch, result.pred, result.output if output is None else output
        ctx.loss = result.loss

    def _run_loss_hooks(self, loss: LossTerm, result: StepResult) -> LossTerm:
        """Calls `on_train_batch_after_loss`, which may replace the loss."""
        result.loss = loss.value
        if self._has_forward_hooks or self._has_gradient_hooks:
            self._publish(result)
        if not self._has_forward_hooks:
            return loss
        self.hooks.fire("on_train_batch_after_loss", self.ctx)
        result.loss, result.output = self.ctx.loss, self.ctx.output
        if not isinstance(result.loss, Tensor):
            raise WrongType(
                f"a callback set ctx.loss to {type(result.loss).__name__} in on_train_batch_after_loss; it has to "
                "stay a tensor"
            )
        return loss._replace(value=result.loss)

    # --- gradients

    @property
    def sums_on_each_rank(self) -> bool:
        """Whether each rank accumulates its own micro-batches, and gradients are reduced when a window closes."""
        return self.reducer is not None and self.settings.accumulate > 1 and not self.ranks.model_is_distributed

    def _differentiator(self, name: str | None) -> Differentiator:
        found = self._differentiators.get(name)
        if found is None:
            found = self._differentiators[name] = Differentiator(self.state.model, name)
        return found

    def _differentiate(self, loss: LossTerm) -> tuple[Gradients, LossTerm]:
        """The gradients, of all ranks if there are several, and the loss with the weight of the whole batch."""
        scale = self.state.loss_scale
        value = loss.value if scale is None else scale.scale(loss.value)
        if self.reducer is None:
            return self._differentiator(loss.name)(value), loss
        own = loss._replace(value=_zero_if_weightless(loss))
        if self.sums_on_each_rank:
            return self.reducer.local(value, part=loss.name), own
        grads = self.reducer.backward(value, loss.weight, part=loss.name)
        return grads, own._replace(weight=self.reducer.weight)

    def _use_gradients(self, grads: Gradients, loss: LossTerm, batch: Batch, lr: Any, *, sync: bool) -> Update:
        """Adds gradients to their accumulation window, or applies them."""
        if self.state.loss_scale is not None:  # callbacks, checks and clipping see the true gradients
            grads = self.state.loss_scale.unscale(grads)
        if self._has_gradient_hooks:
            grads, lr = self._run_gradient_hooks(grads), self.ctx.lr  # a callback may set the learning rate here too
        if self.settings.accumulate == 1:
            return self._update(grads, loss.value, loss.weight, batch, lr, sync=sync)
        window = self.state.accumulators.get(loss.name)
        if window is None:
            window = self.state.accumulators[loss.name] = Accumulator(self.state.reduce)
        accepted, update = self._check_micro_batch(grads, loss, batch, sync=sync)
        if accepted is not None:
            is_plain_sum = self.state.reduce == "sum" and not batch.is_padding
            window.add(accepted, weight=1 if is_plain_sum else loss.weight)
        if batch.closes_window and len(window):
            return self._close_window(window, batch, lr, sync=sync, bad_loss=update.bad_loss)
        return update

    def _run_gradient_hooks(self, grads: Gradients) -> Gradients:
        ctx = self.ctx
        ctx.grads = grads
        self.hooks.fire("on_train_batch_after_backward", ctx)
        shown, ctx.grads = ctx.grads, None
        if not isinstance(shown, Gradients):
            raise WrongType(
                f"a callback set ctx.grads to {type(shown).__name__} in on_train_batch_after_backward; it has to stay "
                "a Gradients"
            )
        return shown

    def _check_micro_batch(
        self, grads: Gradients, loss: LossTerm, batch: Batch, *, sync: bool
    ) -> tuple[Gradients | None, Update]:
        """Checks a micro-batch before it joins its window, so that an error names it; returns the gradients to add."""
        if not self.sums_on_each_rank:
            return self._check(grads, loss.value, loss.weight, None, batch, sync=sync)
        fine = bool(loss.weight == 0) or is_finite(loss.value, grads, None)
        if self.settings.on_nan == "skip" or self.state.loss_scale is not None:
            return self._decide(self.ranks.world.all(fine), grads, loss.value, batch)
        if fine:
            return grads, _NOTHING
        # No communication here: all ranks refuse the update when the window closes.
        self._suspect = self._suspect or self._locate(loss.value, grads, batch)
        return grads.scale(float("nan")), _NOTHING

    def _close_windows(self, batch: Batch, lr: Any, *, sync: bool) -> list[Update]:
        open_windows = [each for each in self.state.accumulators.values() if len(each)]
        return [self._close_window(each, batch, lr, sync=sync) for each in open_windows]

    def _close_window(
        self, window: Accumulator, batch: Batch, lr: Any, *, sync: bool, bad_loss: bool = False
    ) -> Update:
        if self.sums_on_each_rank and self.reducer is not None:
            grads, weight = self.reducer.reduce_window(window)
        else:
            weight, grads = window.weight, window.take()
        update = self._update(grads, None, weight, batch, lr, sync=sync)
        return update._replace(bad_loss=update.bad_loss or bad_loss)

    # --- the update: nothing else writes weights

    def _update(
        self, grads: Gradients, loss: Tensor | None, weight: float | Tensor, batch: Batch, lr: Any, *, sync: bool
    ) -> Update:
        """Applies gradients, unless they or the loss are not finite."""
        settings, norms = self.settings, self.state.gradient_norms
        # Of shards, the norm is one message to the other ranks; checking each shard would be many.
        needs_norm = settings.clip_norm is not None or norms or (self.ranks.model_is_distributed and sync)
        norm = grads.norm() if needs_norm else None
        accepted, update = self._check(grads, loss, weight, norm, batch, sync=sync)
        if accepted is None:
            # On a GPU a batch of weight 0 counts as an update: a CUDA graph can't tell the host in time.
            is_on_device = isinstance(weight, Tensor) and weight.device.type != "cpu"
            return update._replace(counts=is_on_device and not update.bad_loss and bool(weight == 0))
        if settings.clip_value is not None:
            grads = grads.clip_value(settings.clip_value)
        if settings.clip_norm is not None:
            grads = grads.clip_norm(settings.clip_norm, norm=norm if settings.clip_value is None else None)
        if norm is not None and norms:
            self._count_norm(norm, sync=sync)
        with pretend_compiling() if self.can_compile_update else _NO_CONTEXT:
            self.state.optimizer.step(grads, lr=self._rates(lr, sync=sync), when=None if sync else self.flags.allowed)
        if self._has_gradient_hooks:
            self.hooks.fire("on_train_batch_after_step", self.ctx)
        return _APPLIED

    def _check(
        self,
        grads: Gradients,
        loss: Tensor | None,
        weight: float | Tensor,
        norm: Tensor | None,
        batch: Batch,
        *,
        sync: bool,
    ) -> tuple[Gradients | None, Update]:
        """The gradients if they may be used, otherwise None. With `sync=False` the flags decide instead."""
        # Several ranks check only the reduced gradients: a bad loss on one rank has made them NaN on all.
        own_loss = loss if self.reducer is None else None
        if not sync:
            self.flags.check(largest_values(own_loss, grads), weight)
            return grads, _NOTHING
        finite = is_finite(own_loss, grads, norm)
        if weight == 0:
            return None, _NOTHING  # a batch of weight 0 (all masked) changes nothing, whatever its loss is
        return self._decide(finite, grads, loss, batch)

    def _decide(
        self, finite: bool, grads: Gradients, loss: Tensor | None, batch: Batch
    ) -> tuple[Gradients | None, Update]:
        """Accepts gradients, or leaves the weights alone: raises, or skips the batch if `on_nan="skip"`."""
        scale = self.state.loss_scale
        if scale is not None:
            scale.adjust(finite=finite)
        if finite:
            return grads, _NOTHING
        progress = self.state.progress
        progress.skipped += 1
        bad_loss = self.ranks.world.any(loss is not None and not bool(loss.isfinite()))
        if scale is not None and scale.factor > 1.0 and not bad_loss:
            return None, Update(bad_loss=bad_loss)  # the scale is still being found
        if self.settings.on_nan == "skip":
            self.ctx.warn(
                f"the update at epoch {batch.epoch}, batch {batch.number} was skipped: the loss or a gradient is not "
                f"finite ({progress.skipped} so far)"
            )
            self._restore_buffers()
            return None, Update(bad_loss=bad_loss)
        raise self._nonfinite_error(loss, grads, batch)

    def _count_norm(self, norm: Tensor, *, sync: bool) -> None:
        """Adds the gradient norm of an update; if the device allows no update, nothing changes."""
        allowed = None if sync else self.flags.allowed
        targets, values = list[Tensor](), list[Tensor]()
        for meter, state in self.state.gradient_norms.items():
            for name, new in meter.update(state, norm).items():
                targets.append(state[name])
                values.append(new if allowed is None else torch.where(allowed, new, state[name]))
        copy_all(targets, values)

    def _rates(self, lr: Any, *, sync: bool) -> Any:
        """The learning rates: numbers, or tensors on the device that do not change the recorded operations."""
        if not sync and self.rates.tensors is not None:
            return self.rates.tensors
        if self.constant_rates or self.device.type != "cuda":
            return lr
        return {key: _as_float32(rate) for key, rate in lr.items()} if isinstance(lr, Mapping) else _as_float32(lr)

    # --- values that are not finite

    def remember_buffers(self) -> None:
        """Copies the buffers: running statistics see a batch before its loss is checked."""
        self._buffers = [buffer.detach().clone() for buffer in self.state.model.buffers()]

    def _restore_buffers(self, *, only_nonfinite: bool = False) -> None:
        for buffer, before in zip(self.state.model.buffers(), self._buffers, strict=False):
            if buffer.shape == before.shape and not (only_nonfinite and bool(buffer.isfinite().all())):
                buffer.copy_(before)

    def _locate(self, loss: Tensor | None, grads: Gradients, batch: Batch) -> tuple[str, str, str]:
        """What is not finite, at which batch, and where it comes from."""
        what = "a gradient" if loss is None else f"the loss ({loss.item():g}) or a gradient"
        search = NonFiniteSearch(self.state.model, self.supervised, self.settings.precision, self.device)
        origin = search.describe(batch.gather(), loss, grads, always_forward=self.ranks.model_is_distributed)
        return what, f"epoch {batch.epoch}, batch {batch.number}", origin

    def _nonfinite_error(self, loss: Tensor | None, grads: Gradients, batch: Batch) -> NotFinite:
        """The error that stops the run; of several ranks, it is about the first one whose own loss it was."""
        own = self._suspect is not None or (loss is not None and not bool(loss.isfinite()))
        what, where, origin = self._suspect or self._locate(loss, grads, batch)
        if self.ranks.world.size > 1:
            found = self.ranks.world.all_gather((own, (what, where, origin)))
            rank = next((rank for rank, (own, _) in enumerate(found) if own), 0)
            what, where, origin = found[rank][1]
            what = f"{what} of rank {rank}"
        # Running statistics have seen the bad batch: those that are not finite are reset to the start of the epoch.
        self._restore_buffers(only_nonfinite=True)
        return on_every_rank(
            NotFinite(
                f"{what} is not finite at {where}: {origin}. The update was not applied. "
                "Lower the learning rate, clip (clip_norm=1.0), or skip such batches with Learner(on_nan='skip')"
            )
        )

    def diagnose(self, batch: Batch) -> NoReturn:
        """Runs a batch again whose loss or gradients were not finite, and raises with their origin."""
        self.state.accumulators.clear()
        result = self._start(batch)
        for loss in self._losses(batch, result, sync=True):
            grads, reduced = self._differentiate(loss)
            self._check(grads, reduced.value, reduced.weight, None, batch, sync=True)
        error = NotFinite(
            f"the loss or a gradient was not finite at epoch {batch.epoch}, batch {batch.number}; when the batch was "
            "run again for the search, they were finite: something in the step does not compute the same twice"
        )
        raise on_every_rank(error) if self.reducer is not None else error

    # --- what executors have to know

    @property
    def can_compile_update(self) -> bool:
        """Whether the update is one that can be compiled; it then uses the same operations in every batch."""
        return self.settings.compile and self.ranks.world.size == 1

    @property
    def wants_output(self) -> bool:
        """Whether callbacks or metrics look at the outputs of a step after it has run."""
        return self._is_watched or self.state.totals.grows

    @property
    def has_begun(self) -> bool:
        """Whether an update was applied, in this process or an earlier one: the optimizer has its state."""
        return self.ctx.update > 0

    def broadcast_buffers(self) -> None:
        """Writes the first rank's buffers of model and loss over those of all ranks, before a forward pass."""
        if self.reducer is not None:
            if self.state.loss is not None:
                self.ranks.broadcast_within_split(list(self.state.loss.buffers()))
            self.reducer.broadcast_buffers()

    def refresh(self) -> None:
        """Looks at the model again: a callback may have changed it."""
        state = self.state
        others = [
            module for module in (None if state.ema is None else state.ema.model, state.loss) if module is not None
        ]
        self._modules = [each for model in (state.model, *others) for each in model.modules()]
        self._first_parameter = next(iter(state.model.parameters()), None)
        self._differentiators.clear()

    def find_reason_not_to_replay(self) -> str:
        """Why the step can't be replayed any more; empty if it can."""
        return next(iter(find_user_hooks(self.state.model)), "")

    def tensors(self) -> list[Tensor]:
        """Every tensor that the step writes, each once, and the learning rates."""
        state = self.state
        tables = [table for module in self._modules for table in (module._parameters, module._buffers)]
        optimizer = [own for rule in state.optimizer.state_tensors() for own in rule.values()]
        found = [
            *(tensor for table in tables for tensor in table.values()),
            *(tensor for own in optimizer for tensor in own.values()),
            *(tensor for window in state.accumulators.values() for tensor in window.tensors()),
            *(tensor for norm in state.gradient_norms.values() for tensor in norm.values()),
            *state.totals.tensors(),
            *self.flags.tensors(),
            *self.rates.all(),
        ]
        return list({id(tensor): tensor for tensor in found if tensor is not None}.values())

    def fingerprint(self) -> Any:
        """What the step's Python depends on, except for what differs from batch to batch."""
        return fingerprint_modules(self._modules, self.tensors(), self._callables())

    def batch_fingerprint(self, batch: Batch, lr: Any) -> Any:
        """What differs from batch to batch, and Python decides by."""
        if not self.constant_rates:
            rates: Any = tuple(lr) if isinstance(lr, Mapping) else None
        else:
            rates = tuple(lr.values()) if isinstance(lr, Mapping) else lr
        windows = tuple(
            (part, *window.bookkeeping[1:]) if batch.closes_window else (part, window.bookkeeping[2])
            for part, window in self.state.accumulators.items()
        )  # which parameters were added before; for the last micro-batch also their weight
        return batch.closes_window, batch.is_padding, rates, windows, self.state.model.training

    def side_effects(self) -> SideEffects:
        """What a replayed step must not change."""
        return SideEffects(self.state.model, self.state.loss, self._callables())

    def _callables(self) -> list[Any]:
        """What a step calls besides modules: a loss function, a transform of batches."""
        supervised = self.supervised
        loss = None if supervised is None or isinstance(supervised.loss, nn.Module) else supervised.loss
        return [each for each in (loss, self.state.train.batch_transform) if each is not None]

    def host_state(self) -> "HostState":
        """What a step changes in Python: which state tensors there are, and what accumulators have counted."""
        state = self.state
        return HostState(
            state.totals.references(),
            [dict(rule) for rule in state.optimizer.state_tensors()],
            {part: window.references() for part, window in state.accumulators.items()},
        )

    def restore_host_state(self, before: "HostState") -> bool:
        """Undoes what tracing a step has changed in Python; returns whether it had made new state tensors."""
        state = self.state
        old = [id(tensor) for tensor in before.tensors()]
        is_new = old != [id(tensor) for tensor in self.host_state().tensors()]
        state.totals.restore_references(before.totals)
        if is_new:
            state.optimizer.set_state_tensors(before.optimizer)
        for part in [part for part in state.accumulators if part not in before.accumulators]:
            del state.accumulators[part]
        for part, references in before.accumulators.items():
            state.accumulators[part].restore_references(references)
        return is_new

    def note_weights_changed(self) -> None:
        """Tells autograd, and so resume points, that a replay has written to the parameters."""
        if self._first_parameter is not None:
            torch.autograd.graph.increment_version(self._first_parameter)


class HostState(NamedTuple):
    """Python's side of the training state around a step; see `TrainStep.host_state`."""

    totals: tuple[Any, ...]
    optimizer: list[dict[str, dict[str, Any]]]
    accumulators: dict[str | None, Any]

    def tensors(self) -> list[Tensor]:
        """All state tensors there are."""
        optimizer = [tensor for rule in self.optimizer for own in rule.values() for tensor in own.values()]
        return tensors_in(
            (self.totals, [each for each in optimizer if each is not None], list(self.accumulators.values()))
        )


class LearningRates:
    """Learning rates as tensors, so that a new value does not trigger a new recording or compilation.

    >>> rates = LearningRates(torch.device("cpu"))
    >>> rates.set(0.5)
    >>> rates.tensors
    tensor(0.5000, dtype=torch.float64)
    """

    __slots__ = ("_device", "last", "tensors")

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.tensors: Any = None  # one tensor, or one for each selector; None until the first `set`
        self.last: Any = None

    def set(self, lr: Any) -> None:
        """Writes the learning rates of this update, if they are not those of the last one."""
        if lr == self.last and type(lr) is float:
            return
        by_name = isinstance(lr, Mapping)
        if self.tensors is None or (tuple(lr) if by_name else None) != (
            tuple(self.last) if isinstance(self.last, Mapping) else None
        ):
            # float64 as Python's numbers on the CPU; fused kernels of a GPU read float32.
            dtype = torch.float64 if self._device.type == "cpu" else torch.float32
            new = {key: torch.zeros((), dtype=dtype, device=self._device) for key in (lr if by_name else (None,))}
            self.tensors = new if by_name else new[None]
        self.last = dict(lr) if by_name else lr
        for key, rate in lr.items() if by_name else ((None, lr),):
            (self.tensors[key] if by_name else self.tensors).fill_(rate)

    def all(self) -> list[Tensor]:
        """The tensors as a list."""
        found = self.tensors.values() if isinstance(self.tensors, Mapping) else (self.tensors,)
        return [rate for rate in found if rate is not None]


@contextmanager
def _frozen_batch_norm(model: nn.Module) -> Iterator[None]:
    """Keeps a padding batch of one sample out of running statistics; batch norm could not normalise it either."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm) and module.training]
    for module in norms:
        module.training = False
    try:
        yield
    finally:
        for module in norms:
            module.training = True


def _zero_if_weightless(loss: LossTerm) -> Tensor:
    """The loss as a value to check: zero if it has weight 0, as on a rank whose tokens are all masked."""
    value, weight = loss.value.detach(), loss.weight
    if isinstance(weight, Tensor):
        return torch.where(weight.to(value.device) > 0, value, 0)
    return value if weight else torch.zeros_like(value)


def _as_float32(rate: Any) -> Any:
    """A rate rounded to float32, as a GPU tensor holds it, so that eager and captured steps give the same bits."""
    return rate if isinstance(rate, Tensor) else ctypes.c_float(rate).value


def as_output(answer: Any, model: nn.Module, step: str = "train_step") -> Output:
    """What a step returned, as an output: anything with a loss, or the loss itself."""
    if isinstance(answer, Tensor):
        return BareLoss(answer)
    if isinstance(getattr(answer, "loss", None), Tensor):
        return answer
    raise WrongType(
        f"{type(model).__name__}.{step} returned {type(answer).__name__}; expected a loss (a tensor), an output "
        "with a .loss (such as stoker.ClassificationOutput), or yielded objectives"
    )


def as_objective(objective: Any, model: nn.Module) -> Objective:
    """What a step yielded; raises if it is not an objective."""
    if isinstance(objective, Objective):
        return objective
    raise WrongType(
        f"{type(model).__name__}.train_step yielded {type(objective).__name__}; expected stoker.Objective(name, loss)"
    )


def on_every_rank(error: NotFinite) -> NotFinite:
    """Marks an exception that every rank raises at the same place, so that they can save a checkpoint together."""
    error.on_every_rank = True
    return error
