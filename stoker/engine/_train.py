"""The training loop: epochs of training and validation."""

import math
import operator
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from stoker._select import named_parameters
from stoker.checkpoint import random_state, set_random_state
from stoker.data import EpochBatches, PaddingBatch, RowSelection, RowSelections, move_batch, prefetch
from stoker.engine._batch import Batch
from stoker.engine._deterministic import warn_if_not_deterministic
from stoker.engine._evaluate import keep_best_of_training, validate
from stoker.engine._finite import find_nonfinite
from stoker.engine._fit import Fit
from stoker.engine._micro_batches import run_micro_batches
from stoker.engine._replicas import check_replicas, check_trained
from stoker.engine._step import HOOKS_BETWEEN_BATCHES, HOOKS_INSIDE_BATCHES, StepResult
from stoker.engine._streams import stop_streams_together
from stoker.engine._totals import TotalsReading
from stoker.engine._undo import free_cached_memory, is_out_of_memory
from stoker.engine.executors import Executor, SpanResult
from stoker.errors import BadData, NotFinite
from stoker.metrics import GradientNorm
from stoker.record import split_matrices

_NO_CONTEXT = nullcontext()


def train(fit: Fit, executor: Executor, *, selects_rows: bool = False) -> None:
    """Runs the training loop until a limit, a callback or a signal stops it; `ctx.stopping` says which.

    A resumed fit may start inside an epoch. `selects_rows`: batches are `RowSelection`s, and the step gathers the rows.
    """
    ctx, progress, checkpointer, fire = fit.ctx, fit.state.progress, fit.checkpointer, fit.hooks.fire
    fit.synchronize_ranks(wait=True)
    _stop_at_limits(fit)
    while ctx.stopping is None or progress.stage != "closed":  # an open epoch is finished
        if progress.stage == "closed":
            _begin_epoch(fit, executor)
        if progress.stage == "train":
            check_trained(fit.ranks, fit.state.trained, ctx.epoch)
            train_epoch(fit, executor, selects_rows=selects_rows)
        if fit.settings.validate_every is None or _validation_is_due(fit):
            validate(fit, executor)
        elif (ctx.stopping is not None or _is_last_epoch(fit)) and progress.validated_update != ctx.update:
            checkpointer.save_resumable_position()  # this validation belongs to the end of the fit
            validate(fit, executor)
        if fit.signals.interrupted:
            checkpointer.save_resumable_position(validating=True)
        _end_epoch(fit)
        fit.synchronize_ranks(wait=True)
        check_replicas(fit.ranks, fit.state.trained, ctx.epoch)
        _stop_at_limits(fit)
        checkpointer.save_if_due(epoch_ended=True)
    _check_weights_are_finite(fit)
    checkpointer.end()
    if fit.signals.interrupted:
        fire("on_interrupt", ctx)
    fire("on_fit_end", ctx)
    fit.synchronize_ranks(wait=True)  # the last warnings of the other ranks


def train_epoch(fit: Fit, executor: Executor, *, selects_rows: bool = False) -> None:
    """One pass over the training data."""
    ctx = fit.ctx
    watches_batches = any(map(fit.hooks.has, HOOKS_BETWEEN_BATCHES))
    is_watched = watches_batches or any(map(fit.hooks.has, HOOKS_INSIDE_BATCHES))
    ctx.phase = ctx.set_name = "train"
    _validate_if_due(fit, executor)  # a resumed fit may have been stopped before or during it
    values = _values_on_device(fit, selects_rows=selects_rows) if ctx.stopping is None else iter(())
    batches, batch = _batches(fit, values), None
    while ctx.stopping is None:  # in a resumed fit it may be set already: the fit had reached its limit
        done = None  # the last batch that was run
        # A span takes its rows from `values`, and `batches` continues after it.
        if isinstance(values, RowSelections) and executor.longest_span > 1 and not watches_batches:
            done = _run_span(fit, executor, values)
        if done is None:
            done = next(batches, None)
            if done is None:
                break
            _run_batch(fit, executor, done, is_watched=is_watched)
            if watches_batches:
                executor.invalidate()  # a callback may have changed the model
        batch = done
        _validate_if_due(fit, executor)
        fit.between_batches(fit.state.totals)
        fit.checkpointer.save_if_due()
    _end_training(fit, executor, batch)


