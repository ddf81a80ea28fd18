"""Evaluation, validation and prediction, which do not disturb the training: see `evaluating`."""

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from stoker._select import has_compiled_modules
from stoker.callbacks import Context
from stoker.data import Loader, PaddingBatch, move_batch
from stoker.distributed import World
from stoker.engine._batch import Batch
from stoker.engine._batch_errors import add_batch_note, name_batch
from stoker.engine._buffers import preserve_buffers
from stoker.engine._evaluating import evaluating
from stoker.engine._fit import Fit
from stoker.engine._forward import call_as_forward
from stoker.engine._forward_loss import as_objective
from stoker.engine._micro_batches import evaluate_micro_batches
from stoker.engine._precision import autocast
from stoker.engine._predictions import join_predictions, to_plain
from stoker.engine._streams import length_of, stop_streams_together
from stoker.engine._totals import RunningTotals, TotalsReading, loss_weight
from stoker.engine._undo import is_out_of_memory
from stoker.engine.executors import Executor
from stoker.errors import BadData, InvalidArgument, NoSuchMetric, did_you_mean
from stoker.metrics import Metric
from stoker.record import Best, split_matrices
from stoker.steps import BareLoss, Output, OwnForward, StepFunction, Steps, count_samples

_ONE_PROCESS = World()
_SWITCHED = (
    "the model was switched to training mode in a validation, which evaluates the model itself: a hook of a callback "
    "or the model's own step called train(). Do that after the validation, in on_validation; to use other modes for "
    "a part of the model, switch that part alone"
)


class Evaluator:
    """Evaluates batches with the step of a validation, or with the loss function.

    `after_pred` and `after_loss` may replace the predictions and the loss: they call the hooks of a validation.
    """

    def __init__(
        self,
        steps: Steps,
        device: torch.device,
        precision: str,
        *,
        after_pred: Callable[[Any], Any] = lambda pred: pred,
        after_loss: Callable[[Output], Tensor] = lambda output: output.loss,
    ) -> None:
        self._steps = steps
        self._device, self._precision = device, precision
        self._after_pred, self._after_loss = after_pred, after_loss

    def add(self, model: nn.Module, batch: Any, totals: RunningTotals, size: int | None = None) -> None:
        """Adds the loss and the metrics of one batch to the totals; `size` is its number of samples, if it is known."""
        step, supervised = self._steps.evaluate, self._steps.split
        if step is not None:
            self._add_step(step, model, batch, totals, size)
            return
        parts = supervised.parts(batch)
        with autocast(self._precision, self._device):
            pred = model(*parts.args, **parts.kwargs)
        pred = self._after_pred(pred)
        with autocast(self._precision, self._device):
            output: Output = supervised.score(pred, parts, size)
        loss = self._after_loss(output)
        totals.add_loss("loss", loss, loss_weight(output, batch, size), is_sum=bool(supervised.sums))
        totals.update(output)

    def _add_step(
        self, step: StepFunction, model: nn.Module, batch: Any, totals: RunningTotals, size: int | None
    ) -> None:
        with autocast(self._precision, self._device):
            answer = call_as_forward(model, lambda: step(model, batch, size, needs_loss=False))
            is_generator = isinstance(answer, Generator)
            if is_generator:
                output = _add_objectives(step, model, batch, answer, count_samples(batch, size), totals)
            else:
                output = answer
        self._after_pred(getattr(output, "predictions", None))
        weight = loss_weight(output, batch, size, step.count)
        if not isinstance(output, BareLoss):
            totals.add_numbers(output, weight)
        loss = self._after_loss(output)
        if not is_generator and loss is not None:
            totals.add_loss("loss", loss, weight)
        if not isinstance(output, BareLoss):
            totals.update(output)


def _add_objectives(
    step: StepFunction,
    model: nn.Module,
    batch: Any,
    objectives: Generator[Any, Any, Any],
    samples: int,
    totals: RunningTotals,
) -> Output:
    """Adds the losses of a step that yields objectives; none is differentiated."""
    loss = torch.zeros(())
    while True:
        try:
            objective = as_objective(call_as_forward(model, next, objectives), step)
        except StopIteration as end:
            return BareLoss(loss) if end.value is None else step.as_last_output(end.value, batch)
        loss = objective.loss
        totals.add_loss(objective.name, loss, samples)


