"""`TrainStep`: all that happens to one batch, from the forward pass to the metrics.

`TrainStep.run(batch, lr)` reads top to bottom: forward, loss, backward, accumulate, clip, update, metrics, EMA. It
reports by its `StepResult`. Executors (`stoker.engine.executors`) decide how it runs: operation by operation, recorded
in a CUDA graph, or compiled. CUDA graphs, whole compiled programs and `DeferredEager` pass `sync=False`: then no value
is read on the host (no `.item()`), and the device decides whether an update is applied, by `FiniteFlags`.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from stoker._select import named_parameters, set_train_mode
from stoker.callbacks import Context, Hooks
from stoker.data import RowSelection
from stoker.engine._batch import Batch
from stoker.engine._buffers import BufferValues
from stoker.engine._finite import FiniteFlags, NonFiniteSearch, all_finite, is_finite, largest_values
from stoker.engine._forward import call_as_forward
from stoker.engine._precision import autocast
from stoker.engine._rank_sync import RankSync
from stoker.engine._replayable import CannotReplay, pretend_compiling
from stoker.engine._settings import Settings
from stoker.engine._state import TrainState
from stoker.engine._totals import copy_all, loss_weight
from stoker.engine._undo import undo_if_out_of_memory
from stoker.errors import InvalidArgument, NotFinite, WrongType
from stoker.gradients import Accumulator, Differentiator, GradientReducer, Gradients
from stoker.steps import BareLoss, Objective, Output, StepFunction, Steps, Supervised, count_samples

HOOKS_BEFORE_GRADIENTS = ("on_train_batch_after_pred", "on_train_batch_after_loss")
HOOKS_AFTER_GRADIENTS = ("on_train_batch_after_backward", "on_train_batch_after_step")
HOOKS_INSIDE_BATCHES = (*HOOKS_BEFORE_GRADIENTS, *HOOKS_AFTER_GRADIENTS, "on_exception")
HOOKS_BETWEEN_BATCHES = ("on_train_batch_begin", "on_train_batch_end", "on_update")
_NO_CONTEXT = nullcontext()


@dataclass(slots=True, eq=False)
class StepResult:
    """What a training step did with a batch."""

    updated: bool = False  # it counts as an update of the schedule
    moved: bool = False  # weights have changed, unless `FiniteFlags` did not allow it
    skipped: bool = False  # losses and metrics leave the batch out: its loss is not finite, or it is padding
    loss: Tensor | None = None  # of the last objective
    batch: Any = None  # as the model saw it
    pred: Any = None
    output: Output | None = None


class LossTerm(NamedTuple):
    """A loss to differentiate."""

    name: str | None  # of an objective, and so of the parameters; None for all parameters
    value: Tensor | None  # None for an accumulation window
    weight: float | Tensor  # the number of samples or tokens that it averages over


class LocalGradients(NamedTuple):
    """What the part of a step up to the gradients computes."""

    loss: Tensor
    weight: float | Tensor
    tensors: dict[str, Tensor]
    result: StepResult


@dataclass(slots=True, eq=False, repr=False)
class TrainStep:
    """The training step of a fit."""

    settings: Settings
    state: TrainState
    steps: Steps  # how the loss is computed
    device: torch.device
    hooks: Hooks
    ctx: Context  # for hooks inside of the step
    ranks: RankSync
    reducer: GradientReducer | None = None  # adds up gradients over ranks
    rates_vary: bool = True  # whether learning rates may differ from batch to batch
    supervised: Supervised | None = field(init=False)  # None if a step computes the loss
    flags: FiniteFlags = field(init=False)
    rates: "LearningRates" = field(init=False)
    modules: list[nn.Module] = field(init=False)  # of model, EMA and loss
    _first_parameter: nn.Parameter | None = field(init=False)
    _differentiators: dict[str | None, Differentiator] = field(default_factory=dict)
    _buffers: BufferValues = field(default_factory=BufferValues)  # from before the batch or the epoch
    _suspect: tuple[str, str, str] | None = None  # a loss that was not finite within an accumulation window
    _has_forward_hooks: bool = field(init=False)  # a callback has a hook between forward and backward
    _has_gradient_hooks: bool = field(init=False)  # a callback has a hook between backward and the end of the step
    _is_watched: bool = field(init=False)  # a callback has a hook after backward or between batches

    def __post_init__(self) -> None:
        self.supervised = self.steps.supervised
        self.flags = FiniteFlags(self.device)
        takes_tensors = self.state.optimizer.takes_rate_tensors(compiled=self.compiles_update)
        self.rates = LearningRates(self.device, are_recorded=self.device.type == "cuda" and not takes_tensors)
        self._has_forward_hooks = any(map(self.hooks.has, HOOKS_BEFORE_GRADIENTS))
        self._has_gradient_hooks = any(map(self.hooks.has, HOOKS_AFTER_GRADIENTS))
        self._is_watched = self._has_gradient_hooks or any(map(self.hooks.has, HOOKS_BETWEEN_BATCHES))
        self.refresh()

    # --- one batch

    def run(self, batch: Batch, lr: Any, *, sync: bool = True, can_undo: bool = False) -> StepResult:
        """Forward, loss, backward, accumulate, clip, update, metrics, EMA.

        `can_undo`: if memory runs out before gradients are used, raises `BatchTooLarge`, and the state is as before.
        """
        result = self._start(batch)
        with _freeze_batch_norm(self.state.model) if batch.is_padding else _NO_CONTEXT:
            losses = self._losses(batch, result, sync=sync)
            while True:  # only the first loss can be undone: later ones come after an update
                with undo_if_out_of_memory(self.state) if can_undo else _NO_CONTEXT:
                    loss = next(losses, None)
                    if loss is None:
                        break
                    result.skipped, can_undo = batch.is_padding, False
                    grads, reduced = self._differentiate(loss)
                self._use_gradients(grads, reduced, batch, lr, result, sync=sync)
                if not result.skipped:
                    self._add_loss(loss, sync=sync)
        return self._finish(batch, lr, result, sync=sync)

    def run_eagerly(self, batch: Batch, lr: Any) -> StepResult:
        """`run` without a recording or a trace: the step may be undone if it needs too much memory."""
        return self.run(batch, lr, can_undo=self.settings.micro_batch == "auto")

    def run_until_gradients(self, batch: Batch) -> LocalGradients:
        """The first half of `run`, on this rank alone and without reading values; `apply_gradients` is the rest."""
        result = self._start(batch)
        computed: LocalGradients | None = None
        with _freeze_batch_norm(self.state.model) if batch.is_padding else _NO_CONTEXT:
            for loss in self._losses(batch, result, sync=False, alone=True):
                if loss.name is not None:
                    raise CannotReplay("the step yields objectives, and each is applied before the next is computed")
                assert loss.value is not None
                grads = self._differentiator(None)(loss.value)
                computed = LocalGradients(loss.value.detach(), loss.weight, dict(grads.items()), result)
                if not batch.is_padding:
                    self._add_loss(loss, sync=False)
        assert computed is not None
        if result.output is not None and not batch.is_padding:
            self._update_metrics(result, batch, sync=False)
        return computed

    def apply_gradients(self, computed: LocalGradients, batch: Batch, lr: Any, *, sync: bool = True) -> StepResult:
        """The second half of `run`: reduces gradients over ranks, accumulates, updates."""
        trained, weight, result = self.state.trained, computed.weight, computed.result
        if sync and self.device.type == "cpu" and isinstance(weight, Tensor):
            weight = weight.item()  # as in a step that is not compiled
        grads = Gradients._of(dict(computed.tensors), named_parameters(trained), trained)
        loss = LossTerm(None, computed.loss, weight)
        if self.reducer is not None:
            loss = _zero_if_not_counted(loss)
            if not self.sums_on_each_rank:
                grads = self.reducer.reduce(grads, computed.loss, weight)
                loss = loss._replace(weight=self.reducer.weight)
        self._publish(result)
        self._use_gradients(grads, loss, batch, lr, result, sync=sync)
        return self._finish(batch, lr, result, sync=sync, has_metrics=True)

    def _start(self, batch: Batch) -> StepResult:
        model = self.state.model
        if not model.training:  # a callback has switched it to eval mode
            set_train_mode(model)
        if self.settings.on_nan == "skip":
            self.remember_buffers()
        return StepResult(batch=batch.gather(), skipped=batch.is_padding)

    def _finish(
        self, batch: Batch, lr: Any, result: StepResult, *, sync: bool, has_metrics: bool = False
    ) -> StepResult:
        """Closes windows, updates metrics (unless the first half of the step has) and the EMA."""
        if batch.closes_window:  # also for an objective that this batch did not yield, but an earlier one did
            self._close_windows(batch, lr, result, sync=sync)
        if result.output is not None and not result.skipped and not has_metrics:
            self._update_metrics(result, batch, sync=sync)
        if self.state.ema is not None and result.moved:
            self.state.ema.update(None if sync else self.flags.allowed)
        return result

    def flush_windows(self, last_batch: Batch, lr: Any) -> bool:
        """Applies the update of windows that the epoch ended in; returns whether there was one."""
        result = StepResult()
        self._close_windows(last_batch, lr, result, sync=True)
        if self.state.ema is not None and result.moved:
            self.state.ema.update()
        return result.updated

    def _update_metrics(self, result: StepResult, batch: Batch, *, sync: bool) -> None:
        totals, output = self.state.totals, result.output
        assert output is not None
        totals.update(output, static=True)
        if self.supervised is None and not isinstance(output, BareLoss):
            totals.add_numbers(output, self._weigh(output, batch, result, sync=sync), sync=sync)

    def _add_loss(self, loss: LossTerm, *, sync: bool) -> None:
        assert loss.value is not None
        is_sum = loss.name is None and self.loss_reduction == "sum"
        self.state.totals.add_loss(loss.name or "loss", loss.value, loss.weight, is_sum=is_sum, sync=sync)

    # --- forward and loss

    def _losses(self, batch: Batch, result: StepResult, *, sync: bool, alone: bool = False) -> Iterator[LossTerm]:
        """Yields the losses of a batch; each is applied before the next is computed. Fills in the outputs of `result`.

        `alone`: other ranks do not take part.
        """
        reducer, step = None if alone else self.reducer, self.steps.train
        if step is None:
            answer: Any = self._supervised_output(batch, result, reducer)
        else:
            answer = self._call_step(step, batch, result, reducer)
            if isinstance(answer, Generator):
                if batch.parts is not None and batch.parts > 1:
                    raise InvalidArgument(
                        f"{step.name} yields objectives, and each is applied before the next is computed: "
                        "micro-batches can't give the updates of the whole batch. Leave micro_batch out, or split the "
                        "batch inside of the step and add up the losses of an objective"
                    )
                yield from self._objectives(step, answer, batch, result, alone=reducer is None)
                return
            result.pred = getattr(answer, "predictions", None)
            if self._has_forward_hooks:
                self._publish(result, output=answer)
                self.hooks.fire("on_train_batch_after_pred", self.ctx)
            self.state.progress.loss_count = step.count.saved
        result.output = answer
        weight = 0 if batch.is_padding else self._weigh(answer, batch, result, sync=sync)
        yield self._run_loss_hooks(LossTerm(None, answer.loss, weight), result)

    def _weigh(self, output: Output, batch: Batch, result: StepResult, *, sync: bool) -> float | Tensor:
        """What the loss of a batch is a mean over."""
        count = None if self.steps.train is None else self.steps.train.count
        # With `compile` the weight of a loss stays a tensor, in eager batches as well: the same arithmetic.
        return loss_weight(output, result.batch, batch.size, count, sync=sync and not self.settings.compile)

    def _call_step(
        self, step: StepFunction, batch: Batch, result: StepResult, reducer: GradientReducer | None
    ) -> Output | Generator[Any, Any, Any]:
        """Runs a step that computes the loss itself."""
        model, value = self.state.model, result.batch
        with autocast(self.settings.precision, self.device):
            if reducer is None:
                return step(model, value, batch.size)
            return self._reduced_forward(reducer, batch, lambda: call_as_forward(model, step, model, value, batch.size))

    def _supervised_output(self, batch: Batch, result: StepResult, reducer: GradientReducer | None) -> Output:
        """The forward pass, and the loss function of its result."""
        supervised, model, progress = self.supervised, self.state.model, self.state.progress
        assert supervised is not None
        parts, context = supervised.parts(result.batch), autocast(self.settings.precision, self.device)
        with context:
            if reducer is None:
                result.pred = model(*parts.args, **parts.kwargs)
            else:
                if self.state.loss is not None and not self._has_rank_zeros_buffers(batch):
                    self.ranks.broadcast_within_split(list(self.state.loss.buffers()))
                result.pred = self._reduced_forward(reducer, batch, lambda: model(*parts.args, **parts.kwargs))
        if self._has_forward_hooks:
            self._publish(result)
            self.hooks.fire("on_train_batch_after_pred", self.ctx)
            result.pred = self.ctx.pred
        with context:
            if batch.mix is not None:
                return supervised.score_mixed(result.pred, parts, *batch.mix)
            output = supervised.score(result.pred, parts)
        progress.loss_is_sum = supervised.sums
        progress.loss_count = None if supervised.count is None else supervised.count.saved
        if self.reducer is not None:
            self.reducer.reduction = self.loss_reduction
        return output

    def restore_loss_reduction(self) -> None:
        """Restores in a resumed run what the first call of the loss had shown."""
        progress = self.state.progress
        self.steps.load_loss_count(progress.loss_count, self.device, is_sum=progress.loss_is_sum)

    def _reduced_forward(self, reducer: GradientReducer, batch: Batch, call: Callable[[], Any]) -> Any:
        """The forward pass of this rank's share of a batch."""
        try:
            return call() if self._has_rank_zeros_buffers(batch) else reducer.forward(call)
        except ValueError as error:
            if batch.samples == 1:
                error.add_note(
                    f"rank {self.ranks.world.rank}'s share of this batch is one sample, too few for batch norm: "
                    "choose another batch_size, or Loader(..., drop_last=True)"
                )
            raise

    def _has_rank_zeros_buffers(self, batch: Batch) -> bool:
        """Whether `broadcast_buffers` was called before: ranks may have different numbers of micro-batches."""
        return batch.parts is not None and self.sums_on_each_rank

    def _objectives(
        self,
        step: StepFunction,
        objectives: Generator[Any, Any, Any],
        batch: Batch,
        result: StepResult,
        *,
        alone: bool,
    ) -> Iterator[LossTerm]:
        """Yields the losses of the objectives that a step yields."""
        model, weight = self.state.model, 0 if batch.is_padding else count_samples(result.batch, batch.size)
        while True:
            try:
                with autocast(self.settings.precision, self.device):
                    objective = next(objectives) if alone else call_as_forward(model, next, objectives)
            except StopIteration as end:
                result.output = None if end.value is None else step.as_last_output(end.value, result.batch)
                return
            objective = as_objective(objective, step)
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
    def loss_reduction(self) -> Literal["mean", "sum"]:
        """How the losses of parts of a batch make the loss of the batch; known after the first call of the loss."""
        return "sum" if self.supervised is not None and self.supervised.sums else "mean"

    @property
    def sums_on_each_rank(self) -> bool:
        """Whether each rank accumulates its own micro-batches, and gradients are reduced when a window closes."""
        accumulates = self.settings.accumulate > 1 or self.settings.micro_batch is not None
        return self.reducer is not None and accumulates and not self.ranks.model_is_distributed

    def _differentiator(self, name: str | None) -> Differentiator:
        if name not in self._differentiators:
            self._differentiators[name] = Differentiator(self.state.trained, name)
        return self._differentiators[name]

    def _differentiate(self, loss: LossTerm) -> tuple[Gradients, LossTerm]:
        """The gradients, of all ranks if there are several, and the loss with the weight of the whole batch."""
        scale, value = self.state.loss_scale, loss.value
        assert value is not None
        if scale is not None:
            value = scale.scale(value)
        if self.reducer is None:
            return self._differentiator(loss.name)(value), loss
        local = _zero_if_not_counted(loss)
        if self.sums_on_each_rank:
            return self.reducer.local(value, part=loss.name), local
        grads = self.reducer.backward(value, loss.weight, part=loss.name)
        return grads, local._replace(weight=self.reducer.weight)

    def _use_gradients(
        self, grads: Gradients, loss: LossTerm, batch: Batch, lr: Any, result: StepResult, *, sync: bool
    ) -> None:
        """Adds gradients to their accumulation window, or applies them."""
        if self.state.loss_scale is not None:  # callbacks, checks and clipping see the true gradients
            grads = self.state.loss_scale.unscale(grads)
        if self._has_gradient_hooks:
            grads, lr = self._run_gradient_hooks(grads), self.ctx.lr  # a callback may set the learning rate here too
        if self.settings.accumulate == 1 and batch.parts is None:
            self._update(grads, loss, batch, lr, result, sync=sync)
            return
        window = self.state.accumulators.get(loss.name)
        if window is None:
            window = self.state.accumulators[loss.name] = Accumulator(self.loss_reduction)
        accepted = self._check_micro_batch(grads, loss, batch, result, sync=sync)
        if accepted is not None:
            is_plain_sum = self.loss_reduction == "sum" and not batch.is_padding
            window.add(accepted, weight=1 if is_plain_sum else loss.weight)
        if batch.closes_window and len(window):
            self._close_window(window, batch, lr, result, sync=sync)

    def _run_gradient_hooks(self, grads: Gradients) -> Gradients:
        ctx = self.ctx
        ctx.grads = grads
        self.hooks.fire("on_train_batch_after_backward", ctx)
        changed, ctx.grads = ctx.grads, None
        if not isinstance(changed, Gradients):
            raise WrongType(
                f"a callback set ctx.grads to {type(changed).__name__} in on_train_batch_after_backward; it has to "
                "stay a Gradients"
            )
        return changed

    def _check_micro_batch(
        self, grads: Gradients, loss: LossTerm, batch: Batch, result: StepResult, *, sync: bool
    ) -> Gradients | None:
        """Checks a micro-batch before it joins its window, so that an error names it; returns the gradients to add."""
        if not self.sums_on_each_rank:
            return grads if self._check(grads, loss, None, batch, result, sync=sync) else None
        is_fine = bool(loss.weight == 0) or is_finite(loss.value, grads, None)
        if self.settings.on_nan == "skip" or self.state.loss_scale is not None:
            return grads if self._decide(self.ranks.world.all(is_fine), grads, loss.value, batch, result) else None
        if is_fine:
            return grads
        # No communication here: all ranks refuse the update when the window closes.
        self._suspect = self._suspect or self._locate(loss.value, grads, batch)
        return grads.scale(float("nan"))

    def _close_windows(self, batch: Batch, lr: Any, result: StepResult, *, sync: bool) -> None:
        for window in self.state.accumulators.values():
            if len(window):
                self._close_window(window, batch, lr, result, sync=sync)

    def _close_window(self, window: Accumulator, batch: Batch, lr: Any, result: StepResult, *, sync: bool) -> None:
        if self.sums_on_each_rank and self.reducer is not None:
            grads, weight = self.reducer.reduce_window(window)
        else:
            weight, grads = window.weight, window.take()
        self._update(grads, LossTerm(None, None, weight), batch, lr, result, sync=sync)

    # --- the update: nothing else writes weights

    def _update(
        self, grads: Gradients, loss: LossTerm, batch: Batch, lr: Any, result: StepResult, *, sync: bool
    ) -> None:
        """Applies gradients, unless they or the loss are not finite."""
        settings, norms, weight = self.settings, self.state.gradient_norms, loss.weight
        # Of shards, the norm is one message to the other ranks; checking each shard would be many.
        needs_norm = settings.clip_norm is not None or norms or (self.ranks.model_is_distributed and sync)
        norm = grads.norm() if needs_norm else None
        if not self._check(grads, loss, norm, batch, result, sync=sync):
            # On a GPU a batch of weight 0 counts as an update: a CUDA graph can't tell the host in time.
            is_on_device = isinstance(weight, Tensor) and weight.device.type != "cpu"
            if is_on_device and bool(weight == 0):
                result.updated = True
            return
        if settings.clip_value is not None:
            grads = grads.clip_value(settings.clip_value)
        if settings.clip_norm is not None:
            grads = grads.clip_norm(settings.clip_norm, norm=norm if settings.clip_value is None else None)
        if norm is not None and norms:
            self._add_norm(norm, sync=sync)
        with pretend_compiling() if self.compiles_update else _NO_CONTEXT:
            self.state.optimizer.step(
                grads, lr=self.rates_of_update(lr, sync=sync), when=None if sync else self.flags.allowed
            )
        if self._has_gradient_hooks:
            self.hooks.fire("on_train_batch_after_step", self.ctx)
        result.updated = result.moved = True

    def _check(
        self, grads: Gradients, loss: LossTerm, norm: Tensor | None, batch: Batch, result: StepResult, *, sync: bool
    ) -> bool:
        """Whether gradients may be used. With `sync=False` always: the flags decide."""
        # Several ranks check only the reduced gradients: a bad loss on one rank has made them NaN on all.
        own_loss = loss.value if self.reducer is None else None
        if not sync:
            self.flags.check(largest_values(own_loss, grads), loss.weight)
            return True
        finite = is_finite(own_loss, grads, norm)
        if loss.weight == 0:
            return False  # a batch of weight 0 (all masked) changes nothing, whatever its loss is
        return self._decide(finite, grads, loss.value, batch, result)

    def _decide(self, finite: bool, grads: Gradients, loss: Tensor | None, batch: Batch, result: StepResult) -> bool:
        """Accepts gradients, or leaves the weights alone: raises, or skips the batch if `on_nan="skip"`."""
        scale, progress = self.state.loss_scale, self.state.progress
        if scale is not None:
            scale.adjust(finite=finite)
        if finite:
            return True
        progress.skipped += 1
        is_bad_loss = self.ranks.world.any(loss is not None and not bool(loss.isfinite()))
        if scale is not None and scale.factor > 1.0 and not is_bad_loss:
            return False  # the scale is still being found
        if self.settings.on_nan != "skip":
            raise self._nonfinite_error(loss, grads, batch)
        self.ctx.warn(
            f"the update at epoch {batch.epoch}, batch {batch.number} was skipped: the loss or a gradient is not "
            f"finite ({progress.skipped} so far)"
        )
        self._buffers.restore()
        result.skipped = result.skipped or is_bad_loss
        return False

    def _add_norm(self, norm: Tensor, *, sync: bool) -> None:
        """Adds the gradient norm of an update; if the device allows no update, nothing changes."""
        allowed = None if sync else self.flags.allowed
        targets, values = list[Tensor](), list[Tensor]()
        for meter, state in self.state.gradient_norms.items():
            for name, new in meter.update(state, norm).items():
                targets.append(state[name])
                values.append(new if allowed is None else torch.where(allowed, new, state[name]))
        copy_all(targets, values)

    def rates_of_update(self, lr: Any, *, sync: bool = True) -> Any:
        """The learning rates as the optimizer gets them: on a GPU as tensors, since torch computes other formulas then.

        An optimizer that would read such a tensor on the host gets numbers, in recorded steps too.
        """
        if not sync and self.rates.tensors is not None:
            return self.rates.tensors  # set before the recorded step
        if self.device.type != "cuda" or self.rates.are_recorded:
            return lr
        self.rates.set(lr)
        return self.rates.tensors

    # --- values that are not finite

    def remember_buffers(self) -> None:
        """Copies the buffers: running statistics see a batch before its loss is checked."""
        self._buffers = BufferValues(self.state.model, self.state.loss)

    def _locate(self, loss: Tensor | None, grads: Gradients, batch: Batch) -> tuple[str, str, str]:
        """What is not finite, at which batch, and where it comes from."""
        what = "a gradient" if loss is None else f"the loss ({loss.item():g}) or a gradient"
        search = NonFiniteSearch(self.state.model, self.steps, self.settings.precision, self.device)
        origin = search.describe(batch.gather(), loss, grads, always_forward=self.ranks.model_is_distributed)
        return what, f"epoch {batch.epoch}, batch {batch.number}", origin

    def _nonfinite_error(self, loss: Tensor | None, grads: Gradients, batch: Batch) -> NotFinite:
        """The error that stops the run; of several ranks, it is about the first one whose own loss it was."""
        is_own = self._suspect is not None or (loss is not None and not bool(loss.isfinite()))
        what, where, origin = self._suspect or self._locate(loss, grads, batch)
        if self.ranks.world.size > 1:
            ranks = self.ranks.world.all_gather((is_own, (what, where, origin)))
            rank = next((rank for rank, (is_own, _) in enumerate(ranks) if is_own), 0)
            what, where, origin = ranks[rank][1]
            what = f"{what} of rank {rank}"
        # Running statistics have seen the bad batch: those that are not finite are reset to the start of the epoch.
        self._buffers.restore(keep=all_finite)
        return NotFinite(
            f"{what} is not finite at {where}: {origin}. The update was not applied. "
            "Lower the learning rate, clip (clip_norm=1.0), or skip such batches with Learner(on_nan='skip')",
            on_every_rank=True,
        )

    def diagnose(self, batch: Batch) -> NoReturn:
        """Runs a batch again whose loss or gradients were not finite, and raises with their origin."""
        self.state.accumulators.clear()
        result = self._start(batch)
        try:
            for loss in self._losses(batch, result, sync=True):
                grads, reduced = self._differentiate(loss)
                self._check(grads, reduced, None, batch, result, sync=True)
        except NotFinite as error:
            raise NotFinite(str(error), position=batch.position, on_every_rank=error.on_every_rank) from None
        raise NotFinite(
            f"the loss or a gradient was not finite at epoch {batch.epoch}, batch {batch.number}; when the batch was "
            "run again for the search, they were finite: something in the step does not compute the same twice",
            position=batch.position,
            on_every_rank=self.reducer is not None,
        )

    # --- what executors have to know

    @property
    def compiles_update(self) -> bool:
        """Whether the update is compiled; it then uses the same operations in every batch.

        A fused optimizer is one kernel already. If a step yields objectives, updates come between its parts.
        """
        if not self.settings.compile or self.ranks.world.size > 1:
            return False
        step = self.steps.train
        return not self.state.optimizer.skips_on_device or (step is not None and step.yields(self.state.model))

    @property
    def wants_output(self) -> bool:
        """Whether callbacks or metrics look at the outputs of a step after it has run."""
        return self._is_watched or self.state.totals.has_dynamic_metrics

    def has_begun(self, batch: Batch) -> bool:
        """Whether an update was applied, in this process or an earlier one: the optimizer has its state then."""
        return self.ctx.update > 0 and self.is_loss_known(batch)

    def is_loss_known(self, batch: Batch) -> bool:
        """Whether it is known what the loss is a mean or a sum over; if nothing else says it, its first call does."""
        step = self.steps.train
        if step is None:
            return self.steps.split.is_loss_known
        if isinstance(batch.value, RowSelection):  # of one source, whose batches are all alike
            return step.count.is_known
        return step.count.knows(batch.value)

    def broadcast_buffers(self) -> None:
        """Writes the first rank's buffers of model and loss over those of all ranks, before a forward pass."""
        if self.reducer is not None:
            if self.state.loss is not None:
                self.ranks.broadcast_within_split(list(self.state.loss.buffers()))
            self.reducer.broadcast_buffers()

    def refresh(self) -> None:
        """Looks at the model again: a callback may have changed it."""
        state = self.state
        models = [state.model, None if state.ema is None else state.ema.model, state.loss]
        self.modules = [module for model in models if model is not None for module in model.modules()]
        self._first_parameter = next(iter(state.trained.parameters()), None)
        self._differentiators.clear()

    def callables(self) -> list[Any]:
        """What a step calls besides modules: a loss function, a function that is the step, a transform of batches."""
        loss = None if self.supervised is None else self.supervised.loss
        step = None if self.steps.train is None else self.steps.train.function
        functions = (None if isinstance(loss, nn.Module) else loss, step, self.state.train.batch_transform)
        return [function for function in functions if function is not None]

    def note_weights_changed(self) -> None:
        """Tells autograd, and so resume points, that a replay has written to the parameters."""
        if self._first_parameter is not None:
            torch.autograd.graph.increment_version(self._first_parameter)


