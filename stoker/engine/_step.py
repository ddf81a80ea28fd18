"""`TrainStep`: all that happens to one batch, from the forward pass to the metrics.

A step has two phases. `compute_gradients` runs the model and differentiates its loss; `apply_gradients` adds the
gradients to their window, or updates the weights, if the guard of the call accepts them. `run` is both, once for each
objective, and then adds the loss and the metrics. Executors (`stoker.engine.executors`) decide how it runs: operation
by operation, recorded in a CUDA graph, or compiled. If only the first phase is compiled, `compute_local_gradients` and
`apply_local_gradients` take the place of `run`.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from stoker._select import named_parameters, set_train_mode
from stoker.callbacks import Context, Hooks
from stoker.data import RowSelection
from stoker.engine._batch import Batch
from stoker.engine._finite import NonFiniteSearch
from stoker.engine._forward_loss import HOOKS_BEFORE_GRADIENTS, ForwardLoss, LossTerm, Objectives, StepResult
from stoker.engine._guard import DeviceGuard, Guard, HostGuard, LearningRates
from stoker.engine._ranks import Ranks
from stoker.engine._replayable import CannotReplay
from stoker.engine._settings import Settings
from stoker.engine._state import TrainState
from stoker.engine._undo import undo_if_out_of_memory
from stoker.engine._update import Update
from stoker.engine._window import GradientWindows
from stoker.errors import NotFinite, WrongType
from stoker.gradients import Differentiator, GradientReducer, Gradients
from stoker.steps import BareLoss, Steps, Supervised

HOOKS_AFTER_GRADIENTS = ("on_train_batch_after_backward", "on_train_batch_after_step")
HOOKS_INSIDE_BATCHES = (*HOOKS_BEFORE_GRADIENTS, *HOOKS_AFTER_GRADIENTS, "on_exception")
HOOKS_BETWEEN_BATCHES = ("on_train_batch_begin", "on_train_batch_end", "on_update")
_NO_CONTEXT = nullcontext()


class BatchGradients(NamedTuple):
    """The gradients of a loss, of the whole batch: with several ranks, they are reduced."""

    gradients: Gradients  # of this rank's share only, if `reduces_windows`
    loss: LossTerm  # for the guard and the window: with the weight of the whole batch, and zero if that is 0
    own_loss: LossTerm  # of this rank, for the totals


class LocalGradients(NamedTuple):
    """What a compiled first phase computes. With several ranks, gradients and loss are of this rank's share."""

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
    ranks: Ranks
    reducer: GradientReducer | None = None  # adds up gradients over ranks
    rates_vary: bool = True  # whether learning rates may differ from batch to batch
    rates: LearningRates = field(init=False)
    host_guard: HostGuard = field(init=False)
    device_guard: DeviceGuard = field(init=False)
    modules: list[nn.Module] = field(init=False)  # of model and loss
    _forward_loss: ForwardLoss = field(init=False)
    _windows: GradientWindows = field(init=False)
    _update: Update = field(init=False)
    _reads_weights: bool = field(init=False)  # weights of losses are numbers, not tensors
    _first_parameter: nn.Parameter | None = field(init=False)
    _differentiators: dict[str | None, Differentiator] = field(default_factory=dict)
    _has_gradient_hooks: bool = field(init=False)  # a callback has a hook between backward and the end of the step
    _callbacks_read_outputs: bool = field(init=False)  # one has a hook after backward or between batches

    def __post_init__(self) -> None:
        settings, state, device, ranks = self.settings, self.state, self.device, self.ranks
        takes_tensors = state.optimizer.takes_rate_tensors(compiled=self.compiles_update)
        self.rates = LearningRates(device, are_constants=device.type == "cuda" and not takes_tensors)
        checks_loss = self.reducer is None
        search = NonFiniteSearch(state.model, self.steps, settings.precision, device)
        self.host_guard = HostGuard(
            state, self.rates, ranks, search, device, skips=settings.on_nan == "skip", checks_loss=checks_loss
        )
        self.device_guard = DeviceGuard(self.rates, device, checks_loss=checks_loss)
        # Where the update is compiled the weight stays a tensor, in eager batches as well: the same arithmetic.
        self._reads_weights = device.type == "cpu" and not self.compiles_update
        self._forward_loss = ForwardLoss(
            state,
            self.steps,
            self.hooks,
            self.ctx,
            ranks,
            precision=settings.precision,
            reads_weights=self._reads_weights,
        )
        self._update = Update(settings, state, self.hooks, self.ctx, is_compiled=self.compiles_update)
        self._windows = GradientWindows(state, self._update, self.reducer if self.reduces_windows else None)
        if settings.accumulate > 1 or settings.micro_batch is not None or ranks.world.size > 1:
            self.steps.note_split()
        self._has_gradient_hooks = any(map(self.hooks.has, HOOKS_AFTER_GRADIENTS))
        self._callbacks_read_outputs = self._has_gradient_hooks or any(map(self.hooks.has, HOOKS_BETWEEN_BATCHES))
        self.refresh()

    # --- one batch

    def run(self, batch: Batch, lr: Any, guard: Guard, *, can_undo: bool = False) -> StepResult:
        """Both phases, once for each objective; then losses, metrics and EMA.

        `can_undo`: if memory runs out before gradients are used, raises `BatchTooLarge`, and the state is as before.
        """
        result = self._start(batch)
        with _freeze_batch_norm(self.state.model) if batch.is_padding else _NO_CONTEXT:
            with undo_if_out_of_memory(self.state) if can_undo else _NO_CONTEXT:
                computed, objectives = self.compute_gradients(batch, result)
            while computed is not None:  # of several objectives, each is applied before the next is computed
                self.apply_gradients(computed, batch, lr, guard, result)
                if not result.skipped:
                    self._add_loss(computed.own_loss)
                computed = None if objectives is None else self._compute_next(objectives, batch, result)
        if not result.skipped:
            self._add_metrics(batch, result)
        self._end_batch(batch, lr, guard, result)
        return result

    def run_eagerly(self, batch: Batch, lr: Any) -> StepResult:
        """`run` with the host's guard; with `micro_batch="auto"`, a step that needs too much memory is undone."""
        return self.run(batch, lr, self.host_guard, can_undo=self.settings.micro_batch == "auto")

    def compute_gradients(self, batch: Batch, result: StepResult) -> tuple[BatchGradients | None, Objectives | None]:
        """The first phase: forward, loss and backward. Of a step that yields objectives, those of the first one."""
        if self.synchronizes_buffers(batch):
            self.synchronize_buffers()
        loss, objectives = self._forward_loss.run(batch, result)
        return None if loss is None else self._differentiate(loss), objectives

    def _compute_next(self, objectives: Objectives, batch: Batch, result: StepResult) -> BatchGradients | None:
        """The first phase for the next objective; None if there is no other."""
        loss = self._forward_loss.next_objective(objectives, batch, result)
        return None if loss is None else self._differentiate(loss)

    def apply_gradients(
        self, computed: BatchGradients, batch: Batch, lr: Any, guard: Guard, result: StepResult
    ) -> None:
        """The second phase: adds gradients to their accumulation window, or updates the weights."""
        grads, loss, _ = computed
        if self.state.loss_scale is not None:  # callbacks, checks and clipping see the true gradients
            grads = self.state.loss_scale.unscale(grads)
        if self._has_gradient_hooks:
            grads, lr = self._run_gradient_hooks(grads, result), self.ctx.lr  # a callback may set the rate here too
        if self.settings.accumulate == 1 and batch.parts is None:
            decision = self._update.apply(grads, loss, batch, lr, guard, result)
        else:
            reduction = self._forward_loss.reduction
            decision = self._windows.add(grads, loss, batch, lr, guard, result, reduction=reduction)
        result.skipped = batch.is_padding or decision == "skip batch"

    def compute_local_gradients(self, batch: Batch) -> LocalGradients:
        """The first phase as it is compiled: without communication and without a check, and with losses and metrics."""
        result = self._start(batch)
        with _freeze_batch_norm(self.state.model) if batch.is_padding else _NO_CONTEXT:
            loss, objectives = self._forward_loss.run(batch, result)
        if objectives is not None:
            raise CannotReplay("the step yields objectives, and each is applied before the next is computed")
        assert loss is not None
        assert loss.value is not None
        grads = self._differentiator(None)(loss.value)
        if not batch.is_padding:
            self._add_loss(loss)
            self._add_metrics(batch, result)
        return LocalGradients(loss.value.detach(), loss.weight, dict(grads.items()), result)

    def apply_local_gradients(self, local: LocalGradients, batch: Batch, lr: Any, guard: Guard) -> StepResult:
        """What follows a compiled first phase: reduces gradients over ranks, and applies them."""
        trained, weight, result = self.state.trained, local.weight, local.result
        if self._reads_weights and isinstance(weight, Tensor):
            weight = weight.item()  # as in a step that is not compiled
        grads = Gradients._of(dict(local.tensors), named_parameters(trained), trained)
        own = LossTerm(None, local.loss, weight)
        computed = BatchGradients(grads, own, own)
        if self.reducer is not None:
            loss = _zero_if_not_counted(own)
            if not self.reduces_windows:
                grads = self.reducer.reduce(grads, local.loss, weight, reduction=self._forward_loss.reduction)
                loss = loss._replace(weight=self.reducer.weight)
            computed = BatchGradients(grads, loss, own)
        self.apply_gradients(computed, batch, lr, guard, result)
        self._end_batch(batch, lr, guard, result)
        return result

    def flush_windows(self, last_batch: Batch, lr: Any) -> bool:
        """Applies the update of windows that the epoch ended in; returns whether there was one."""
        result = StepResult()
        self._windows.close(last_batch, lr, self.host_guard, result)
        self._update.end_batch(self.host_guard, result)
        return result.updated

    def diagnose(self, batch: Batch) -> NoReturn:
        """Runs a batch again whose loss or gradients were not finite, and raises with their origin."""
        self.state.accumulators.clear()
        result = self._start(batch)
        try:
            computed, objectives = self.compute_gradients(batch, result)
            while computed is not None:
                self.host_guard.check(computed.gradients, computed.loss, None, batch)
                computed = None if objectives is None else self._compute_next(objectives, batch, result)
        except NotFinite as error:
            raise NotFinite(str(error), position=batch.position, on_every_rank=error.on_every_rank) from None
        raise NotFinite(
            f"the loss or a gradient was not finite at epoch {batch.epoch}, batch {batch.number}; when the batch was "
            "run again for the search, they were finite: something in the step does not compute the same twice",
            position=batch.position,
            on_every_rank=self.reducer is not None,
        )

    def _start(self, batch: Batch) -> StepResult:
        model = self.state.model
        if not model.training:  # a callback has switched it to eval mode
            set_train_mode(model)
        if self.settings.on_nan == "skip":
            self.host_guard.remember_buffers()
        return StepResult(batch=batch.gather(), skipped=batch.is_padding)

    def _end_batch(self, batch: Batch, lr: Any, guard: Guard, result: StepResult) -> None:
        """Closes windows that no objective of this batch has closed, and updates the EMA."""
        if batch.closes_window and self.state.accumulators:
            self._windows.close(batch, lr, guard, result)
        self._update.end_batch(guard, result)

    def _add_loss(self, loss: LossTerm) -> None:
        assert loss.value is not None
        is_sum = loss.name is None and self._forward_loss.reduction == "sum"
        self.state.totals.add_loss(loss.name or "loss", loss.value, loss.weight, is_sum=is_sum)

    def _add_metrics(self, batch: Batch, result: StepResult) -> None:
        totals, output = self.state.totals, result.output
        if output is None:
            return
        totals.update(output, static=True)
        if self.supervised is None and not isinstance(output, BareLoss):
            totals.add_numbers(output, self._forward_loss.weigh(output, batch, result))

    # --- gradients

    @property
    def reduces_windows(self) -> bool:
        """Whether each rank accumulates its own micro-batches, and gradients are reduced when a window closes."""
        accumulates = self.settings.accumulate > 1 or self.settings.micro_batch is not None
        return self.reducer is not None and accumulates and not self.ranks.model_is_distributed

    def synchronize_buffers(self) -> None:
        """Before a forward pass: writes the first rank's buffers of model and loss over those of all ranks.

        Ranks that yield objectives also check that all of them are at the beginning of a batch.
        """
        if self.reducer is not None:
            if self.state.loss is not None:
                self.ranks.broadcast_to_data_world(list(self.state.loss.buffers()))
            self.reducer.start_batch()

    def synchronizes_buffers(self, batch: Batch) -> bool:
        """Whether `synchronize_buffers` precedes this batch. Of micro-batches whose number may differ it does not."""
        return self.reducer is not None and (batch.parts is None or not self.reduces_windows)

    def _differentiator(self, name: str | None) -> Differentiator:
        if name not in self._differentiators:
            self._differentiators[name] = Differentiator(self.state.trained, name)
        return self._differentiators[name]

    def _differentiate(self, loss: LossTerm) -> BatchGradients:
        """The gradients, of all ranks if there are several, and the loss with the weight of the whole batch."""
        scale, value, reducer = self.state.loss_scale, loss.value, self.reducer
        assert value is not None
        if scale is not None:
            value = scale.scale(value)
        if reducer is None:
            return BatchGradients(self._differentiator(loss.name)(value), loss, loss)
        checked = _zero_if_not_counted(loss)
        if self.reduces_windows:
            return BatchGradients(reducer.local(value, objective=loss.name), checked, loss)
        reduction = self._forward_loss.reduction
        grads = reducer.backward(value, loss.weight, objective=loss.name, reduction=reduction)
        return BatchGradients(grads, checked._replace(weight=reducer.weight), loss)

    def _run_gradient_hooks(self, grads: Gradients, result: StepResult) -> Gradients:
        ctx = self.ctx
        self._forward_loss.publish(result)
        ctx.grads = grads
        self.hooks.fire("on_train_batch_after_backward", ctx)
        changed, ctx.grads = ctx.grads, None
        if not isinstance(changed, Gradients):
            raise WrongType(
                f"a callback set ctx.grads to {type(changed).__name__} in on_train_batch_after_backward; it has to "
                "stay a Gradients"
            )
        return changed

    # --- what executors have to know

    @property
    def supervised(self) -> Supervised | None:
        """The loss function and how batches are split for it; None if a step computes the loss."""
        return self.steps.supervised

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
        return self._callbacks_read_outputs or self.state.totals.has_dynamic_metrics

    def is_initialized(self, batch: Batch) -> bool:
        """Whether all that a first step creates is there: state of the optimizer, and the weight of the loss."""
        return self.ctx.update > 0 and self.is_loss_known(batch)

    def is_loss_known(self, batch: Batch) -> bool:
        """Whether the weight of the loss of such a batch is known; if nothing else says it, the first call does."""
        step = self.steps.train
        if step is None:
            return self.steps.split.is_loss_known
        if isinstance(batch.value, RowSelection):  # of one source, whose batches are all alike
            return step.count.is_known
        return step.count.knows(batch.value)

    def restore_loss_reduction(self) -> None:
        """Restores in a resumed run what the first call of the loss had shown."""
        progress = self.state.progress
        self.steps.load_loss_count(progress.loss_count, self.device, is_sum=progress.loss_is_sum)

    def refresh(self) -> None:
        """Looks at the model again: a callback may have changed it."""
        state = self.state
        state.note_unfrozen()
        models = [state.model, state.loss]
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
        """Increments a version counter, since a replay writes to parameters without autograd.

        One is enough: a resume point compares those of all parameters.
        """
        if self._first_parameter is not None:
            torch.autograd.graph.increment_version(self._first_parameter)


@contextmanager
def _freeze_batch_norm(model: nn.Module) -> Iterator[None]:
    """Switches batch norms to eval mode for a padding batch: it may be one sample, and running statistics skip it."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm) and module.training]
    for module in norms:
        module.training = False
    try:
        yield
    finally:
        for module in norms:
            module.training = True


def _zero_if_not_counted(loss: LossTerm) -> LossTerm:
    """The loss as a value to check: zero if its weight is 0, as on a rank whose tokens are all masked."""
    assert loss.value is not None
    value, weight = loss.value.detach(), loss.weight
    if isinstance(weight, Tensor):
        return loss._replace(value=torch.where(weight.to(value.device) > 0, value, 0))
    return loss._replace(value=value if weight else torch.zeros_like(value))
