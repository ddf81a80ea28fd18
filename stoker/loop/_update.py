"""Gradients of a batch to an update: unscaled, checked, accumulated, clipped, applied. Nothing else writes weights."""

from torch import Tensor

from stoker.errors import NotFinite, WrongType
from stoker.gradients import Accumulator, Gradients, backward
from stoker.loop._ask import Asked
from stoker.loop._fit import Fit
from stoker.loop._guard import first_not_finite, is_finite


def differentiate(fit: Fit, asked: Asked) -> None:
    """The gradients of a loss, and the update where the window of micro-batches ends with it."""
    ctx, scaler = fit.ctx, fit.scaler
    grads = backward(asked.loss if scaler is None else scaler.scaled(asked.loss), fit.model, wrt=asked.part)
    # Unscaled before anybody looks at them: hooks, the check and the clipping are about the true ones.
    ctx.grads = grads if scaler is None else scaler.unscaled(grads)
    fit.hooks.fire("on_train_batch_after_backward", ctx)
    grads, ctx.grads = ctx.grads, None
    if not isinstance(grads, Gradients):
        raise WrongType(f"a callback set ctx.grads to {type(grads).__name__}; on_train_batch_after_backward takes back")
    if fit.settings.accumulate == 1:
        apply(fit, grads, asked)
        return
    window = fit.accumulators.setdefault(asked.part, Accumulator(fit.reduce))
    # Each batch by itself: at the end of the window nobody could tell any more which one it was.
    if accepted(fit, grads, asked, None):
        window.add(grads, weight=1 if fit.reduce == "sum" else asked.weight)
    if not ctx.accumulating and len(window):
        apply(fit, window.take())


def flush(fit: Fit) -> None:
    """The update of a window that the epoch has ended in: nothing is dropped, and it is the mean of what it has."""
    for window in fit.accumulators.values():
        if len(window):
            apply(fit, window.take())
            fit.ctx.accumulating = False


def apply(fit: Fit, grads: Gradients, asked: Asked | None = None) -> None:
    """One step of the optimizer, or none where the loss or a gradient is not finite."""
    ctx, settings = fit.ctx, fit.settings
    norm = grads.norm() if settings.clip_norm is not None or fit.norms else None
    if not accepted(fit, grads, asked, norm):
        return
    if settings.clip_value is not None:
        grads = grads.clip_value(settings.clip_value)
    if settings.clip_norm is not None:
        grads = grads.clip_norm(settings.clip_norm, norm=norm if settings.clip_value is None else None)
    if norm is not None:
        fit.norms = {meter: meter.update_update(state, norm) for meter, state in fit.norms.items()}
    fit.mark = None  # from here on there is no way back
    fit.optimizer.step(grads, lr=ctx.lr)
    fit.applied = True
    fit.hooks.fire("on_train_batch_after_step", ctx)


def accepted(fit: Fit, grads: Gradients, asked: Asked | None, norm: Tensor | None) -> bool:
    """Whether these gradients may be used; where not, the run stops, unless it was told to go on."""
    loss, weight = (None, 1) if asked is None else (asked.loss, asked.weight)
    finite = is_finite(loss, grads, norm)
    if (not finite or not isinstance(weight, Tensor)) and weight == 0:
        return False  # a batch of nothing (all masked) counts for nothing, whatever its loss is
    if fit.scaler is not None:
        fit.scaler.after(finite)
    if not finite:
        _refuse(fit, loss, grads)
    return finite


def _refuse(fit: Fit, loss: Tensor | None, grads: Gradients) -> None:
    """Leaves the weights alone; stops the run unless it was told to go on, or the 16-bit scale is still being found."""
    ctx = fit.ctx
    fit.skipped += 1
    fit.refused = loss is not None and not bool(loss.isfinite())
    if fit.scaler is not None and fit.scaler.factor > 1.0 and not fit.refused:
        return
    where = f"epoch {ctx.epoch}, batch {ctx.batch_number}"
    if fit.settings.on_nan == "skip":
        ctx.warn(f"the update at {where} was skipped: the loss or a gradient is not finite ({fit.skipped} so far)")
        for buffer, before in zip(fit.model.buffers(), fit.buffers, strict=False):
            if buffer.shape == before.shape:
                buffer.copy_(before)  # running statistics have seen the batch already
        return
    found = first_not_finite(fit, loss, grads)
    for buffer, before in zip(fit.model.buffers(), fit.buffers, strict=False):
        if not bool(
            buffer.isfinite().all()
        ):  # running statistics have seen the batch: as they were at the epoch's start
            buffer.copy_(before)
    what = "a gradient" if loss is None else f"the loss ({loss.item():g}) or a gradient"
    raise NotFinite(
        f"{what} is not finite at {where}: {found}. The update was not applied. "
        "Lower the learning rate, clip (clip_norm=1.0), or skip such batches with Learner(on_nan='skip')"
    )
