"""A fit in words: what a resumed run is compared by, the plan, the facts for run.json, and the first event."""

import difflib
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from stoker._select import describe, named_parameters
from stoker.data import Loader
from stoker.engine import Fit, Plan, length_of
from stoker.learner._arguments import hparams_of
from stoker.metrics import GradientNorm, Meter, Metric
from stoker.record import Event

if TYPE_CHECKING:
    from stoker.learner._learner import Learner

_SETTINGS = (
    *("epochs", "updates", "minutes", "batch_size", "accumulate", "lr", "optimizer", "loss", "clip_norm", "clip_value"),
    *("precision", "ema", "seed", "step", "validate_every", "keep", "on_nan"),
)
_DATA = ("samples", "batches", "batch_size", "order", "generators", "seed", "accumulate")  # determine the batches
_FROZEN = ", frozen"
_MAX_LINES = 8  # about one model
_MAX_LENGTH = 50_000  # characters of a model's repr
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # differs in every process


def identity_of(fit: Fit, learner: "Learner") -> dict[str, Any]:
    """`fixed` must be the same when a run is resumed; `free` may differ, with a warning.

    `limits` decides whether a finished run continues; `hparams` is for reading.
    """
    settings, train = fit.settings, fit.train
    model = fit.state.model
    is_compiled = learner.compile or any(_is_compiled(module) for module in model.modules())
    fixed = {
        "model": {name: _describe_parameter(each) for name, each in named_parameters(model).items()},
        "loss": None if fit.step.supervised is None else _as_text(learner.loss),
        "optimizer": _ADDRESS.sub("", repr(fit.state.optimizer)),
        "samples": _count_samples(train),
        "batches": length_of(train),
        "batch_size": train.batch_size,
        "order": train.shuffle,
        "generators": ", ".join(train.generator_states()) or None,  # of a DataLoader
        "seed": fit.ctx.seed,
        "accumulate": settings.accumulate,
        "precision": settings.precision,
        "ema": learner.ema,
        "metrics": _train_metrics(fit),
        "step": "compiled" if is_compiled else "eager",
    }
    world = fit.ranks.world
    free = {
        "structure": repr(model)[:_MAX_LENGTH].split("\n"),
        "lr": _as_text(learner.lr),
        "clip_norm": settings.clip_norm,
        "clip_value": settings.clip_value,
        "on_nan": settings.on_nan,
        "valid": ", ".join(f"{name} ({_describe_size(loader)})" for name, loader in fit.valid.items()) or None,
        "validate_every": settings.validate_every,
        "keep": settings.keep,
        "device": fit.device.type,
        "processes": None if world.size == 1 else world.size,
        "threads": torch.get_num_threads() if fit.device.type == "cpu" else None,
    }
    limits = {name: getattr(settings, name) for name in ("epochs", "updates", "minutes")}
    hparams = {name: _as_plain_value(value) for name, value in hparams_of(learner.model).items()}
    return {"fixed": fixed, "free": free, "limits": limits, "hparams": hparams}


def list_changes(saved: Mapping[str, Any], own: Mapping[str, Any]) -> list[str]:
    """Returns a line for every setting that differs."""
    lines: list[str] = []
    for name, now in own.items():
        before = saved.get(name)
        if name == "model" and isinstance(before, Mapping):
            lines += _model_changes(before, now)
        elif name == "structure" and isinstance(before, list):
            lines += _structure_changes(before, now)
        elif before != now:
            lines.append(f"{name}: {_or_none(before)} before, {_or_none(now)} now")
    return lines


def has_other_metrics(saved: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
    """Whether the saved totals of an epoch are those of other metrics."""
    return saved.get("metrics") != own["metrics"]


def has_other_data(saved: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
    """Whether the batches of an epoch differ."""
    return any(saved.get(name) != own[name] for name in _DATA)


def has_other_parameters(saved: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
    """Whether names, shapes or dtypes of parameters differ; then not even `resume="force"` can load them."""
    before, now = (
        {name: kind.removesuffix(_FROZEN) for name, kind in model.items()} if isinstance(model, Mapping) else {}
        for model in (saved.get("model"), own.get("model"))
    )
    return before != now


def resume_warnings(fit: Fit) -> list[str]:
    """What may prevent a resumed run from reaching the same bits although nothing has changed."""
    contexts = [getattr(module, "dynamo_ctx", None) for module in fit.state.model.modules()]
    if not any(context is not None and getattr(context, "_dynamic", False) is None for context in contexts):
        return []
    return [
        "the model is compiled, and its code may depend on the shapes that a process has seen before; with "
        "torch.compile(..., dynamic=False) every process has the same code, and so the same bits"
    ]


def _model_changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    lines = [f"model: {name} is new, {now[name]}" for name in now if name not in before]
    lines += [f"model: {name} is gone, {before[name]}" for name in before if name not in now]
    both = [name for name in now if name in before and before[name] != now[name]]
    lines += [f"model: {name} is {now[name]}, was {before[name]}" for name in both]
    return lines if len(lines) <= _MAX_LINES else [*lines[:_MAX_LINES], f"model: and {len(lines) - _MAX_LINES} more"]


def _structure_changes(before: list[str], now: list[str]) -> list[str]:
    """The lines that differ between the reprs of two models: the rate of a dropout, for example."""
    diff = list(difflib.unified_diff(before, now, n=0))[2:]
    changed = [line for line in diff if line[:1] in "-+"]
    text = ", ".join(f"{line[0]} {line[1:].strip()}" for line in changed[:_MAX_LINES])
    return [f"the repr of the model: {text}"] if changed else []


def _or_none(value: Any) -> str:
    return "none" if value is None else str(value)


def _describe_parameter(parameter: nn.Parameter) -> str:
    frozen = "" if parameter.requires_grad else _FROZEN
    return f"{str(parameter.dtype).removeprefix('torch.')} {list(parameter.shape)}{frozen}"


def _train_metrics(fit: Fit) -> str | None:
    """The metrics that accumulate over the batches of an epoch."""
    meters = [meter for meter in fit.meters if isinstance(meter, GradientNorm)]
    return ", ".join(metric.name for metric in (*fit.state.totals.metrics, *meters)) or None


def _count_samples(loader: Loader) -> int | None:
    try:
        return loader.samples
    except TypeError:
        return None


def _describe_size(loader: Loader) -> str:
    samples, batches = _count_samples(loader), length_of(loader)
    if samples is not None:
        return f"{samples} samples"
    return "a stream" if batches is None else f"{batches} batches"


def _is_compiled(module: nn.Module) -> bool:
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None


def _as_plain_value(value: Any) -> Any:
    """A value that JSON can hold."""
    return value if value is None or isinstance(value, bool | int | float | str) else _ADDRESS.sub("", repr(value))


def _as_text(value: Any) -> str:
    """A learning rate or loss as text that is the same in every process: a function by its name, not its address."""
    if isinstance(value, Mapping):
        return ", ".join(f"{describe(selector)}: {_as_text(rate)}" for selector, rate in value.items())
    if isinstance(value, int | float):
        return f"{value:g}"
    return getattr(value, "__qualname__", None) or _ADDRESS.sub("", repr(value))


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
