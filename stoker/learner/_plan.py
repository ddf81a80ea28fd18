"""What was decided about a fit, in words and as plain values: for the record, the run's facts, and `explain`."""

import time
from contextlib import suppress
from typing import Any

import torch

from stoker._select import named_parameters
from stoker.engine import Fit, Plan
from stoker.learner._spec import Spec
from stoker.metrics import Meter, Metric
from stoker.record import Event

_SETTINGS = (
    *("epochs", "updates", "minutes", "batch_size", "accumulate", "lr", "optimizer", "loss", "clip_norm", "clip_value"),
    *("precision", "ema", "seed", "step", "validate_every", "keep", "on_nan"),
)


def plan_of(fit: Fit, spec: Spec) -> list[str | Plan]:
    """What will be trained, for how long, where, and in which way."""
    settings = fit.settings
    made = "trained in place" if fit.state.model is spec.model else "made anew for every fit"
    limits = [f"{value:g} {name}" for name in ("epochs", "updates", "minutes") if (value := getattr(settings, name))]
    lines: list[str | Plan] = [
        f"model      {type(fit.state.model).__name__}, {_parameters(fit):,} parameters, {made}",
        f"length     {' or '.join(limits)}{', whichever is over first' if len(limits) > 1 else ''}",
        f"device     {fit.device}, {'named' if spec.device is not None else 'found'}",
        f"precision  {settings.precision}{_advice(fit)}",
        fit.plan,
        f"seed       {fit.ctx.seed}{'' if spec.seed is not None else ' (drawn: give seed= to have it again)'}",
    ]
    if fit.step.supervised is None and spec.loss is not None:
        lines.append(f"loss       {type(fit.state.model).__name__}.train_step has its own; loss= is not used")
    return lines


def _advice(fit: Fit) -> str:
    if fit.settings.precision != "fp32":
        return ", inside fit only"
    if fit.device.type != "cuda":
        return ": whatever PyTorch is set to"
    major = torch.cuda.get_device_capability(fit.device)[0]
    if major < 8:
        return ": whatever PyTorch is set to (this GPU is too old for tf32 and bf16; fp16 is there)"
    return (
        f": whatever PyTorch is set to (matrix products: {torch.get_float32_matmul_precision()}); tf32 would run them "
        "several times faster at 10 bits of mantissa, bf16 in half the memory as well"
    )


def facts_of(fit: Fit) -> dict[str, Any]:
    """What ran, for `run.json`."""
    return {
        "plan": fit.describe(),
        "seed": fit.ctx.seed,
        "device": str(fit.device),
        "precision": fit.settings.precision,
        "model": type(fit.state.model).__name__,
        "optimizer": repr(fit.state.optimizer),
        "settings": _settings(fit),
    }


def _settings(fit: Fit) -> dict[str, Any]:
    """What a learner was told, by which runs are compared; without what it was not told."""
    known = {**fit.state.identity["limits"], **fit.state.identity["fixed"], **fit.state.identity["free"]}
    told = {name: known[name] for name in _SETTINGS if known[name] is not None}
    with suppress(ValueError):
        told["lr"] = float(told["lr"])  # no schedule, no mapping
    return {**told, **({"hparams": hparams} if (hparams := fit.state.identity["hparams"]) else {})}


def beginning(fit: Fit) -> Event:
    """The first event: what will happen, for whoever reads the record."""
    metrics: list[Metric | Meter] = [*fit.state.totals.metrics, *fit.valid_metrics, *fit.meters]
    directions = {"loss": {"direction": "min", "unit": ""}}
    directions |= {metric.name: {"direction": metric.direction, "unit": metric.unit} for metric in metrics}
    settings = fit.settings
    extra = {
        "epochs": settings.epochs,
        "updates": settings.updates,
        "minutes": settings.minutes,
        "batches": fit.ctx.batches,
        "validate_every": settings.validate_every or "epoch",
        "metrics": directions,
        "monitor": settings.monitor,
        "model": type(fit.state.model).__name__,
        "parameters": _parameters(fit),
        "device": str(fit.device),
        "seed": fit.ctx.seed,
        "plan": fit.describe(),
    }
    return Event("begin", time.time(), fit.ctx.epoch, 0, fit.ctx.update, extra=extra)


def _parameters(fit: Fit) -> int:
    return sum(parameter.numel() for parameter in named_parameters(fit.state.model).values())
