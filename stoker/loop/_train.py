"""The loop: epochs of training and validation, every station called once, in order."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from stoker.data import PaddingBatch, RowSelection
from stoker.errors import BadData, NotFinite
from stoker.loop._agree import agree, stop
from stoker.loop._fit import Fit
from stoker.loop._in_step import in_step
from stoker.loop._keep import begin, between, cut_short, end, mark
from stoker.loop._merge import merged
from stoker.loop._program import tell_plan
from stoker.loop._progress import event, tell
from stoker.loop._replicas import check_replicas
from stoker.loop._signals import awaited
from stoker.loop._stations import Mixed
from stoker.loop._tally import samples_in
from stoker.loop._update import flush
from stoker.loop._validate import validate
from stoker.loop._walk import walked
from stoker.metrics import GradientNorm


@dataclass(slots=True)
class Reading:
    """What meters are read from, at the end of an epoch."""

    lr: Any
    samples: int
    seconds: float
    grad_norm: Tensor | None = None  # meters of the gradients see every update instead


def train(fit: Fit) -> None:
    """Trains until something says stop; `ctx.stopping` says what it was. A fit that goes on may stand in an epoch."""
    ctx, fire = fit.ctx, fit.hooks.fire
    begin(fit)
    tell_plan(fit)
    agree(fit, now=True)
    _stop_at_limits(fit)
    while ctx.stopping is None or fit.stage != "closed":
        if fit.stage == "closed":
            _open_epoch(fit)
        if fit.stage == "train":
            train_epoch(fit)
        over = ctx.stopping is not None or _is_last(fit)
        if fit.settings.validate_every is None or _is_owed(fit):
            validate(fit)
        elif over and fit.validated != ctx.update:
            cut_short(fit)  # a longer fit would not validate here
            validate(fit)
        if fit.interrupted:
            cut_short(fit, validating=True)
        _close_epoch(fit)
        fire("on_epoch_end", ctx)
        fit.stage = "closed"
        agree(fit, now=True)
        check_replicas(fit)
        _stop_at_limits(fit)
        between(fit, epoch_ended=True)
    end(fit)
    if fit.interrupted:
        fire("on_interrupt", ctx)
    fire("on_fit_end", ctx)
    agree(fit, now=True)  # what the other ranks have said last


def train_epoch(fit: Fit) -> None:
    """One walk over the training data: batch, forward, loss, gradients, update, metrics."""
    ctx, fire, accumulate, program = fit.ctx, fit.hooks.fire, fit.settings.accumulate, fit.program
    look_again(fit)
    ctx.phase = ctx.set_name = "train"
    _validate_in_between(fit)  # which a fit that goes on may have been stopped in
    for number, batch in _batches(fit):
        ctx.batch_number, ctx.batch, ctx.loss_mix = number, batch, None
        ctx.lr = fit.rates(ctx.update, ctx.lr_scale)
        ctx.accumulating = number % accumulate != 0 and number != ctx.batches
        fit.applied = fit.refused = False
        fire("on_train_batch_begin", ctx)
        program.run(ctx.batch if ctx.loss_mix is None else Mixed(ctx.batch, ctx.loss_mix))
        fit.tally.samples += 0 if ctx.is_padding else samples_in(batch)
        _count_update(fit)
        fire("on_train_batch_end", ctx)
        if fit.heard:
            look_again(fit)  # a callback may have changed anything
        _validate_in_between(fit)
        tell(fit, fit.tally)
        between(fit)
        if ctx.stopping is not None:
            break
    if ctx.stopping is not None and (ctx.batch_number != ctx.batches or _is_owed(fit)):
        cut_short(fit)
    fit.applied = False
    program.settle()
    flush(fit)  # of a stream, whose last batch is only known when it is over, and of a window that was stopped in
    if fit.applied and fit.moved and fit.average is not None:
        fit.average.update()
    _count_update(fit)
    _check_progress(fit)
    ctx.batch = ctx.pred = ctx.output = ctx.loss = fit.coming = None  # of a batch, and that is over
    whole = merged(fit.tally, fit.split)
    ctx.metrics |= (values := whole.values("train"))
    fit.record.append(event(fit, "train", values, losses=whole.losses))
    fire("on_train_end", ctx)
    fit.stage = "validate"
    mark(fit)


def look_again(fit: Fit) -> None:
    """What is known of the model is looked up anew: somebody may have changed it."""
    fit.program.touched()
    fit.differentiators.clear()


def _is_last(fit: Fit) -> bool:
    return fit.settings.epochs is not None and fit.ctx.epoch >= fit.settings.epochs


def _stop_at_limits(fit: Fit) -> None:
    ctx, updates = fit.ctx, fit.settings.updates
    if fit.stage == "closed" and _is_last(fit):
        stop(fit, f"Completed {ctx.epoch} epochs")
    if updates is not None and ctx.update >= updates:
        stop(fit, f"Completed {ctx.update} updates")


def _open_epoch(fit: Fit) -> None:
    ctx, fire = fit.ctx, fit.hooks.fire
    ctx.epoch += 1
    ctx.batch_number, ctx.metrics = 0, {}
    fit.began, fit.applied, fit.before = time.monotonic(), False, (ctx.update, fit.skipped)
    fire("on_epoch_begin", ctx)
    fit.tally.clear()
    fit.norms = {meter: meter.init(fit.device) for meter in fit.meters if isinstance(meter, GradientNorm)}
    ctx.phase = ctx.set_name = "train"
    fit.buffers = [buffer.detach().clone() for buffer in fit.model.buffers()]
    fire("on_train_begin", ctx)
    fit.stage = "train"


def _batches(fit: Fit) -> Iterator[tuple[int, Any]]:
    if fit.ctx.stopping is not None:  # the fit goes on where it had reached its limit
        return
    done = number = fit.ctx.batch_number  # 0, unless the fit goes on inside an epoch
    batches = in_step(fit.train, awaited(fit, fit.train, walked(fit)), fit.world)
    for number, batch in enumerate(batches, start=done + 1):
        if number == done + 1 and not _is_last(fit):
            fit.train.prepare(fit.ctx.epoch)  # the next epoch, counted from 0: its first batches are ready in time
        fit.ctx.is_padding = isinstance(batch, PaddingBatch) or (isinstance(batch, RowSelection) and batch.is_padding)
        yield number, batch.batch if isinstance(batch, PaddingBatch) else batch
    fit.ctx.is_padding = False
    if number == 0 and not fit.interrupted:
        raise BadData(f"the training data gave no batch in epoch {fit.ctx.epoch}: look at what its __iter__ gives")


def _count_update(fit: Fit) -> None:
    """Where the batch has changed the weights: the next schedule step, the average, the hook, the limit."""
    if not fit.applied:
        return
    ctx = fit.ctx
    ctx.update += 1
    fit.hooks.fire("on_update", ctx)
    _stop_at_limits(fit)


def _is_owed(fit: Fit) -> bool:
    """Whether the update that was just applied is one to validate after."""
    every = fit.settings.validate_every
    return bool(every and fit.applied and fit.ctx.update % every == 0)


def _validate_in_between(fit: Fit) -> None:
    if _is_owed(fit):
        fit.program.settle()
        mark(fit)
        validate(fit)
        look_again(fit)
        if fit.interrupted:
            cut_short(fit, validating=True)  # it is still owed
        fit.applied = False


def _check_progress(fit: Fit) -> None:
    """An epoch in which every update was skipped is no training, and a limit in updates would never be reached."""
    updates, skipped = fit.before
    settled = fit.scaler is None or fit.scaler.factor == 1.0
    if fit.ctx.update == updates and fit.skipped > skipped and settled and fit.ctx.stopping is None:
        fit.common = True
        raise NotFinite(
            f"every update of epoch {fit.ctx.epoch} was skipped ({fit.skipped - skipped} of them): no loss or gradient "
            "is finite any more. Run it with on_nan='stop' to see where that begins"
        )


def _close_epoch(fit: Fit) -> None:
    ctx, seconds = fit.ctx, time.monotonic() - fit.began
    rate = fit.rates(ctx.update, ctx.lr_scale) if ctx.lr is None else ctx.lr  # None before the first batch of all
    samples = fit.tally.samples if fit.split.size == 1 else sum(fit.split.all_gather(fit.tally.samples))
    reading = Reading(rate, samples, seconds)
    for meter in fit.meters:
        if isinstance(meter, GradientNorm):
            ctx.metrics |= meter.compute(fit.norms[meter])
        else:
            ctx.metrics |= meter.read(reading)
    fit.record.append(event(fit, "epoch", dict(ctx.metrics), seconds=seconds))
