"""The loop: epochs of training and validation, every station called once, in order."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from stoker.data import moved
from stoker.errors import BadData, NotFinite
from stoker.loop._ask import asked
from stoker.loop._fit import Fit
from stoker.loop._progress import event, tell
from stoker.loop._tally import samples_in
from stoker.loop._update import differentiate, flush
from stoker.loop._validate import validate
from stoker.metrics import GradientNorm


@dataclass(slots=True)
class Reading:
    """What meters are read from, at the end of an epoch."""

    lr: Any
    samples: int
    seconds: float
    grad_norm: Tensor | None = None  # meters of the gradients see every update instead


def train(fit: Fit) -> None:
    """Trains until something says stop; `ctx.stopping` says what it was."""
    ctx, fire = fit.ctx, fit.hooks.fire
    fire("on_fit_begin", ctx)
    for callback, state in zip(fit.hooks, fit.states, strict=False):  # where the fit goes on: what they had counted
        callback.load_state_dict(state)
    while ctx.stopping is None:
        started = time.monotonic()
        ctx.epoch += 1
        ctx.metrics = {}
        fire("on_epoch_begin", ctx)
        train_epoch(fit)
        over = ctx.stopping is not None or ctx.epoch == fit.settings.epochs
        if fit.settings.validate_every is None or (over and fit.validated != ctx.update):
            validate(fit)
        _close_epoch(fit, time.monotonic() - started)
        fire("on_epoch_end", ctx)
        if ctx.stopping is None and ctx.epoch == fit.settings.epochs:
            ctx.stop(f"Completed {ctx.epoch} epochs")
    if fit.interrupted:
        fire("on_interrupt", ctx)
    fire("on_fit_end", ctx)


def train_epoch(fit: Fit) -> None:
    """One walk over the training data: batch, forward, loss, gradients, update, metrics."""
    ctx, fire, accumulate = fit.ctx, fit.hooks.fire, fit.settings.accumulate
    fit.tally.clear()
    fit.norms = {meter: meter.init(fit.device) for meter in fit.meters if isinstance(meter, GradientNorm)}
    ctx.phase, ctx.set_name, before = "train", "train", (ctx.update, fit.skipped)
    fit.buffers = [buffer.detach().clone() for buffer in fit.model.buffers()]
    fire("on_train_begin", ctx)
    for number, batch in _batches(fit):
        ctx.batch_number, ctx.batch, ctx.loss_mix = number, batch, None
        ctx.lr = fit.rates(ctx.update, ctx.lr_scale)
        ctx.accumulating = number % accumulate != 0 and number != ctx.batches
        fit.applied = fit.refused = False
        fire("on_train_batch_begin", ctx)
        for each in asked(fit):
            differentiate(fit, each)
        if not ctx.accumulating:
            flush(fit)  # of an objective that this batch did not yield, and earlier ones of the window did
        if ctx.output is not None and not fit.refused:
            fit.tally.add(ctx.output)
        fit.tally.samples += samples_in(batch)
        _count_update(fit)
        fire("on_train_batch_end", ctx)
        _validate_in_between(fit)
        tell(fit, fit.tally)
        if ctx.stopping is not None:
            break
    fit.applied = False
    flush(fit)  # of a stream, whose last batch is only known when it is over, and of a window that was stopped in
    _count_update(fit)
    _check_progress(fit, *before)
    values = fit.tally.values("train")
    ctx.metrics |= values
    fit.record.append(event(fit, "train", values, losses=fit.tally.losses))
    _validate_in_between(fit)
    fire("on_train_end", ctx)


def _batches(fit: Fit) -> Iterator[tuple[int, Any]]:
    number = 0
    for number, batch in enumerate(fit.train.at(epoch=fit.ctx.epoch - 1), start=1):
        yield number, batch if fit.device.type == "cpu" else moved(batch, fit.device)
    if number == 0:
        raise BadData(f"the training data gave no batch in epoch {fit.ctx.epoch}: look at what its __iter__ gives")


def _count_update(fit: Fit) -> None:
    """Where the batch has changed the weights: the next schedule step, the average, the hook, the limit."""
    if not fit.applied:
        return
    ctx = fit.ctx
    ctx.update += 1
    if fit.average is not None:
        fit.average.update()
    fit.hooks.fire("on_update", ctx)
    if ctx.update == fit.settings.updates:
        ctx.stop(f"Completed {ctx.update} updates")


def _validate_in_between(fit: Fit) -> None:
    every = fit.settings.validate_every
    if every and fit.applied and fit.ctx.update % every == 0:
        validate(fit)
        fit.applied = False


def _check_progress(fit: Fit, updates: int, skipped: int) -> None:
    """An epoch in which every update was skipped is no training, and a limit in updates would never be reached."""
    settled = fit.scaler is None or fit.scaler.factor == 1.0
    if fit.ctx.update == updates and fit.skipped > skipped and settled and fit.ctx.stopping is None:
        raise NotFinite(
            f"every update of epoch {fit.ctx.epoch} was skipped ({fit.skipped - skipped} of them): no loss or gradient "
            "is finite any more. Run it with on_nan='stop' to see where that begins"
        )


def _close_epoch(fit: Fit, seconds: float) -> None:
    ctx = fit.ctx
    reading = Reading(ctx.lr, fit.tally.samples, seconds)
    for meter in fit.meters:
        if isinstance(meter, GradientNorm):
            ctx.metrics |= meter.compute(fit.norms[meter])
        else:
            ctx.metrics |= meter.read(reading)
    fit.record.append(event(fit, "epoch", dict(ctx.metrics), seconds=seconds))
