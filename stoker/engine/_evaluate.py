"""Evaluation, validation and prediction: on a view of the model that can't disturb its training."""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from stoker._tree import map_tensors
from stoker.data import Loader, PaddingBatch, move_batch
from stoker.distributed import World, is_sharded, reshard
from stoker.engine._batch import count_samples
from stoker.engine._fit import Fit
from stoker.engine._forward import call_as_forward
from stoker.engine._precision import autocast
from stoker.engine._rank_sync import length_of
from stoker.engine._rng import preserve_rng
from stoker.engine._step import BareLoss, as_objective, as_output
from stoker.engine._sync import report_progress, synchronize_ranks
from stoker.engine._totals import RunningTotals, loss_weight
from stoker.engine._weights import copy_weights
from stoker.engine.executors import Executor
from stoker.errors import BadData
from stoker.metrics import Metric
from stoker.steps import Output, Supervised, SupervisedOutput, valid

_ONE_PROCESS = World()
_CPU = torch.device("cpu")


@contextmanager
def eval_view(model: nn.Module) -> Iterator[nn.Module]:
    """The model in eval mode: a view of it; or the model itself if it is sharded, for the length of the context.

    The hooks that gather the shards belong to the modules themselves.
    """
    if not is_sharded(model):
        yield valid(model)
        return
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield model.eval()
    finally:
        for module, training in modes:
            module.training = training
        reshard(model)  # without a backward pass nothing else does


class Evaluator:
    """Evaluates batches with a model's `valid_step`, the supervised default, or else its `train_step`.

    `after_pred` and `after_loss` may replace the predictions and the loss: they call the hooks of a validation.
    """

    def __init__(
        self,
        supervised: Supervised | None,
        device: torch.device,
        precision: str,
        *,
        after_pred: Callable[[Any], Any] = lambda pred: pred,
        after_loss: Callable[[Output], Tensor] = lambda output: output.loss,
    ) -> None:
        self._supervised, self._device, self._precision = supervised, device, precision
        self._after_pred, self._after_loss = after_pred, after_loss

    def add(self, view: nn.Module, batch: Any, totals: RunningTotals) -> None:
        """Adds the loss and the metrics of one batch to the totals."""
        supervised = self._supervised
        if supervised is not None and not hasattr(view, "valid_step"):
            parts = supervised.parts(batch)
            with autocast(self._precision, self._device):
                pred = view(*parts.args, **parts.kwargs)
            pred = self._after_pred(pred)
            with autocast(self._precision, self._device):
                output: Output = supervised.score(pred, parts)
        else:
            name = "valid_step" if hasattr(view, "valid_step") else "train_step"
            with autocast(self._precision, self._device):
                answer = call_as_forward(view, getattr(view, name), batch)
                if isinstance(answer, Generator):
                    output = _add_objectives(view, answer, batch, totals)
                else:
                    output = as_output(answer, view, name)
            self._after_pred(getattr(output, "predictions", None))
            if isinstance(answer, Generator):
                self._after_loss(output)
                if not isinstance(output, BareLoss):
                    totals.update(output)
                return
        is_sum = isinstance(output, SupervisedOutput) and supervised is not None and supervised.sums
        totals.add_loss("loss", self._after_loss(output), loss_weight(output, batch), is_sum=is_sum)
        if not isinstance(output, BareLoss):
            totals.update(output)


def _add_objectives(view: nn.Module, step: Generator[Any, Any, Any], batch: Any, totals: RunningTotals) -> Output:
    """Adds the losses of a step that yields objectives; none is differentiated."""
    loss = torch.zeros(())
    while True:
        try:
            objective = as_objective(call_as_forward(view, next, step), view)
        except StopIteration as end:
            return BareLoss(loss) if end.value is None else as_output(end.value, view)
        loss = objective.loss
        totals.add_loss(objective.name, loss, count_samples(batch))


def evaluate(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    supervised: Supervised | None,
    metrics: Sequence[Metric],
    device: torch.device,
    precision: str = "fp32",
    world: World = _ONE_PROCESS,
) -> dict[str, float]:
    """The loss and the metrics of a model on some batches, by name; of all ranks' batches, on every rank."""
    totals, evaluator = RunningTotals(metrics, device), Evaluator(supervised, device, precision)
    with eval_view(model) as view, torch.no_grad():
        for batch in batches:
            is_padding = isinstance(batch, PaddingBatch)
            value = move_batch(batch.batch if is_padding else batch, device)
            evaluator.add(view, value, totals.empty_copy() if is_padding else totals)
    return {name.removeprefix("x/"): value for name, value in totals.merge_ranks(world).values("x").items()}


# --- validation inside a fit


def validate(fit: Fit, executor: Executor) -> None:
    """Evaluates the weights on every validation set; leaves no trace in the training or its random numbers."""
    if not fit.valid or fit.signals.interrupted:
        return
    ctx, state, fire = fit.ctx, fit.state, fit.hooks.fire
    fit.ranks.broadcast_buffers([state.model, None if state.ema is None else state.ema.model, state.loss])
    before = ctx.batch_number, ctx.batches, ctx.batch, ctx.output, ctx.pred, ctx.loss, ctx.is_padding
    with (
        preserve_rng(),
        _preserve_generators(fit.valid.values()),
        state.optimizer.evaluation_weights(),
        executor.share_graph_pool() as use_pool,
    ):
        for name, loader in fit.valid.items():
            ctx.phase, ctx.set_name, ctx.batches = "valid", name, length_of(loader)
            fire("on_valid_begin", ctx)
            values = _validate_on(fit, loader, name, use_pool)
            if not fit.signals.interrupted:
                ctx.metrics |= values
                # The position is that of the training; batches of the validation set do not matter afterwards.
                fit.recorder.record.append(replace(fit.recorder.event("valid", values, name=name), batch=before[0]))
            fire("on_valid_end", ctx)
        _keep_best_weights(fit)
        ctx.phase, ctx.set_name = "train", "train"
        ctx.batch_number, ctx.batches, ctx.batch, ctx.output, ctx.pred, ctx.loss, ctx.is_padding = before
    if not fit.signals.interrupted:
        state.progress.validated_update = ctx.update
        fire("on_validation", ctx)
        synchronize_ranks(fit, wait=True)


