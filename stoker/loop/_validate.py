"""Validation between updates: every set judged on a view, and the weights kept where they are the best so far."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import torch

from stoker.data import Loader, PaddingBatch, move_batch
from stoker.loop._agree import agree
from stoker.loop._evaluate import judged, viewed
from stoker.loop._fit import Fit
from stoker.loop._in_step import in_step
from stoker.loop._level import level
from stoker.loop._merge import merged
from stoker.loop._precision import forward_in
from stoker.loop._progress import event, length_of, tell
from stoker.loop._random import put_back
from stoker.loop._signals import awaited
from stoker.loop._tally import Tally, samples_in
from stoker.loop._weights import snapshot
from stoker.steps import Output


def validate(fit: Fit) -> None:
    """Judges the weights on every validation set; leaves no trace in the training, nor in its random numbers."""
    if not fit.valid or fit.interrupted:
        return
    ctx, fire = fit.ctx, fit.hooks.fire
    level(fit)
    kept = ctx.batch_number, ctx.batches, ctx.batch, ctx.output, ctx.pred, ctx.loss, ctx.is_padding
    evaluated = fit.optimizer.evaluation_weights()
    with put_back(), _drawing_again(fit.valid.values()), evaluated, fit.program.between() as lent:
        for name, loader in fit.valid.items():
            ctx.phase, ctx.set_name, ctx.batches = "valid", name, length_of(loader)
            fire("on_valid_begin", ctx)
            # Always the same epoch: what a transform draws is the same in every validation.
            batches = in_step(loader, awaited(fit, loader, loader.at(epoch=0)), fit.world)
            values = judge(fit, batches, name, lent)
            if not fit.interrupted:
                ctx.metrics |= values
                # At the place of the training: the batches of the set itself are of no interest afterwards.
                fit.record.append(replace(event(fit, "valid", values, name=name), batch=kept[0]))
            fire("on_valid_end", ctx)
        _keep_best(fit)
        ctx.phase, ctx.set_name = "train", "train"
        ctx.batch_number, ctx.batches, ctx.batch, ctx.output, ctx.pred, ctx.loss, ctx.is_padding = kept
    if not fit.interrupted:
        fit.validated = ctx.update
        fire("on_validation", ctx)
        agree(fit, now=True)


@contextmanager
def _drawing_again(loaders: Iterable[Loader]) -> Iterator[None]:
    """Generators of DataLoaders' own stand afterwards where they stood: every validation draws the same."""
    before = [(loader, loader.generator_states()) for loader in loaders if loader.needs_rng_state]
    try:
        yield
    finally:
        for loader, state in before:
            loader.load_generator_states(state)


def judge(
    fit: Fit, batches: Iterable[Any], name: str, lent: Callable[[], AbstractContextManager[None]]
) -> dict[str, float]:
    """The numbers of one validation set, with the hooks of every batch; an interrupt ends it after one.

    What a batch takes is in the memory that is `lent`.
    """
    ctx, fire = fit.ctx, fit.hooks.fire
    tally = Tally(fit.valid_metrics, fit.device, fit.where)

    def casting() -> Any:
        return forward_in(fit.settings.precision, fit.device)

    def after_pred(predictions: Any) -> Any:
        ctx.pred = predictions
        fire("on_valid_batch_after_pred", ctx)
        return ctx.pred

    def after_loss(output: Output) -> Any:
        ctx.output, ctx.loss = output, output.loss
        fire("on_valid_batch_after_loss", ctx)
        return ctx.loss

    with viewed(fit.judged) as view:
        for number, batch in enumerate(batches, start=1):
            ctx.is_padding = isinstance(batch, PaddingBatch)
            counting, own = (tally.empty(), batch.batch) if isinstance(batch, PaddingBatch) else (tally, batch)
            ctx.batch_number, ctx.batch = number, move_batch(own, fit.device)
            fire("on_valid_batch_begin", ctx)
            with torch.no_grad(), lent():
                judged(view, fit.supervised, ctx.batch, counting, casting, after_pred=after_pred, after_loss=after_loss)
            fire("on_valid_batch_end", ctx)
            counting.samples += samples_in(own)
            tell(fit, tally)
            if fit.interrupted:
                return {}  # numbers of a part of the set would be no numbers of the set
    return merged(tally, fit.split).values(name)


def _keep_best(fit: Fit) -> None:
    if fit.settings.monitor is None:
        return
    best = fit.record.best(fit.settings.monitor)
    if best is not None and best != fit.ctx.best and best.update == fit.ctx.update:  # the weights are here
        fit.ctx.best = best
        if fit.settings.keep == "best":
            fit.best = snapshot(fit.judged)
