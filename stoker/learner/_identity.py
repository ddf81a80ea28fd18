"""What the parts of one run have in common: a fit that goes on is the same training, or is told that it is not."""

import difflib
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from stoker._select import describe, named_parameters
from stoker.data import Loader
from stoker.engine import Fit, length_of
from stoker.learner._spec import Spec
from stoker.metrics import GradientNorm

# With another of these, no batch is the same.
_DATA = ("samples", "batches", "batch_size", "order", "generators", "seed", "accumulate")
_FROZEN = ", frozen"
_MOST = 8  # lines about one model
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # of an object in memory, another one in every process
_LONGEST = 50_000  # letters of a model's own description


def identity_of(fit: Fit, spec: Spec) -> dict[str, Any]:
    """`fixed`: what has to be the same; `free`: what may differ, and changes what comes out; the rest is told only."""
    settings, train = fit.settings, fit.train
    fixed = {
        "model": {name: _kind(each) for name, each in named_parameters(fit.state.model).items()},
        "loss": None if fit.step.supervised is None else _spelled(spec.loss),
        "optimizer": _ADDRESS.sub("", repr(fit.state.optimizer)),
        "samples": _samples(train),
        "batches": length_of(train),
        "batch_size": train.batch_size,
        "order": train.shuffle,
        "generators": ", ".join(train.generator_states()) or None,  # of a DataLoader
        "seed": fit.ctx.seed,
        "accumulate": settings.accumulate,
        "precision": settings.precision,
        "ema": spec.ema,
        "metrics": _counted(fit),
        "step": "compiled" if spec.compile or any(_is_compiled(module) for module in fit.state.model.modules()) else "eager",
    }
    free = {
        "structure": repr(fit.state.model)[:_LONGEST].split("\n"),
        "lr": _spelled(spec.lr),
        "clip_norm": settings.clip_norm,
        "clip_value": settings.clip_value,
        "on_nan": settings.on_nan,
        "valid": ", ".join(f"{name} ({_size(loader)})" for name, loader in fit.valid.items()) or None,
        "validate_every": settings.validate_every,
        "keep": settings.keep,
        "device": fit.device.type,
        "processes": None if fit.ranks.world.size == 1 else fit.ranks.world.size,
        "threads": torch.get_num_threads() if fit.device.type == "cpu" else None,
    }
    limits = {name: getattr(settings, name) for name in ("epochs", "updates", "minutes")}
    hparams = {name: _plain(value) for name, value in spec.hparams.items()}
    return {"fixed": fixed, "free": free, "limits": limits, "hparams": hparams}


def changes(saved: Mapping[str, Any], own: Mapping[str, Any]) -> list[str]:
    """A line for everything that is not as it was, in the user's words."""
    lines: list[str] = []
    for name, now in own.items():
        before = saved.get(name)
        if name == "model" and isinstance(before, Mapping):
            lines += _models(before, now)
        elif name == "structure" and isinstance(before, list):
            lines += _structures(before, now)
        elif before != now:
            lines.append(f"{name}: {_said(before)} before, {_said(now)} now")
    return lines


def other_metrics(saved: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
    """Whether what was counted of an epoch so far is of other metrics."""
    return saved.get("metrics") != own["metrics"]


def other_data(saved: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
    """Whether the batches of an epoch are no longer the same ones."""
    return any(saved.get(name) != own[name] for name in _DATA)


def other_shapes(saved: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
    """Whether the parameters are other ones, which no force can fill from the saved ones; freezing some is not that."""
    models = [each.get("model") for each in (saved, own)]
    before, now = (
        {name: kind.removesuffix(_FROZEN) for name, kind in each.items()} if isinstance(each, Mapping) else {}
        for each in models
    )
    return before != now


def _models(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    lines = [f"model: {name} is new, {now[name]}" for name in now if name not in before]
    lines += [f"model: {name} is gone, {before[name]}" for name in before if name not in now]
    both = [name for name in now if name in before and before[name] != now[name]]
    lines += [f"model: {name} is {now[name]}, was {before[name]}" for name in both]
    return lines if len(lines) <= _MOST else [*lines[:_MOST], f"model: and {len(lines) - _MOST} more"]


def _structures(before: list[str], now: list[str]) -> list[str]:
    """What a model's description of itself has lost and gained, a dropout's share say."""
    lines = list(difflib.unified_diff(before, now, n=0))[2:]
    changed = [line for line in lines if line[:1] in "-+"]
    said = ", ".join(f"{line[0]} {line[1:].strip()}" for line in changed[:_MOST])
    return [f"the model, as it describes itself: {said}"] if changed else []


def _said(value: Any) -> str:
    return "none" if value is None else str(value)


def _kind(parameter: nn.Parameter) -> str:
    frozen = "" if parameter.requires_grad else _FROZEN
    return f"{str(parameter.dtype).removeprefix('torch.')} {list(parameter.shape)}{frozen}"


def _counted(fit: Fit) -> str | None:
    """The metrics that add something up over the batches of an epoch."""
    meters = [meter for meter in fit.meters if isinstance(meter, GradientNorm)]
    return ", ".join(metric.name for metric in (*fit.state.totals.metrics, *meters)) or None


def _samples(loader: Loader) -> int | None:
    try:
        return loader.samples
    except TypeError:
        return None


def _size(loader: Loader) -> str:
    samples, batches = _samples(loader), length_of(loader)
    if samples is not None:
        return f"{samples} samples"
    return "a stream" if batches is None else f"{batches} batches"


def doubts(fit: Fit) -> list[str]:
    """What may keep a run that goes on from the same bits although nothing has changed."""
    contexts = [getattr(module, "dynamo_ctx", None) for module in fit.state.model.modules()]
    if not any(context is not None and getattr(context, "_dynamic", False) is None for context in contexts):
        return []
    return [
        "the model is compiled, and its code may depend on the shapes that a process has seen before: with "
        "torch.compile(..., dynamic=False) it is the same code, and so the same bits, in every process"
    ]


def _is_compiled(module: nn.Module) -> bool:
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None


def _plain(value: Any) -> Any:
    """An argument of the model's as JSON can say it."""
    return value if value is None or isinstance(value, bool | int | float | str) else _ADDRESS.sub("", repr(value))


def _spelled(lr: Any) -> str:
    """A learning rate in a text that is the same tomorrow: a function's name, and not where it lies in memory."""
    if isinstance(lr, Mapping):
        return ", ".join(f"{describe(selector)}: {_spelled(rate)}" for selector, rate in lr.items())
    if isinstance(lr, int | float):
        return f"{lr:g}"
    return getattr(lr, "__qualname__", None) or _ADDRESS.sub("", repr(lr))