def _end_training(fit: Fit, executor: Executor, last: Batch | None) -> None:
    """After the last batch of an epoch, or the one at which the fit stops: applies open windows, records the totals."""
    ctx, state, checkpointer = fit.ctx, fit.state, fit.checkpointer
    if ctx.stopping is not None and ctx.batch_number != ctx.batches:  # an uninterrupted fit does not end the epoch here
        executor.synchronize()
        _check_weights_are_finite(fit)
        checkpointer.save_resumable_position()
    state.progress.needs_validation = False
    executor.synchronize()
    if last is None:  # a resumed fit may have trained on the last batch before it was stopped
        last = Batch(None, epoch=ctx.epoch, number=ctx.batch_number)
    if fit.step.flush_windows(last, ctx.lr):  # windows that a stream's end or a stop left open
        _record_update(fit)
        state.progress.needs_validation = True
    ctx.batch = ctx.pred = ctx.output = ctx.loss = None
    totals = state.totals.merge_ranks(fit.ranks.data_world)
    reading = TotalsReading(totals)  # one copy of all losses from the device
    _check_that_some_updates_were_applied(fit, reading)
    results = totals.values("train", reading)
    ctx.metrics |= split_matrices(results)[0]
    fit.recorder.write_training(state.totals, results, reading.losses())
    fit.hooks.fire("on_train_end", ctx)
    keep_best_of_training(fit)
    state.progress.stage = "validate"
    checkpointer.take_resume_point()


def _run_batch(fit: Fit, executor: Executor, batch: Batch, *, is_watched: bool) -> None:
    """One batch, with the hooks before and after it. `is_watched`: a callback has a hook in or between batches."""
    ctx, fire = fit.ctx, fit.hooks.fire
    ctx.batch_number, ctx.lr = batch.number, fit.learning_rates(ctx.update, ctx.lr_scale)
    if is_watched:
        ctx.batch, ctx.is_padding, ctx.loss_mix = batch.value, batch.is_padding, None
        ctx.accumulating = not batch.closes_window
        fire("on_train_batch_begin", ctx)
        batch.value, batch.mix = ctx.batch, ctx.loss_mix
        ctx.pred = ctx.output = ctx.loss = None  # frees the outputs of the batch before
    fit.state.note_unfrozen()
    with warn_if_not_deterministic(fit) if batch.epoch == batch.number == 1 else _NO_CONTEXT:
        for part, result in run_micro_batches(fit, executor, batch):
            if is_watched:
                _publish(fit, result)
            _record_step(fit, part, result)
    if is_watched:
        fire("on_train_batch_end", ctx)