def evaluate(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    steps: Steps,
    metrics: Sequence[Metric],
    device: torch.device,
    sizes: Iterator[int] | None = None,
    precision: str = "fp32",
    world: World = _ONE_PROCESS,
) -> dict[str, Any]:
    """The loss and the metrics of a model on some batches, by name; of all ranks' batches, on every rank.

    `sizes` are the numbers of samples in the batches. A matrix is one value, as nested lists.
    """
    totals = RunningTotals(metrics, device)
    evaluator = Evaluator(steps, device, precision)
    with evaluating(model, loss=steps.split.loss) as evaluated, torch.no_grad():
        for number, batch in enumerate(batches, start=1):
            is_padding = isinstance(batch, PaddingBatch)
            value = move_batch(batch.batch if is_padding else batch, device)
            size = None if sizes is None else next(sizes, None)
            try:
                evaluator.add(evaluated, value, totals.empty_copy() if is_padding else totals, size)
            except Exception as error:
                add_batch_note(error, f"batch {number}", value)
                raise
    numbers, matrices = split_matrices(totals.merge_ranks(world).values("x"))
    values = numbers | {name: matrix["values"] for name, matrix in matrices.items()}
    return {name.removeprefix("x/"): value for name, value in values.items()}


# --- validation inside a fit


def validate(fit: Fit, executor: Executor) -> None:
    """Evaluates the weights on every validation set; leaves no trace in the training or its random numbers."""
    if not fit.valid or fit.signals.interrupted:
        return
    ctx, state, fire = fit.ctx, fit.state, fit.hooks.fire
    fit.ranks.broadcast_buffers([state.model, state.loss])
    batch_number = ctx.batch_number
    with (
        state.evaluating() as model,
        _preserve_generators(fit.valid.values()),
        executor.share_graph_pool() as use_pool,
        _preserve_batch(ctx),  # releases the outputs of validation before the pool is checked
    ):
        is_training = model.training  # a model may override eval()
        for name, loader in fit.valid.items():
            ctx.phase, ctx.set_name, ctx.batches = "valid", name, length_of(loader)
            fire("on_valid_begin", ctx)
            values = _validate_on(fit, model, loader, name, use_pool, is_training=is_training)
            if not fit.signals.interrupted:
                ctx.metrics |= split_matrices(values)[0]
                # The position is that of the training; batches of the validation set do not matter afterwards.
                event = fit.recorder.event("valid", values, name=name)
                fit.recorder.record.append(replace(event, batch=batch_number))
            fire("on_valid_end", ctx)
    if not _monitors_training(fit):
        _keep_best_weights(fit)
    if not fit.signals.interrupted:
        if not _monitors_training(fit):
            _check_monitor(fit, "validation", "on_valid_end")
        state.progress.validated_update = ctx.update
        fire("on_validation", ctx)
        fit.synchronize_ranks(wait=True)


@contextmanager
def _preserve_batch(ctx: Context) -> Iterator[None]:
    """Restores what `ctx` says about the training batch."""
    names = ("batch_number", "batches", "batch", "output", "pred", "loss", "is_padding")
    before = {name: getattr(ctx, name) for name in names}
    try:
        yield
    finally:
        ctx.phase = ctx.set_name = "train"
        for name, value in before.items():
            setattr(ctx, name, value)


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
    fit: Fit,
    model: nn.Module,
    loader: Loader,
    name: str,
    use_pool: Callable[[], AbstractContextManager[None]],
    *,
    is_training: bool,
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
        fit.step.steps, fit.device, fit.settings.precision, after_pred=after_pred, after_loss=after_loss
    )
    # Always epoch 0: what a transform draws is the same in every validation.
    batches = stop_streams_together(
        fit.ranks.world, loader, fit.signals.interruptible_batches(loader, loader.at(epoch=0))
    )
    sizes = loader.at(epoch=0).sizes()
    with preserve_buffers(model, fit.state.loss):  # every set is evaluated with those of the training
        for number, batch in enumerate(batches, start=1):
            ctx.is_padding = isinstance(batch, PaddingBatch)
            value, counted = (batch.batch, totals.empty_copy()) if ctx.is_padding else (batch, totals)
            ctx.batch_number, ctx.batch = number, move_batch(value, fit.device)
            fire("on_valid_batch_begin", ctx)
            size = None if sizes is None else next(sizes, None)

            def add(part: Batch, number: int = number, counted: RunningTotals = counted) -> None:
                ctx.batch = part.value
                place = f"epoch {ctx.epoch}, batch {number} of {name!r}"
                with torch.no_grad(), use_pool(), name_batch(place, part.value):
                    evaluator.add(model, part.value, counted, part.size)

            whole = Batch(ctx.batch, size=size, is_padding=ctx.is_padding)
            evaluate_micro_batches(fit, whole, counted, add)
            fire("on_valid_batch_end", ctx)
            if model.training is not is_training:
                raise InvalidArgument(_SWITCHED)
            counted.samples += count_samples(value, size)
            fit.between_batches(totals)
            if fit.signals.interrupted:
                return {}  # values of a part of the set would be misleading
    return totals.merge_ranks(fit.ranks.data_world).values(name)


