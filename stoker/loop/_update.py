"""Gradients of a batch to an update: unscaled, checked, accumulated, clipped, applied. Nothing else writes weights."""

import ctypes
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from stoker.errors import NotFinite, WrongType
from stoker.gradients import Accumulator, Differentiator, Gradients
from stoker.loop._ask import Asked
from stoker.loop._fit import Fit
from stoker.loop._guard import first_not_finite, is_finite, looked_at
from stoker.metrics import GradientNorm, State
from stoker.program import compiling

_AS_IT_IS = nullcontext()


def differentiate(fit: Fit, asked: Asked) -> None:
    """The gradients of a loss, and the update where the window of micro-batches ends with it."""
    use(fit, *gradients_of(fit, asked))


def use(fit: Fit, grads: Gradients, asked: Asked) -> None:
    """What is done with the gradients of a batch: hooks, the window, the update."""
    ctx, scaler = fit.ctx, fit.scaler
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
    joining = _for_window(fit, grads, asked)
    if joining is not None:
        window.add(joining, weight=1 if fit.reduce == "sum" and not ctx.is_padding else asked.weight)
    if not ctx.accumulating and len(window):
        _close(fit, window)


def gradients_of(fit: Fit, asked: Asked) -> tuple[Gradients, Asked]:
    """Those of this process; or those of all of them, and what was asked with the weight of the whole batch."""
    loss = asked.loss if fit.scaler is None else fit.scaler.scaled(asked.loss)
    if fit.shared is None:
        backward = fit.differentiators.get(asked.part)
        if backward is None:
            backward = fit.differentiators[asked.part] = Differentiator(fit.model, asked.part)
        return backward(loss), asked
    # A part of a batch that counts for nothing (no token is left, say) is no reason to refuse the rest of it.
    own = asked._replace(loss=_counted_loss(asked))
    if fit.own_windows:
        return fit.shared.local(loss, part=asked.part), own
    grads = fit.shared.backward(loss, asked.weight, part=asked.part)
    return grads, own._replace(weight=fit.shared.weight)


def added_up(fit: Fit, grads: Gradients, asked: Asked) -> tuple[Gradients, Asked]:
    """The same, where those of this process are known already."""
    if fit.shared is None:
        return grads, asked
    own = asked._replace(loss=_counted_loss(asked))
    if fit.own_windows:
        return grads, own
    grads = fit.shared.reduce(grads, asked.loss, asked.weight)
    return grads, own._replace(weight=fit.shared.weight)


def _counted_loss(asked: Asked) -> Tensor:
    """The loss as a number to look at: zero where it counts for nothing."""
    loss, weight = asked.loss.detach(), asked.weight
    if isinstance(weight, Tensor):
        return torch.where(weight.to(loss.device) > 0, loss, 0)
    return loss if weight else torch.zeros_like(loss)


def _for_window(fit: Fit, grads: Gradients, asked: Asked) -> Gradients | None:
    """What of a micro-batch goes into its window; of windows that ranks have of their own, all decide alike."""
    if not fit.own_windows:
        return grads if accepted(fit, grads, asked, None) else None
    fine = bool(asked.weight == 0) or is_finite(asked.loss, grads, None)
    if fit.settings.on_nan == "skip" or fit.scaler is not None:
        return grads if _judged(fit, fit.world.all(fine), asked.loss, grads) else None
    if fine:
        return grads
    # Nobody waits here for the others: all see it when the window is closed, and refuse its update.
    fit.suspect = fit.suspect or _suspect(fit, asked.loss, grads)
    return grads.scale(float("nan"))


def flush(fit: Fit) -> None:
    """The update of a window that the epoch has ended in: nothing is dropped, and it is the mean of what it has."""
    for window in fit.accumulators.values():
        if len(window):
            _close(fit, window)
            fit.ctx.accumulating = False


def _close(fit: Fit, window: Accumulator) -> None:
    if fit.own_windows and fit.shared is not None:
        grads, weight = fit.shared.reduce_window(window)
    else:
        weight, grads = window.weight, window.take()
    apply(fit, grads, weight=weight)


def apply(fit: Fit, grads: Gradients, asked: Asked | None = None, *, weight: float | Tensor = 1) -> None:
    """One step of the optimizer, or none where the loss or a gradient is not finite."""
    ctx, settings, fit.moved = fit.ctx, fit.settings, False
    # Of shards a norm is one message to the other ranks, and looking at each of them would be many.
    wanted = settings.clip_norm is not None or fit.norms or (fit.sharded and fit.verdict is None)
    norm = grads.norm() if wanted else None
    if not accepted(fit, grads, asked, norm, weight):
        held = weight if asked is None else asked.weight
        if isinstance(held, Tensor) and not fit.refused and held == 0:
            fit.applied = True  # on a GPU nothing counts as an update: a captured step can't tell in time
        return
    if fit.searching:
        return  # a run that is only repeated to see where it goes wrong
    if settings.clip_value is not None:
        grads = grads.clip_value(settings.clip_value)
    if settings.clip_norm is not None:
        grads = grads.clip_norm(settings.clip_norm, norm=norm if settings.clip_value is None else None)
    if norm is not None:
        fit.norms = {meter: _counted(fit, meter, state, norm) for meter, state in fit.norms.items()}
    fit.mark = None  # from here on there is no way back
    with compiling() if fit.written_out else _AS_IT_IS:  # what is to be compiled is written out in tensors only
        fit.optimizer.step(grads, lr=_rates(fit), when=None if fit.verdict is None else fit.verdict.allowed)
    fit.applied = fit.moved = True
    fit.hooks.fire("on_train_batch_after_step", ctx)


