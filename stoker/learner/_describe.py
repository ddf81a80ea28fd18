"""What was decided about a fit: lines of text for the plan, facts for run.json, and the first event of the record."""

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

from stoker._select import named_parameters
from stoker.engine import Fit, Plan
from stoker.metrics import Meter, Metric
from stoker.record import Event

if TYPE_CHECKING:
    from stoker.learner._learner import Learner

_SETTINGS = (
    *("epochs", "updates", "minutes", "batch_size", "accumulate", "lr", "optimizer", "loss", "clip_norm", "clip_value"),
    *("precision", "ema", "seed", "step", "validate_every", "keep", "on_nan"),
)


def describe_plan(fit: Fit, learner: "Learner") -> list[str | Plan]:
    """What is trained, for how long, where, and how; the `Plan` of the step describes itself when it is shown."""
    settings, model = fit.settings, fit.state.model
    name = type(model).__name__
    origin = "trained in place" if model is learner.model else "created for every fit"
    limits = [f"{value:g} {name}" for name in ("epochs", "updates", "minutes") if (value := getattr(settings, name))]
    seed = fit.ctx.seed
    lines: list[str | Plan] = [
        f"model      {name}, {_count_parameters(fit):,} parameters, {origin}",
        f"length     {' or '.join(limits)}{', whichever comes first' if len(limits) > 1 else ''}",
        f"device     {fit.device}, {'chosen' if learner.device is None else 'given'}",
        f"precision  {settings.precision}{_precision_advice(fit)}",
        fit.plan,
        f"seed       {seed}{'' if learner.seed is not None else f' (drawn at random: give seed={seed} to repeat it)'}",
    ]
    if fit.step.supervised is None and learner.loss is not None:
        lines.append(f"loss       computed by {name}.train_step; loss= is not used")
    return lines


def _precision_advice(fit: Fit) -> str:
    if fit.settings.precision != "fp32":
        return ", inside fit only"
    if fit.device.type != "cuda":
        return ", with PyTorch's settings"
    major = torch.cuda.get_device_capability(fit.device)[0]
    if major < 8:
        return ", with PyTorch's settings (this GPU has no tf32 and bf16; fp16 is available)"
    return (
        f", with PyTorch's settings (matrix products: {torch.get_float32_matmul_precision()}); tf32 would compute them "
        "several times faster with a mantissa of 10 bits, bf16 also with half the memory"
    )


def facts_of(fit: Fit) -> dict[str, Any]:
    """The facts about a fit for run.json."""
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
    """The settings by which runs are compared, without those that are None."""
    identity = fit.state.identity
    known = {**identity["limits"], **identity["fixed"], **identity["free"]}
    found = {name: known[name] for name in _SETTINGS if known[name] is not None}
    with suppress(ValueError):
        found["lr"] = float(found["lr"])  # unless it is a schedule or a mapping
    return {**found, **({"hparams": identity["hparams"]} if identity["hparams"] else {})}


def begin_event(fit: Fit) -> Event:
    """The first event of a fit: what the readers of the record have to know."""
    metrics: list[Metric | Meter] = [*fit.state.totals.metrics, *fit.valid_metrics, *fit.meters]
    settings, ctx = fit.settings, fit.ctx
    extra = {
        "epochs": settings.epochs,
        "updates": settings.updates,
        "minutes": settings.minutes,
        "batches": ctx.batches,
        "validate_every": settings.validate_every or "epoch",
        "metrics": {
            "loss": {"direction": "min", "unit": ""},
            **{metric.name: {"direction": metric.direction, "unit": metric.unit} for metric in metrics},
        },
        "monitor": settings.monitor,
        "model": type(fit.state.model).__name__,
        "parameters": _count_parameters(fit),
        "device": str(fit.device),
        "seed": ctx.seed,
        "plan": fit.describe(),
    }
    return Event("begin", time.time(), ctx.epoch, 0, ctx.update, extra=extra)


def _count_parameters(fit: Fit) -> int:
    return sum(parameter.numel() for parameter in named_parameters(fit.state.model).values())