def keep_best_of_training(fit: Fit) -> None:
    """Keeps the weights at the end of an epoch if the fit monitors a metric of the training, and it is the best."""
    if not _monitors_training(fit):
        return
    state = fit.state
    if not fit.signals.interrupted:
        _check_monitor(fit, "epoch", "on_train_end")
    fit.ranks.broadcast_buffers([state.model, state.loss])
    _keep_best_weights(fit)


def _monitors_training(fit: Fit) -> bool:
    return fit.settings.monitor is not None and fit.settings.monitor.startswith("train/")


def _keep_best_weights(fit: Fit) -> None:
    """Keeps the weights if the monitored metric was just measured and is the best so far, which NaN never is."""
    ctx, settings, known = fit.ctx, fit.settings, fit.ctx.best
    value = None if settings.monitor is None else ctx.metrics.get(settings.monitor)
    if settings.monitor is None or value is None or math.isnan(value):
        return
    if known is None or (value < known.value if settings.mode == "min" else value > known.value):
        ctx.best = Best(ctx.epoch, ctx.update, value, settings.monitor)
        if settings.keep == "best":
            fit.state.best_weights = fit.state.copy_eval_weights()


def _check_monitor(fit: Fit, phase: str, hook: str) -> None:
    """Raises if a phase that has just ended did not measure the metric that decides which weights are best."""
    ctx, monitor = fit.ctx, fit.settings.monitor
    if monitor is None or monitor in ctx.metrics or monitor in ctx.record.columns:
        return
    measured = [name for name in ctx.metrics if name.startswith("train/") == (phase == "epoch")]
    if monitor == _default_monitor(fit):
        if fit.settings.keep == "last":
            return
        losses = TotalsReading(fit.state.totals).losses()
        if not any(name.partition("/")[2] in losses for name in measured):
            raise _no_loss(measured)
        text = (
            f"validation measures no {monitor!r}, so the last weights are kept; to keep the best ones, choose a metric"
        )
        text += f" with fit(monitor=..., mode=...): {', '.join(measured)}"
        if not any(event.text == text for event in ctx.record.events_of("warning")):
            ctx.warn(text)
        return
    raise NoSuchMetric(
        f"fit(monitor={monitor!r}): the first {phase} did not measure it{did_you_mean(monitor, measured)} (it "
        f"measured: {', '.join(measured)}). A callback that logs it has to do so in {hook} or before"
    )


def _default_monitor(fit: Fit) -> str:
    return f"{next(iter(fit.valid), '')}/loss"


def _no_loss(measured: Sequence[str]) -> InvalidArgument:
    if not measured:
        return InvalidArgument(
            "validation gives no loss, and there are no metrics: give Learner(metrics=[...]); or Learner(loss=...), if "
            "the model computes no loss in training either"
        )
    return InvalidArgument(
        "validation gives no loss to choose the best weights by: name a metric with fit(monitor=...), or keep the last "
        f'weights with fit(keep="last"). It measures {", ".join(measured)}'
    )


# --- before the first update

# Hooks that may change what is made of a batch.
_BATCH_HOOKS = (
    *("on_valid_begin", "on_valid_batch_begin"),
    *("on_valid_batch_after_pred", "on_valid_batch_after_loss"),
)


