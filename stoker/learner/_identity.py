"""What a resumed run is compared by: settings that must be the same, and settings that may differ."""

import difflib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from stoker._select import describe, named_parameters
from stoker.data import Loader
from stoker.engine import Fit, length_of
from stoker.learner._arguments import hparams_of
from stoker.metrics import GradientNorm

if TYPE_CHECKING:
    from stoker.learner._learner import Learner

_DATA = ("samples", "batches", "batch_size", "order", "generators", "seed", "accumulate")  # determine the batches
_FROZEN = ", frozen"
_MAX_LINES = 8  # about one model
_MAX_LENGTH = 50_000  # characters of a model's repr
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # differs in every process


def identity_of(fit: Fit, learner: "Learner") -> dict[str, Any]:
    """`fixed` must be the same when a run is resumed; `free` may differ, with a warning; the rest is for reading."""
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