class LearningRates:
    """Learning rates as tensors, so that a new value does not trigger a new recording or compilation.

    >>> rates = LearningRates(torch.device("cpu"))
    >>> rates.set(0.5)
    >>> rates.tensors
    tensor(0.5000, dtype=torch.float64)
    """

    __slots__ = ("_device", "are_recorded", "last", "tensors")

    def __init__(self, device: torch.device, *, are_recorded: bool = False) -> None:
        self._device = device
        self.are_recorded = are_recorded  # recorded steps hold them as numbers: a new rate needs a new recording
        self.tensors: Any = None  # one tensor, or one for each selector; None until the first `set`
        self.last: Any = None

    def set(self, lr: Any) -> None:
        """Writes the learning rates of this update, if they are not those of the last one."""
        if type(lr) is float and lr == self.last:
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

    def stack(self, rates: Sequence[Any]) -> list[tuple[Tensor, ...]]:
        """The tensors for several updates, each as `all` has them."""
        values = [list(each.values()) if isinstance(each, Mapping) else [each] for each in rates]
        return [each.unbind() for each in torch.tensor(values, dtype=self.all()[0].dtype).unbind()]

    def all(self) -> list[Tensor]:
        """The tensors as a list."""
        found = self.tensors.values() if isinstance(self.tensors, Mapping) else (self.tensors,)
        return [rate for rate in found if rate is not None]


@contextmanager
def _freeze_batch_norm(model: nn.Module) -> Iterator[None]:
    """Keeps a padding batch out of running statistics; batch norm could not normalise one sample either."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm) and module.training]
    for module in norms:
        module.training = False
    try:
        yield
    finally:
        for module in norms:
            module.training = True


def _zero_if_not_counted(loss: LossTerm) -> LossTerm:
    """The loss as a value to check: zero if it has weight 0, as on a rank whose tokens are all masked."""
    assert loss.value is not None
    value, weight = loss.value.detach(), loss.weight
    if isinstance(weight, Tensor):
        return loss._replace(value=torch.where(weight.to(value.device) > 0, value, 0))
    return loss._replace(value=value if weight else torch.zeros_like(value))


def as_objective(objective: Any, step: StepFunction) -> Objective:
    """What a step yielded; raises if it is not an objective."""
    if isinstance(objective, Objective):
        return objective
    raise WrongType(f"{step.name} yielded {type(objective).__name__}; expected stoker.Objective(name, loss)")