@contextmanager
def _preserve_generators(loaders: Iterable[Loader]) -> Iterator[None]:
    """Restores the generators of DataLoaders afterwards, so that every validation draws the same."""
    before = [(loader, loader.generator_states()) for loader in loaders if loader.needs_rng_state]
    try:
        yield
    finally:
        for loader, states in before:
            loader.load_generator_states(states)


def _validate_on(
    fit: Fit, loader: Loader, name: str, use_pool: Callable[[], AbstractContextManager[None]]
) -> dict[str, float]:
    """The values of one validation set; empty if a signal ends it."""
    ctx, fire = fit.ctx, fit.hooks.fire
    totals = RunningTotals(
        fit.valid_metrics,
        fit.device,
        describe_position=lambda: f", {ctx.set_name}, epoch {ctx.epoch}, batch {ctx.batch_number}",
    )

    def after_pred(pred: Any) -> Any:
        ctx.pred = pred
        fire("on_valid_batch_after_pred", ctx)
        return ctx.pred

    def after_loss(output: Output) -> Any:
        ctx.output, ctx.loss = output, output.loss
        fire("on_valid_batch_after_loss", ctx)
        return ctx.loss

    evaluator = Evaluator(
        fit.step.supervised, fit.device, fit.settings.precision, after_pred=after_pred, after_loss=after_loss
    )
    # Always epoch 0: what a transform draws is the same in every validation.
    batches = fit.ranks.stop_streams_together(loader, fit.signals.interruptible_batches(loader, loader.at(epoch=0)))
    with eval_view(fit.state.eval_model) as view:
        for number, batch in enumerate(batches, start=1):
            ctx.is_padding = isinstance(batch, PaddingBatch)
            value, counted = (batch.batch, totals.empty_copy()) if ctx.is_padding else (batch, totals)
            ctx.batch_number, ctx.batch = number, move_batch(value, fit.device)
            fire("on_valid_batch_begin", ctx)
            with torch.no_grad(), use_pool():
                evaluator.add(view, ctx.batch, counted)
            fire("on_valid_batch_end", ctx)
            counted.samples += count_samples(value)
            report_progress(fit, totals)
            if fit.signals.interrupted:
                return {}  # values of a part of the set would be misleading
    return totals.merge_ranks(fit.ranks.split).values(name)


def _keep_best_weights(fit: Fit) -> None:
    if fit.settings.monitor is None:
        return
    best = fit.ctx.record.best(fit.settings.monitor)
    if best is not None and best != fit.ctx.best and best.update == fit.ctx.update:  # these are its weights
        fit.ctx.best = best
        if fit.settings.keep == "best":
            fit.state.best_weights = copy_weights(fit.state.eval_model)


# --- prediction


def predict(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    supervised: Supervised,
    device: torch.device,
    precision: str = "fp32",
    world: World = _ONE_PROCESS,
) -> Any:
    """The model's predictions for all samples, joined along the first dimension, on the CPU; on every rank.

    They come from the model's `predict_step` if it has one.
    """
    found, last = list[Any](), None
    with eval_view(model) as view, torch.no_grad(), autocast(precision, device):
        for batch in batches:
            is_padding = isinstance(batch, PaddingBatch)
            value = move_batch(batch.batch if is_padding else batch, device)
            if hasattr(view, "predict_step"):
                answer = call_as_forward(view, view.predict_step, value)  # pyright: ignore[reportArgumentType]
            else:
                parts = supervised.inputs(value)
                answer = view(*parts.args, **parts.kwargs)
            last = map_tensors(_widen, move_batch(answer, _CPU))
            found.append(None if is_padding else last)
    if world.size > 1:
        # Batch by batch, and within each in the order of the ranks.
        gathered = [part for row in zip(*world.all_gather(found), strict=True) for part in row if part is not None]
        found = [_restore_namedtuples(last, part) for part in gathered]
    if not found:
        raise BadData("there is nothing to predict: the data gave no batches")
    return _join(found)


def _widen(tensor: Tensor) -> Tensor:
    """float32 if autocast gave 16 bits: predictions do not depend on the precision of the fit."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _restore_namedtuples(like: Any, value: Any) -> Any:
    """What another rank sent, with the model's namedtuples."""
    if isinstance(like, Mapping):
        return {name: _restore_namedtuples(like[name], part) for name, part in value.items()}
    if isinstance(like, tuple) and hasattr(like, "_fields"):
        return type(like)(*map(_restore_namedtuples, like, value))
    if isinstance(like, tuple | list) and any(isinstance(each, Mapping | tuple | list) for each in like):
        return type(like)(map(_restore_namedtuples, like, value))
    return value


def _join(parts: list[Any]) -> Any:
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(parts) if first.dim() else torch.stack(parts)
    if isinstance(first, Mapping):
        return {name: _join([part[name] for part in parts]) for name in first}
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(_join(list(column)) for column in zip(*parts, strict=True)))
    if isinstance(first, tuple | list) and any(isinstance(each, Tensor | Mapping | tuple | list) for each in first):
        return type(first)(_join(list(column)) for column in zip(*parts, strict=True))
    # Without tensors, it is one value for each sample: texts, for example.
    return [each for part in parts for each in (part if isinstance(part, tuple | list) else [part])]
