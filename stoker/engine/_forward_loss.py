"""`ForwardLoss`: the forward pass of a batch, and its loss."""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from stoker.callbacks import Context, Hooks
from stoker.engine._batch import Batch
from stoker.engine._forward import call_as_forward
from stoker.engine._precision import autocast
from stoker.engine._ranks import Ranks
from stoker.engine._state import TrainState
from stoker.engine._totals import loss_weight
from stoker.errors import InvalidArgument, WrongType
from stoker.steps import Objective, Output, StepFunction, Steps, count_samples

Objectives = Generator[Any, Any, Any]  # of a step of the user
HOOKS_BEFORE_GRADIENTS = ("on_train_batch_after_pred", "on_train_batch_after_loss")


@dataclass(slots=True, eq=False, kw_only=True)
class StepResult:
    """What a training step did with a batch. The parts of a step fill it in."""

    updated: bool = False  # it counts as an update, by which learning rates and limits go
    moved: bool = False  # the optimizer has run, so the EMA follows; if a device guard forbade it, nothing has changed
    skipped: bool = False  # losses and metrics leave the batch out: its loss is not finite, or it is padding
    loss: Tensor | None = None  # of the last objective
    batch: Any = None  # as the model saw it
    pred: Any = None
    output: Output | None = None


class LossTerm(NamedTuple):
    """A loss to differentiate."""

    name: str | None  # of an objective, and so of the parameters; None for all parameters
    value: Tensor | None  # None for an accumulation window
    weight: float | Tensor  # the number of samples or tokens that it is a mean over


