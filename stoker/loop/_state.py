"""Everything that a fit is, as a tree of tensors and plain values, between two batches; and back."""

import time
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from stoker.checkpoint import load_model_state, model_state, random_state
from stoker.errors import StateMismatch
from stoker.gradients import Accumulator
from stoker.loop._fit import Fit
from stoker.loop._level import loss_of
from stoker.loop._mark import Mark, is_storable, marked
from stoker.loop._ranks import of_all_ranks
from stoker.loop._weights import Snapshot, places, snapshot
from stoker.metrics import GradientNorm
from stoker.record import Best


def state_of(fit: Fit, mark: Mark | None = None) -> dict[str, Any]:
    """The whole state now; or at a mark, which it must not have updated since. Tensors are references.

    Where several processes train together, all of them come here at the same time.
    """
    here = marked(fit) if mark is None else mark
    assert fit.watch is not None
    random = random_state() if mark is None or mark.random is None else fit.watch.state_at(mark.random)
    if random is None:
        raise StateMismatch("Python's or numpy's random numbers were drawn from, and can't be told as they stood")
    model = _with_buffers(model_state(fit.model), here.buffers)
    model["extra"] = dict(zip(model["extra"], here.extra, strict=True))
    windows = fit.accumulators if mark is None else {}  # a mark stands where a window has ended
    state = {
        "model": model,
        "optimizer": fit.optimizer.state_dict(),
        "average": None if fit.average is None else fit.average.state_dict(),
        "best": here.best,
        "window": {part: window.state_dict() for part, window in windows.items() if len(window)},
        "scaler": here.scaler,
        "random": random,
        "loader": here.loader,
        "valid": {name: each.generator_states() for name, each in fit.valid.items() if each.needs_rng_state},
        "tally": fit.tally.state_dict(here.tally),
        "norms": here.norms,
        "callbacks": here.callbacks,
        "loop": _counters(fit, here),
        "judged": _judged(fit),
        "loss": None if (loss := loss_of(fit)) is None else _with_buffers(model_state(loss), here.loss),
        "identity": dict(fit.identity),
    }
    return of_all_ranks(fit, state)


def _with_buffers(state: dict[str, Any], buffers: list[Tensor]) -> dict[str, Any]:
    return {**state, "buffers": dict(zip(state["buffers"], buffers, strict=True))}


def _judged(fit: Fit) -> Snapshot | None:
    """The weights that the optimizer wants judged, where it trains others (schedule-free)."""
    with fit.optimizer.evaluation_weights() as differ:
        return snapshot(fit.model) if differ else None


def _counters(fit: Fit, mark: Mark) -> dict[str, Any]:
    """Where the loop stands, as plain values; here a learning rate on a device is waited for."""
    lr, ctx = mark.lr, fit.ctx
    rates = [float(rate) for rate in lr.values()] if isinstance(lr, Mapping) else None if lr is None else float(lr)
    kept = {name: value for name, value in mark.state.items() if is_storable(name) and is_storable(value)}
    return {
        "epoch": mark.epoch,
        "batch": mark.batch,
        "update": mark.update,
        "stage": mark.stage,
        "lr": rates,
        "lr_scale": mark.lr_scale,
        "metrics": mark.metrics,
        "best": None if mark.found is None else list(mark.found),
        "state": kept,
        "validated": mark.validated,
        "skipped": mark.skipped,
        "applied": mark.applied,
        "before": list(fit.before),
        "stopping": mark.stopping,
        "events": mark.events,
        "seconds": mark.time - ctx.started,
        "epoch_seconds": mark.time - fit.began,
    }


def settle_again(fit: Fit, state: Mapping[str, Any]) -> None:
    """The model as it stood, once `on_fit_begin` is through: a callback there may have frozen or changed a part."""
    load_model_state(fit.model, state["model"])


def take_up(fit: Fit, state: Mapping[str, Any]) -> None:
    """Puts a fit that was made anew where `state` stood; callbacks and random numbers follow in `begin`."""
    ctx, loop = fit.ctx, state["loop"]
    load_model_state(fit.model, state["model"])
    fit.optimizer.load_state_dict(state["optimizer"])
    if fit.average is not None:
        fit.average.load_state_dict(state["average"])
    if fit.scaler is not None:
        fit.scaler.load_state_dict(state["scaler"])
    if (loss := loss_of(fit)) is not None and state["loss"] is not None:
        load_model_state(loss, state["loss"])
    own, home = places(fit.model), fit.device
    kept = state["best"] if fit.settings.keep == "best" else None
    fit.best = kept and {name: value.to(own[name].device if name in own else home) for name, value in kept.items()}
    for part, saved in state["window"].items():
        fit.accumulators[part] = Accumulator(fit.reduce)
        fit.accumulators[part].load_state_dict(saved, fit.model)
    fit.tally.load_state_dict(state["tally"])
    meters = [meter for meter in fit.meters if isinstance(meter, GradientNorm)]
    fit.norms = {meter: meter.init(fit.device) for meter in meters}
    for meter, saved in zip(meters, state["norms"], strict=False):  # none, before the first epoch
        fit.norms[meter] = {name: value.to(fit.device) for name, value in saved.items()}
    ctx.epoch, ctx.batch_number, ctx.update = loop["epoch"], loop["batch"], loop["update"]
    fit.stage, fit.validated, fit.skipped = loop["stage"], loop["validated"], loop["skipped"]
    fit.applied, fit.before, ctx.lr_scale = loop["applied"], (loop["before"][0], loop["before"][1]), loop["lr_scale"]
    if fit.identity["limits"] == state["identity"]["limits"]:  # else it goes on: with more epochs, say
        ctx.stopping = loop["stopping"]
    now = time.monotonic()
    ctx.started, fit.began = now - loop["seconds"], now - loop["epoch_seconds"]
    ctx.metrics, ctx.state, fit.opened = dict(loop["metrics"]), dict(loop["state"]), state["loader"]
    known = loop["best"] is not None and (kept is not None or fit.settings.keep == "last")
    ctx.best = Best(*loop["best"]) if known else None  # not one whose weights are not there
    ctx.lr = _rates(loop["lr"], like=fit.rates(ctx.update, ctx.lr_scale))
    for name, saved in state["valid"].items():
        if name in fit.valid and fit.valid[name].needs_rng_state:  # another set may be judged on now
            fit.valid[name].load_generator_states(saved)
    fit.resumed = state


def _rates(saved: Any, *, like: Any) -> Any:
    """The last learning rate, by its selectors: these may be modules, which no file can hold. Other ones begin anew."""
    rates = like.keys() if isinstance(like, Mapping) else None
    if isinstance(saved, list):
        return dict(zip(rates, saved, strict=True)) if rates is not None and len(rates) == len(saved) else like
    return saved if rates is None else like
