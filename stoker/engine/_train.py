"""The training loop: epochs of training and validation."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from stoker.checkpoint import random_state, set_random_state
from stoker.data import EpochBatches, PaddingBatch, RowSelection, move_batch, prefetch
from stoker.engine._batch import Batch
from stoker.engine._evaluate import validate
from stoker.engine._fit import Fit
from stoker.engine._step import HOOKS_BETWEEN_BATCHES, StepResult, on_every_rank
from stoker.engine._sync import report_progress, stop, synchronize_ranks
from stoker.engine.executors import Executor
from stoker.errors import BadData, NotFinite
from stoker.metrics import GradientNorm


def train(fit: Fit, executor: Executor, *, selects_rows: bool = False) -> None:
    """Runs the training loop until a limit, a callback or a signal stops it; `ctx.stopping` says which.

    A resumed fit may start inside an epoch. `selects_rows`: batches are `RowSelection`s, and the step gathers the rows.
    """
    ctx, progress, fire = fit.ctx, fit.state.progress, fit.hooks.fire
    synchronize_ranks(fit, wait=True)
    _stop_at_limits(fit)
    while ctx.stopping is None or progress.stage != "closed":
        if progress.stage == "closed":
            _begin_epoch(fit)
        if progress.stage == "train":
            train_epoch(fit, executor, selects_rows=selects_rows)
        if fit.settings.validate_every is None or _validation_is_due(fit):
            validate(fit, executor)
        elif (ctx.stopping is not None or _is_last_epoch(fit)) and progress.validated_update != ctx.update:
            _save_resumable_position(fit)  # this validation belongs to the end of the fit
            validate(fit, executor)
        if fit.signals.interrupted:
            _save_resumable_position(fit, validating=True)
        _end_epoch(fit)
        synchronize_ranks(fit, wait=True)
        fit.ranks.check_replicas(fit.state.model, ctx.epoch)
        _stop_at_limits(fit)
        if fit.checkpointer is not None:
            fit.checkpointer.after_batch(epoch_ended=True)
    if fit.checkpointer is not None:
        fit.checkpointer.end()
    if fit.signals.interrupted:
        fire("on_interrupt", ctx)
    fire("on_fit_end", ctx)
    synchronize_ranks(fit, wait=True)  # the last warnings of the other ranks


def train_epoch(fit: Fit, executor: Executor, *, selects_rows: bool = False) -> None:
    """One pass over the training data."""
    ctx, state, fire = fit.ctx, fit.state, fit.hooks.fire
    watches_batches = any(map(fit.hooks.has, HOOKS_BETWEEN_BATCHES))
    executor.invalidate()
    ctx.phase = ctx.set_name = "train"
    _validate_if_due(fit, executor)  # a resumed fit may have been stopped before or in it
    batch = None
    for batch in _batches(fit, selects_rows=selects_rows):
        ctx.batch_number, ctx.batch, ctx.is_padding, ctx.loss_mix = batch.number, batch.value, batch.is_padding, None
        ctx.lr = fit.learning_rates(ctx.update, ctx.lr_scale)
        ctx.accumulating = not batch.closes_window
        fire("on_train_batch_begin", ctx)
        batch.value, batch.mix = ctx.batch, ctx.loss_mix
        ctx.pred = ctx.output = ctx.loss = None  # frees the outputs of the batch before
        _count(fit, batch, executor.run(batch, ctx.lr))
        fire("on_train_batch_end", ctx)
        if watches_batches:
            executor.invalidate()  # a callback may have changed the model
        _validate_if_due(fit, executor)
        report_progress(fit, state.totals)
        if fit.checkpointer is not None:
            fit.checkpointer.after_batch()
        if ctx.stopping is not None:
            break
    if ctx.stopping is not None and (ctx.batch_number != ctx.batches or _validation_is_due(fit)):
        _save_resumable_position(fit)
    state.progress.needs_validation = False
    executor.synchronize()
    if batch is not None and fit.step.flush_windows(
        batch, ctx.lr
    ):  # a window that the end of a stream or a stop left open
        _count_update(fit)
    _check_that_some_updates_were_applied(fit)
    ctx.batch = ctx.pred = ctx.output = ctx.loss = None
    fit.recorder.drop_pending()
    totals = state.totals.merge_ranks(fit.ranks.split)
    values = totals.values("train")
    ctx.metrics |= values
    fit.recorder.write("train", values, losses=totals.losses)
    fire("on_train_end", ctx)
    state.progress.stage = "validate"
    if fit.checkpointer is not None:
        fit.checkpointer.take_resume_point()


def _begin_epoch(fit: Fit) -> None:
    ctx, fire = fit.ctx, fit.hooks.fire
    fit.state.begin_epoch()
    fire("on_epoch_begin", ctx)
    fit.state.reset_totals()
    ctx.phase = ctx.set_name = "train"
    fit.step.remember_buffers()
    fire("on_train_begin", ctx)
    fit.state.progress.stage = "train"


@dataclass(slots=True)
class Reading:
    """What meters are read from at the end of an epoch."""

    lr: Any
    samples: int
    seconds: float
    grad_norm: Tensor | None = None  # meters of gradients see every update instead


def _end_epoch(fit: Fit) -> None:
    ctx, state = fit.ctx, fit.state
    seconds = time.monotonic() - state.progress.epoch_start_time
    lr = fit.learning_rates(ctx.update, ctx.lr_scale) if ctx.lr is None else ctx.lr  # None before the first batch
    reading = Reading(lr, sum(fit.ranks.split.all_gather(state.totals.samples)), seconds)
    for meter in fit.meters:
        if isinstance(meter, GradientNorm):
            ctx.metrics |= meter.compute(state.gradient_norms[meter])
        else:
            ctx.metrics |= meter.read(reading)
    fit.recorder.write("epoch", dict(ctx.metrics), seconds=seconds)
    fit.hooks.fire("on_epoch_end", ctx)
    state.progress.stage = "closed"


# --- batches


def _batches(fit: Fit, *, selects_rows: bool) -> Iterator[Batch]:
    """Yields the batches from the current position to the end of the epoch."""
    ctx, accumulate = fit.ctx, fit.settings.accumulate
    if ctx.stopping is not None:  # a resumed fit had reached its limit
        return
    done = number = ctx.batch_number  # 0, unless the fit resumes inside an epoch
    values = fit.signals.interruptible_batches(fit.train, _values_on_device(fit, selects_rows=selects_rows))
    for number, value in enumerate(fit.ranks.stop_streams_together(fit.train, values), start=done + 1):
        if number == done + 1 and not _is_last_epoch(fit):
            fit.train.prepare(ctx.epoch)  # the next epoch: loaders count from 0, `ctx.epoch` from 1
        is_padding = isinstance(value, PaddingBatch) or (isinstance(value, RowSelection) and value.is_padding)
        yield Batch(
            value.batch if isinstance(value, PaddingBatch) else value,
            epoch=ctx.epoch,
            number=number,
            closes_window=number % accumulate == 0 or number == ctx.batches,
            is_padding=is_padding,
        )
    ctx.is_padding = False
    if number == 0 and not fit.signals.interrupted:
        raise BadData(f"the training data gave no batch in epoch {ctx.epoch}: check what its __iter__ returns")


def _values_on_device(fit: Fit, *, selects_rows: bool) -> Iterator[Any]:
    """Batches on the device; or which rows they have, if the training step gathers them itself."""
    loader, device = fit.train, fit.device
    batches = _from_current_position(fit)
    if selects_rows:
        return batches.row_selections()
    values: Any = batches.raw() if isinstance(batches, EpochBatches) else batches
    if device.type != "cpu":
        if loader.needs_main_thread:
            values = (move_batch(value, device) for value in values)
        else:
            values = prefetch(iter(values), device)
    return iter(values) if loader.batch_transform is None else map(loader.apply_batch_transform, values)


def _from_current_position(fit: Fit) -> Any:
    """The remaining batches of the epoch.

    A torch `DataLoader` can't seek. It is read again from the start of the epoch, with the generator states of then,
    and the current states are restored afterwards.
    """
    loader, progress, epoch, done = fit.train, fit.state.progress, fit.ctx.epoch - 1, fit.ctx.batch_number
    if not loader.needs_rng_state:
        return loader.at(epoch=epoch, batch=done)
    if progress.loader_rng.get("epoch") != epoch:
        if "epoch" not in progress.loader_rng and progress.loader_rng:
            loader.load_generator_states(progress.loader_rng["generators"])  # resumed between two epochs
        progress.loader_rng = {"epoch": epoch, "random": random_state(), "generators": loader.generator_states()}
        return loader.at(epoch=epoch)
    now = random_state()
    set_random_state(progress.loader_rng["random"])
    loader.load_generator_states(progress.loader_rng["generators"])
    remaining = iter(loader.at(epoch=epoch, batch=done).raw())
    set_random_state(now)
    return remaining


# --- counting, limits


def _count(fit: Fit, batch: Batch, result: StepResult) -> None:
    """Updates the counters and what callbacks see after a step."""
    ctx, state = fit.ctx, fit.state
    if result.batch is not None:
        ctx.batch = result.batch
    if result.loss is not None:  # a replayed step returns no outputs if nobody looks at them
        ctx.pred, ctx.output, ctx.loss = result.pred, result.output, result.loss
    if not batch.is_padding:
        state.totals.samples += batch.samples
    if state.totals.grows and not result.skipped:
        state.totals.update_growing(result.output)
    state.progress.needs_validation = result.updated
    if result.updated:
        _count_update(fit)


def _count_update(fit: Fit) -> None:
    fit.ctx.update += 1
    fit.hooks.fire("on_update", fit.ctx)
    _stop_at_limits(fit)


def _is_last_epoch(fit: Fit) -> bool:
    return fit.settings.epochs is not None and fit.ctx.epoch >= fit.settings.epochs


def _stop_at_limits(fit: Fit) -> None:
    ctx, updates = fit.ctx, fit.settings.updates
    if fit.state.progress.stage == "closed" and _is_last_epoch(fit):
        stop(fit, f"Completed {ctx.epoch} epochs")
    if updates is not None and ctx.update >= updates:
        stop(fit, f"Completed {ctx.update} updates")


def _check_that_some_updates_were_applied(fit: Fit) -> None:
    """Raises if every update of the epoch was skipped: a limit in updates would never be reached."""
    ctx, progress, scale = fit.ctx, fit.state.progress, fit.state.loss_scale
    updates, skipped = progress.epoch_start
    is_settled = scale is None or scale.factor == 1.0
    if ctx.update == updates and progress.skipped > skipped and is_settled and ctx.stopping is None:
        raise on_every_rank(
            NotFinite(
                f"every update of epoch {ctx.epoch} was skipped ({progress.skipped - skipped} of them): no loss or "
                "gradient is finite any more. Run it with on_nan='stop' to see where that begins"
            )
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
    if fit.checkpointer is not None:
        fit.checkpointer.take_resume_point()
    validate(fit, executor)
    executor.invalidate()
    if fit.signals.interrupted:
        _save_resumable_position(fit, validating=True)  # a resumed fit repeats it
    fit.state.progress.needs_validation = False


def _save_resumable_position(fit: Fit, *, validating: bool = False) -> None:
    if fit.checkpointer is not None:
        fit.checkpointer.save_resumable_position(validating=validating)


def begin(fit: Fit, resumed: Mapping[str, Any] | None) -> None:
    """Before the first epoch: calls `on_fit_begin`, and then restores the rest of a resumed state."""
    ctx = fit.ctx
    saved = dict(ctx.state), ctx.lr_scale, ctx.lr, dict(ctx.metrics)
    fit.hooks.fire("on_fit_begin", ctx)
    if resumed is not None:
        # The hook starts as in a new fit; the resumed values replace those that it set.
        ctx.state, ctx.lr_scale, ctx.lr, ctx.metrics = {**ctx.state, **saved[0]}, *saved[1:]
        for name in fit.state.finish_loading(resumed):
            ctx.note(f"the callback {name} is not there any more; its saved state is dropped")
        fit.step.remember_buffers()
    if fit.checkpointer is not None:
        fit.checkpointer.begin(is_resumed=resumed is not None)