def _run_span(fit: Fit, executor: Executor, selections: RowSelections) -> Batch | None:
    """Runs a span: the next batches, up to one after which something is due on the host. Returns the last one.

    None if the next batch has to run alone: inside of an accumulation window, or if the span would be one batch.
    """
    ctx, state, accumulate = fit.ctx, fit.state, fit.settings.accumulate
    before = ctx.batch_number
    if before % accumulate or before == ctx.batches:  # inside of an accumulation window, or at the end
        return None
    updates = int(min(executor.longest_span, _count_updates_until_due(fit)))
    if updates * accumulate < 2:
        return None
    selection = selections.peek(updates * accumulate)
    updates = len(selection) // accumulate
    if updates * accumulate < 2:
        return None
    rows = selection.rows[: updates * accumulate]
    rates = [fit.learning_rates(ctx.update + index, ctx.lr_scale) for index in range(updates)]
    first = Batch(selection.with_rows(rows[0]), epoch=ctx.epoch, number=before + 1, closes_window=accumulate == 1)
    ctx.batch_number = before + len(rows)  # where a signal that comes meanwhile stops the fit
    done = SpanResult(0, 0)
    try:
        done = executor.run_span(first, rows, rates)
    except NotFinite as error:
        if error.position is not None:  # of a batch in this span, or in one that was still in flight
            ctx.update += (error.position[1] - 1 - before) // accumulate
        raise
    finally:
        ctx.batch_number = before + done.batches
    if not done.batches:
        return None
    selections.skip(done.batches)
    ctx.batch, ctx.lr, ctx.accumulating = None, rates[max(done.updates - 1, 0)], False
    ctx.update += done.updates
    state.totals.samples += rows[: done.batches].numel()
    state.progress.needs_validation = done.updates * accumulate == done.batches
    _stop_at_limits(fit)
    return first.later(rows[done.batches - 1], done.batches - 1)


def _count_updates_until_due(fit: Fit) -> float:
    """After how many more updates a limit, a validation, a checkpoint or a point of a curve is due."""
    update, limit, every = fit.ctx.update, fit.settings.updates, fit.settings.validate_every
    return min(
        math.inf if limit is None else limit - update,
        math.inf if every is None else every - update % every,
        fit.checkpointer.count_updates_until_due(update),
        fit.recorder.count_updates_until_point(update),
    )


def _begin_epoch(fit: Fit, executor: Executor) -> None:
    ctx, fire = fit.ctx, fit.hooks.fire
    fit.state.begin_epoch()
    fire("on_epoch_begin", ctx)
    before = fit.state.totals.tensors()
    fit.state.reset_totals()
    has_new_tensors = list(map(id, before)) != list(map(id, fit.state.totals.tensors()))
    ctx.phase = ctx.set_name = "train"
    fit.step.host_guard.remember_buffers()
    fire("on_train_begin", ctx)
    if len(fit.hooks) or fit.valid or has_new_tensors:
        executor.invalidate()  # a callback or a validation may have changed the model
    fit.state.progress.stage = "train"


@dataclass(slots=True, eq=False, repr=False)
class EpochReadings:
    """What meters are read from at the end of an epoch."""

    lr: Any
    samples: int
    seconds: float
    grad_norm: Tensor | None = None  # meters of gradients see every update instead


def _end_epoch(fit: Fit) -> None:
    ctx, state = fit.ctx, fit.state
    seconds = time.monotonic() - state.progress.epoch_start_time
    lr = fit.learning_rates(ctx.update, ctx.lr_scale) if ctx.lr is None else ctx.lr  # None before the first batch
    readings = EpochReadings(lr, fit.ranks.data_world.combine(state.totals.samples, operator.add), seconds)
    for meter in fit.meters:
        if isinstance(meter, GradientNorm):
            ctx.metrics |= meter.compute(state.gradient_norms[meter])
        else:
            ctx.metrics |= meter.read(readings)
    fit.recorder.write("epoch", dict(ctx.metrics), seconds=seconds)
    fit.hooks.fire("on_epoch_end", ctx)
    state.progress.stage = "closed"


# --- batches


def _batches(fit: Fit, values: Iterator[Any]) -> Iterator[Batch]:
    """Yields the batches from the current position to the end of the epoch."""
    ctx, accumulate = fit.ctx, fit.settings.accumulate
    # Rows of columns are samples.
    has_sizes = not fit.train.has_row_selections
    sizes = fit.train.at(epoch=ctx.epoch - 1, batch=ctx.batch_number).sizes() if has_sizes else None
    interruptible = fit.signals.interruptible_batches(fit.train, values)
    for value in stop_streams_together(fit.ranks.world, fit.train, interruptible):
        number = ctx.batch_number + 1  # spans may have come since the last one
        is_padding = isinstance(value, PaddingBatch) or (isinstance(value, RowSelection) and value.is_padding)
        yield Batch(
            value.batch if isinstance(value, PaddingBatch) else value,
            epoch=ctx.epoch,
            number=number,
            closes_window=number % accumulate == 0 or number == ctx.batches,
            size=None if sizes is None else next(sizes, None),
            is_padding=is_padding,
        )
    ctx.is_padding = False
    if ctx.batch_number == 0 and not fit.signals.interrupted:
        raise BadData(f"the training data gave no batch in epoch {ctx.epoch}: check what its __iter__ returns")