def check_valid_sets(fit: Fit) -> None:
    """Evaluates one batch of every validation set, so that its error is raised now and not after an epoch.

    Leaves no trace in the training. Left out are sets that can't be read twice, and models with steps or callbacks that
    see every batch: they may count how often they are called, or change the batch.
    """
    state, steps = fit.state, fit.step.steps
    if not isinstance(steps.evaluate, OwnForward | None) or not _is_plain(fit):
        return
    if steps.split.loss is not None:
        steps = steps.with_loss(steps.split.loss)  # a copy: the fit's own learns from its first batch
        steps.split.count = None
    if steps.evaluate is not None:
        steps = replace(steps, train=OwnForward(state.model, warn=lambda text: None))  # for the same reason
    loaders = {name: loader for name, loader in fit.valid.items() if _can_be_repeated(loader)}
    with (
        evaluating(state.model, loss=state.loss) as model,
        _preserve_generators(loaders.values()),
        torch.no_grad(),
    ):
        evaluator = Evaluator(steps, fit.device, fit.settings.precision)
        for name, loader in loaders.items():
            totals = RunningTotals(fit.valid_metrics, fit.device, describe_position=lambda n=name: f", {n}, batch 1")
            batch = next(iter(fit.signals.interruptible_batches(loader, loader.at(epoch=0))), None)
            if batch is None or isinstance(batch, PaddingBatch):
                continue
            sizes = loader.at(epoch=0).sizes()
            whole = Batch(move_batch(batch, fit.device), size=None if sizes is None else next(sizes, None))

            def add(part: Batch, name: str = name, totals: RunningTotals = totals) -> None:
                with name_batch(f"batch 1 of {name!r}, before the first update", part.value):
                    evaluator.add(model, part.value, totals, part.size)

            try:
                if fit.settings.micro_batch == "auto":
                    add(whole)
                else:
                    evaluate_micro_batches(fit, whole, totals, add)
            except RuntimeError as error:
                if fit.settings.micro_batch != "auto" or not is_out_of_memory(error):
                    raise
                continue  # the validation splits it
            is_monitored = fit.settings.keep == "best" and fit.settings.monitor == f"{name}/loss"
            if is_monitored and not TotalsReading(totals).losses():
                raise _no_loss(list(split_matrices(totals.values(name))[0]))


def _is_plain(fit: Fit) -> bool:
    """Whether nothing but the model and the loss decides what is made of a batch."""
    changes_model = any(
        "on_fit_begin" in vars(callback) or not type(callback).__module__.startswith("stoker.")
        for callback in fit.hooks.listeners("on_fit_begin")
    )
    is_changed = changes_model or any(map(fit.hooks.has, _BATCH_HOOKS))
    is_compiled = has_compiled_modules(fit.state.model)
    return not (is_compiled or is_changed or fit.ranks.model_is_distributed or fit.parallel.mode == "fsdp")


def _can_be_repeated(loader: Loader) -> bool:
    """Whether reading a batch changes nothing that a later reading depends on."""
    source = loader.source
    dataset = source.dataset if isinstance(source, DataLoader) else source
    if loader.resume_warning is not None or isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        return False
    samplers: list[Any] = [source.sampler, source.batch_sampler] if isinstance(source, DataLoader) else []
    return all(type(sampler).__module__.startswith("torch.") for sampler in samplers if sampler is not None)


# --- prediction


def predict(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    sizes: Iterable[int] | None,
    steps: Steps,
    device: torch.device,
    precision: str = "fp32",
    world: World = _ONE_PROCESS,
) -> Any:
    """The model's predictions for all samples, joined along the first dimension, on the CPU; on every rank.

    They come from the `predict_step`, if there is one. `sizes` are the numbers of samples in the batches.
    """
    predictions: list[tuple[int, Any] | None] = []  # None for a padding batch
    prediction = None
    known_sizes = iter(()) if sizes is None else iter(sizes)
    with evaluating(model) as evaluated, torch.no_grad(), autocast(precision, device):
        for number, batch in enumerate(batches, start=1):
            is_padding = isinstance(batch, PaddingBatch)
            value = move_batch(batch.batch if is_padding else batch, device)
            size = next(known_sizes, None)
            try:
                prediction = call_as_forward(evaluated, steps.predict_batch, evaluated, value, size)
            except Exception as error:
                add_batch_note(error, f"batch {number}", value)
                raise
            predictions.append(
                None if is_padding else (count_samples(value) if size is None else size, to_plain(prediction))
            )
    if world.size > 1:  # batch by batch, and within each in the order of the ranks
        predictions = [each for row in zip(*world.all_gather(predictions), strict=True) for each in row]
    found = [each for each in predictions if each is not None]
    if not found:
        raise BadData("there is nothing to predict: the data gave no batches")
    return join_predictions([plain for _, plain in found], [size for size, _ in found], prediction)