def _counted(fit: Fit, meter: GradientNorm, state: State, norm: Tensor) -> State:
    """The state that has also seen this norm; where the device allows no update, it has not."""
    new = meter.update(state, norm)
    if fit.verdict is None or fit.verdict.allowed is None:
        return new
    return {name: torch.where(fit.verdict.allowed, new[name], old) for name, old in state.items()}


def _rates(fit: Fit) -> Any:
    """The learning rates: numbers, or the device's own tensors; and what those would hold, on a GPU."""
    if fit.rates_held is not None:
        return fit.rates_held
    lr = fit.ctx.lr
    if fit.steady or fit.device.type != "cuda":
        return lr
    return {key: _rounded(rate) for key, rate in lr.items()} if isinstance(lr, Mapping) else _rounded(lr)


def _rounded(rate: Any) -> Any:
    """As a tensor on a GPU holds it, so that a captured step comes to the same bits as this one."""
    return rate if isinstance(rate, Tensor) else ctypes.c_float(rate).value


def accepted(fit: Fit, grads: Gradients, asked: Asked | None, norm: Tensor | None, weight: float | Tensor = 1) -> bool:
    """Whether these gradients may be used; where not, the run stops, unless it was told to go on."""
    loss, weight = (None, weight) if asked is None else (asked.loss, asked.weight)
    if fit.verdict is not None:
        fit.verdict.judge(looked_at(loss if fit.shared is None else None, grads), weight)
        return True
    # A loss that is none has made the gradients of all ranks none, and every rank has to look at the same.
    finite = is_finite(loss if fit.shared is None else None, grads, norm)
    if weight == 0:
        return False  # a batch of nothing (all masked) changes nothing, whatever its loss is
    return _judged(fit, finite, loss, grads)


def _judged(fit: Fit, finite: bool, loss: Tensor | None, grads: Gradients) -> bool:
    """What is done about a verdict, on every rank."""
    if fit.scaler is not None:
        fit.scaler.after(finite)
    if not finite:
        _refuse(fit, loss, grads)
    return finite


def _refuse(fit: Fit, loss: Tensor | None, grads: Gradients) -> None:
    """Leaves the weights alone; stops the run unless it was told to go on, or the 16-bit scale is still being found."""
    ctx = fit.ctx
    fit.skipped += 1
    fit.refused = fit.world.any(loss is not None and not bool(loss.isfinite()))
    if fit.scaler is not None and fit.scaler.factor > 1.0 and not fit.refused:
        return
    if fit.settings.on_nan == "skip":
        where = f"epoch {ctx.epoch}, batch {ctx.batch_number}"
        ctx.warn(f"the update at {where} was skipped: the loss or a gradient is not finite ({fit.skipped} so far)")
        for buffer, before in zip(fit.model.buffers(), fit.buffers, strict=False):
            if buffer.shape == before.shape:
                buffer.copy_(before)  # running statistics have seen the batch already
        return
    what, where, found = _cause(fit, loss, grads)
    for buffer, before in zip(fit.model.buffers(), fit.buffers, strict=False):
        if not bool(
            buffer.isfinite().all()
        ):  # running statistics have seen the batch: as they were at the epoch's start
            buffer.copy_(before)
    fit.common = True
    raise NotFinite(
        f"{what} is not finite at {where}: {found}. The update was not applied. "
        "Lower the learning rate, clip (clip_norm=1.0), or skip such batches with Learner(on_nan='skip')"
    )


def _cause(fit: Fit, loss: Tensor | None, grads: Gradients) -> tuple[str, ...]:
    """What is not finite, at which batch, and where that came up; of several ranks, the first one whose own it is."""
    here = fit.suspect or _suspect(fit, loss, grads)
    if fit.world.size == 1:
        return here
    own = fit.suspect is not None or (loss is not None and not bool(loss.isfinite()))
    said = fit.world.all_gather((own, here))
    rank = next((rank for rank, (own, _) in enumerate(said) if own), 0)
    what, where, found = said[rank][1]
    return f"{what} of rank {rank}", where, found


def _suspect(fit: Fit, loss: Tensor | None, grads: Gradients) -> tuple[str, str, str]:
    what = "a gradient" if loss is None else f"the loss ({loss.item():g}) or a gradient"
    return what, f"epoch {fit.ctx.epoch}, batch {fit.ctx.batch_number}", first_not_finite(fit, loss, grads)