def _values_on_device(fit: Fit, *, selects_rows: bool) -> Iterator[Any]:
    """Batches on the device; or which rows they have, if the training step gathers them itself."""
    loader, batches = fit.train, _from_current_position(fit)
    if selects_rows:
        return batches.row_selections()
    values = _copy_ahead(fit, batches)
    if fit.settings.micro_batch == "auto" and fit.device.type != "cpu" and loader.resume_warning is None:
        values = _retry_if_out_of_memory(fit, values)
    return values if loader.batch_transform is None else map(loader.apply_batch_transform, values)


def _copy_ahead(fit: Fit, batches: Any) -> Iterator[Any]:
    """The batches on the device; copied by a thread if they may be."""
    values, device = iter(batches.raw() if isinstance(batches, EpochBatches) else batches), fit.device
    if device.type == "cpu":
        return values
    if fit.train.needs_main_thread:
        return (move_batch(value, device) for value in values)
    return prefetch(values, device)


def _retry_if_out_of_memory(fit: Fit, values: Iterator[Any]) -> Iterator[Any]:
    """The batches. If copying one to the device runs out of memory, it is fetched once more when memory is free.

    Until then the steps before it may need all memory. What was fetched ahead is fetched again with it.
    """
    end, is_repeated = object(), False
    while True:
        try:
            value = next(values, end)
        except RuntimeError as error:
            if is_repeated or not is_out_of_memory(error):
                raise
        else:
            if value is end:
                return
            is_repeated = False
            yield value
            del value  # the step may need its memory
            continue
        free_cached_memory(fit.device)  # here the exception is gone, and with it the tensors of its frames
        values, is_repeated = _copy_ahead(fit, _from_current_position(fit)), True


def _from_current_position(fit: Fit) -> Any:
    """The remaining batches of the epoch.

    A torch `DataLoader` can't seek. It is read again from the start of the epoch, or continued from a state that it
    saved itself, with the generator states of the start of the epoch; the current states are restored afterwards.
    """
    loader, progress, epoch, done = fit.train, fit.state.progress, fit.ctx.epoch - 1, fit.ctx.batch_number
    source = fit.state.saved_source
    source_state = None if source is None else source["state"]
    if not loader.needs_rng_state:
        return loader.at(epoch=epoch, batch=done, state=source_state)
    if progress.loader_rng.get("epoch") != epoch:
        if "epoch" not in progress.loader_rng and progress.loader_rng:
            loader.load_generator_states(progress.loader_rng["generators"])  # resumed between two epochs
        progress.loader_rng = {"epoch": epoch, "random": random_state(), "generators": loader.generator_states()}
        return loader.at(epoch=epoch)
    now = random_state()
    set_random_state(progress.loader_rng["random"])
    loader.load_generator_states(progress.loader_rng["generators"])
    remaining = iter(loader.at(epoch=epoch, batch=done, state=source_state).raw())
    if source is not None:
        loader.load_generator_states(source["generators"])
    set_random_state(now)
    return remaining


# --- counters and limits


def _publish(fit: Fit, result: StepResult) -> None:
    """Makes the outputs of a step visible to callbacks."""
    ctx = fit.ctx
    if result.batch is not None:
        ctx.batch = result.batch
    if result.loss is not None:  # a replayed step returns no outputs if nobody looks at them
        ctx.pred, ctx.output, ctx.loss = result.pred, result.output, result.loss