class ForwardLoss:
    """Computes the loss of a batch: by a loss function, or by a step of the user.

    It calls the hooks between forward and backward, and fills in the outputs of a `StepResult`. `reads_weights`: the
    weights of losses are numbers, not tensors.
    """

    def __init__(
        self,
        state: TrainState,
        steps: Steps,
        hooks: Hooks,
        ctx: Context,
        ranks: Ranks,
        *,
        precision: str,
        reads_weights: bool,
    ) -> None:
        self._state, self._steps, self._hooks, self._ctx, self._ranks = state, steps, hooks, ctx, ranks
        self._precision, self._device, self._reads_weights = precision, ctx.device, reads_weights
        self._supervised = steps.supervised
        self._has_hooks = any(map(hooks.has, HOOKS_BEFORE_GRADIENTS))

    @property
    def reduction(self) -> Literal["mean", "sum"]:
        """How losses of micro-batches make the loss of the batch; known after the first call of the loss."""
        return "sum" if self._supervised is not None and self._supervised.sums else "mean"

    def run(self, batch: Batch, result: StepResult) -> tuple[LossTerm | None, Objectives | None]:
        """The loss of a batch; of a step that yields objectives the first one, and the generator of the others."""
        step = self._steps.train
        if step is None:
            output = self._call_supervised(batch, result)
        else:
            output = self._call_step(step, batch, result)
            if isinstance(output, Generator):
                if batch.parts is not None and batch.parts > 1:
                    raise InvalidArgument(
                        f"{step.name} yields objectives, and each is applied before the next is computed: "
                        "micro-batches can't give the updates of the whole batch. Leave micro_batch out, or split the "
                        "batch inside of the step and add up the losses of an objective"
                    )
                return self.next_objective(output, batch, result), output
            result.pred = getattr(output, "predictions", None)
            if self._has_hooks:
                self.publish(result, output=output)
                self._hooks.fire("on_train_batch_after_pred", self._ctx)
            self._state.progress.loss_count = step.count.saved
        result.output = output
        weight = 0 if batch.is_padding else self.weigh(output, batch, result)
        return self._run_loss_hooks(LossTerm(None, output.loss, weight), result), None

    def next_objective(self, objectives: Objectives, batch: Batch, result: StepResult) -> LossTerm | None:
        """The loss of the next objective that a step yields; None at its end, where `result` gets its output."""
        step, model = self._steps.train, self._state.model
        assert step is not None
        try:
            with autocast(self._precision, self._device):
                objective = as_objective(call_as_forward(model, next, objectives), step)
        except StopIteration as end:
            result.output = None if end.value is None else step.as_last_output(end.value, result.batch)
            return None
        weight = 0 if batch.is_padding else count_samples(result.batch, batch.size)
        return self._run_loss_hooks(LossTerm(objective.name, objective.loss, weight), result)

    def weigh(self, output: Output, batch: Batch, result: StepResult) -> float | Tensor:
        """The weight of the loss of a batch."""
        count = None if self._steps.train is None else self._steps.train.count
        can_read = self._reads_weights and not torch.compiler.is_compiling()
        return loss_weight(output, result.batch, batch.size, count, read=can_read)

    def publish(self, result: StepResult, output: Output | None = None) -> None:
        """Makes the batch and its outputs visible to callbacks."""
        ctx = self._ctx
        ctx.batch, ctx.pred, ctx.output = result.batch, result.pred, result.output if output is None else output
        ctx.loss = result.loss

    def _call_step(self, step: StepFunction, batch: Batch, result: StepResult) -> Output | Objectives:
        """Runs a step that computes the loss itself."""
        model, value = self._state.model, result.batch
        with autocast(self._precision, self._device):
            if self._ranks.world.size == 1:
                return call_as_forward(model, step, model, value, batch.size)
            return self._explain_small_share(batch, lambda: call_as_forward(model, step, model, value, batch.size))

    def _call_supervised(self, batch: Batch, result: StepResult) -> Output:
        """Runs the model and the loss function."""
        supervised, model, progress = self._supervised, self._state.model, self._state.progress
        assert supervised is not None
        parts, context = supervised.parts(result.batch), autocast(self._precision, self._device)
        with context:
            if self._ranks.world.size == 1:
                result.pred = model(*parts.args, **parts.kwargs)
            else:
                result.pred = self._explain_small_share(batch, lambda: model(*parts.args, **parts.kwargs))
        if self._has_hooks:
            self.publish(result)
            self._hooks.fire("on_train_batch_after_pred", self._ctx)
            result.pred = self._ctx.pred
        with context:
            if batch.mix is not None:
                return supervised.score_mixed(result.pred, parts, *batch.mix)
            output = supervised.score(result.pred, parts, batch.size)
        progress.loss_is_sum = supervised.sums
        progress.loss_count = None if supervised.count is None else supervised.count.saved
        return output

    def _explain_small_share(self, batch: Batch, forward: Callable[[], Any]) -> Any:
        """The result of the forward pass of this rank's share of a batch."""
        try:
            return forward()
        except ValueError as error:
            if batch.samples == 1:
                error.add_note(
                    f"rank {self._ranks.world.rank}'s share of this batch is one sample, too few for batch norm: "
                    "choose another batch_size, or Loader(..., drop_last=True)"
                )
            raise

    def _run_loss_hooks(self, loss: LossTerm, result: StepResult) -> LossTerm:
        """Calls `on_train_batch_after_loss`, which may replace the loss."""
        result.loss = loss.value
        if not self._has_hooks:
            return loss
        self.publish(result)
        self._hooks.fire("on_train_batch_after_loss", self._ctx)
        result.loss, result.output = self._ctx.loss, self._ctx.output
        if not isinstance(result.loss, Tensor):
            raise WrongType(
                f"a callback set ctx.loss to {type(result.loss).__name__} in on_train_batch_after_loss; it has to "
                "stay a tensor"
            )
        return loss._replace(value=result.loss)


def as_objective(objective: Any, step: StepFunction) -> Objective:
    """What a step yielded; raises if it is not an objective."""
    if isinstance(objective, Objective):
        return objective
    raise WrongType(f"{step.name} yielded {type(objective).__name__}; expected stoker.Objective(name, loss)")