def _record_step(fit: Fit, batch: Batch, result: StepResult) -> None:
    """Updates the counters after a step, and the metrics that are not static."""
    state, totals = fit.state, fit.state.totals
    if not batch.is_padding:
        totals.samples += batch.samples
    if totals.has_dynamic_metrics and not result.skipped:
        totals.update_dynamic(result.output)
    state.progress.needs_validation = result.updated
    if result.updated:
        _record_update(fit)


def _record_update(fit: Fit) -> None:
    fit.ctx.update += 1
    fit.hooks.fire("on_update", fit.ctx)
    if fit.settings.updates is not None:
        _stop_at_limits(fit)


def _is_last_epoch(fit: Fit) -> bool:
    return fit.settings.epochs is not None and fit.ctx.epoch >= fit.settings.epochs


def _stop_at_limits(fit: Fit) -> None:
    ctx, updates = fit.ctx, fit.settings.updates
    if fit.state.progress.stage == "closed" and _is_last_epoch(fit):
        fit.stop(f"Completed {ctx.epoch} epochs")
    if updates is not None and ctx.update >= updates:
        fit.stop(f"Completed {ctx.update} updates")


def _check_that_some_updates_were_applied(fit: Fit, reading: TotalsReading) -> None:
    """Raises if every update of the epoch was skipped, or no batch has counted: the fit would never get anywhere."""
    ctx, progress, scale = fit.ctx, fit.state.progress, fit.state.loss_scale
    updates, skipped = progress.epoch_start
    is_settled = scale is None or scale.factor == 1.0
    if ctx.update == updates and progress.skipped > skipped and is_settled and ctx.stopping is None:
        raise NotFinite(
            f"every update of epoch {ctx.epoch} was skipped ({progress.skipped - skipped} of them): no loss or "
            "gradient is finite any more. Run it with on_nan='stop' to see where that begins",
            on_every_rank=True,
        )
    has_losses = any(weight for _, weight in reading.sums().values())
    if not has_losses and ctx.batch_number and progress.skipped == skipped and ctx.stopping is None:
        raise BadData(
            f"epoch {ctx.epoch} has trained nothing: every batch has the weight 0 (sample weights of 0, or all targets "
            "masked or ignored), or train_step yields no objective"
        )


def _check_weights_are_finite(fit: Fit) -> None:
    """Raises if the last update has made a weight infinite or NaN: no batch comes after it that would notice."""
    ctx = fit.ctx
    if not ctx.update or fit.signals.interrupted:  # a resumed run notices it in its first batch
        return
    parameters = named_parameters(fit.state.trained)
    name = find_nonfinite({name: each for name, each in parameters.items() if each.requires_grad})
    if fit.ranks.world.any(name is not None):
        fit.checkpointer.discard_resume_points()
        where = f"the parameter {name!r}" if name is not None else "a parameter of another rank"
        raise NotFinite(
            f"{where} is not finite after the last update ({ctx.update}): the loss and the gradients were finite, and "
            "the update itself overflowed. Lower the learning rate, or clip (clip_norm=1.0)",
            on_every_rank=True,
        )


# --- validation inside an epoch, and stopping there


def _validation_is_due(fit: Fit) -> bool:
    """Whether the update that was just applied is one to validate after."""
    every = fit.settings.validate_every
    return bool(every and fit.state.progress.needs_validation and fit.ctx.update % every == 0)


def _validate_if_due(fit: Fit, executor: Executor) -> None:
    if not _validation_is_due(fit):
        return
    executor.synchronize()
    fit.checkpointer.take_resume_point()
    validate(fit, executor)
    executor.invalidate()
    if fit.signals.interrupted:
        fit.checkpointer.save_resumable_position(validating=True)  # a resumed fit repeats it
    fit.state.progress.needs_validation = False
