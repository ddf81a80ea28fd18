"""A fit in words: what a resumed run is compared by, the plan, the facts for run.json, and the first event."""

import difflib
import platform
import re
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from types import CellType, CodeType, FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from stoker._select import describe, has_compiled_modules, named_parameters
from stoker._text import pluralize
from stoker.data import Combination, Loader
from stoker.engine import Fit, ModelWithLoss, Plan, length_of
from stoker.learner._arguments import hparams_of
from stoker.metrics import ConfusionMatrix, GradientNorm
from stoker.record import Event

if TYPE_CHECKING:
    from stoker.learner._learner import Learner

# The settings by which runs are compared.
_SETTINGS = (
    *("epochs", "updates", "minutes", "batch_size", "micro_batch", "accumulate", "lr", "optimizer", "loss"),
    *("clip_norm", "clip_value", "precision", "ema", "seed", "step", "validate_every", "keep", "monitor", "on_nan"),
)
DEFAULT_MONITOR = "the first validation loss"
_MAX_LINES = 8  # about one model
_MAX_LENGTH = 50_000  # characters of a model's repr
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # differs in every process


def loaders_of(fit: Fit) -> dict[str, Loader]:
    """The loaders for training and validation, by name."""
    return {"train": fit.train, **fit.valid}


def identity_of(fit: Fit, learner: "Learner", lr: Any) -> dict[str, Any]:
    """`fixed` must be the same when a run is resumed; `free` may differ, with a warning.

    `limits` decides whether a finished run continues; `hparams` is for reading. `lr` are the learner's learning rates,
    with the length of the fit.
    """
    settings, train, model = fit.settings, fit.train, fit.state.model
    parameters = {
        name: f"{str(each.dtype).removeprefix('torch.')} {list(each.shape)}{'' if each.requires_grad else ', frozen'}"
        for name, each in named_parameters(fit.state.trained).items()
    }
    is_compiled = learner.compile or has_compiled_modules(model)
    norms = [meter for meter in fit.meters if isinstance(meter, GradientNorm)]
    fixed = {
        "model": parameters,
        "loss": None if fit.step.supervised is None else as_text(learner.loss),
        "train_step": None if learner.step is None else as_text(learner.step),
        "columns": _columns_as_text(learner),
        "optimizer": _ADDRESS.sub("", repr(fit.state.optimizer)),
        "samples": _count_samples(train),
        "batches": length_of(train),
        "batch_size": train.batch_size,
        "order": train.shuffle,
        "generators": ", ".join(train.generator_states()) or None,  # of a DataLoader
        "sampling": _checksum_weights(train.sampling_weights),
        "buckets": None if train.bucket_by is None or train.sharded else _checksum_orders(train),
        "sources": _describe_sources(train) if isinstance(train.source, Combination) else None,
        "sharded": fit.ranks.data_world.size if _has_own_position(train) else None,
        "seed": fit.ctx.seed,
        "accumulate": settings.accumulate,
        "precision": settings.precision,
        "ema": learner.ema,
        "metrics": ", ".join(metric.name for metric in (*fit.state.totals.metrics, *norms)) or None,
        "step": "compiled" if is_compiled else "eager",
    }
    free = {
        "structure": repr(model)[:_MAX_LENGTH].split("\n"),
        "lr": as_text(lr),
        "micro_batch": settings.micro_batch,
        "clip_norm": settings.clip_norm,
        "clip_value": settings.clip_value,
        "on_nan": settings.on_nan,
        "deterministic": settings.deterministic or None,
        "valid": ", ".join(f"{name} ({_describe_size(loader)})" for name, loader in fit.valid.items()) or None,
        "valid_step": None if learner.valid_step is None else as_text(learner.valid_step),
        "validate_every": settings.validate_every,
        "keep": settings.keep,
        "monitor": _monitor_as_text(fit),
        "device": fit.device.type,
        "processes": None if fit.ranks.world.size == 1 else fit.ranks.world.size,
        "threads": torch.get_num_threads() if fit.device.type == "cpu" else None,
        "code": _checksum_code(fit, learner),
    }
    hparams = {
        name: value if value is None or isinstance(value, bool | int | float | str) else _ADDRESS.sub("", repr(value))
        for name, value in hparams_of(learner.model).items()
    }
    return {"fixed": fixed, "free": free, "limits": limits_of(fit), "hparams": hparams}


def _columns_as_text(learner: "Learner") -> str | None:
    named = {name: getattr(learner, name) for name in ("inputs", "target", "weight")}
    return ", ".join(f"{name}={value!r}" for name, value in named.items() if value is not None) or None


def _monitor_as_text(fit: Fit) -> str:
    """The metric that decides which weights are best; the default has one text, with and without validation."""
    settings = fit.settings
    is_default = settings.mode == "min" and settings.monitor in (None, f"{next(iter(fit.valid), '')}/loss")
    return DEFAULT_MONITOR if is_default else f"{settings.monitor} ({settings.mode})"


def limits_of(fit: Fit) -> dict[str, float | None]:
    """How long a fit trains at most."""
    return {name: getattr(fit.settings, name) for name in ("epochs", "updates", "minutes")}


def list_changes(saved: Mapping[str, Any], own: Mapping[str, Any]) -> list[str]:
    """Returns a line for every setting that differs."""
    lines: list[str] = []
    for name, now in own.items():
        before = saved[name]
        if name == "model" and isinstance(before, Mapping):
            lines += _model_changes(before, now)
        elif name == "structure" and isinstance(before, list):
            lines += _structure_changes(before, now)
        elif name == "code":
            lines += _code_changes(before, now)
        elif before != now:
            words = ["none" if value is None else str(value) for value in (before, now)]
            lines.append(f"{name}: {words[0]} before, {words[1]} now")
    return lines


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


def _code_changes(before: Any, now: Mapping[str, Any]) -> list[str]:
    """The functions whose code has changed; empty if that is unknown, since another Python has other bytecode."""
    if not isinstance(before, Mapping) or before.get("python") != now["python"]:
        return []
    return [f"the code of {name} has changed" for name in now if name in before and before[name] != now[name]]


def _checksum_code(fit: Fit, learner: "Learner") -> dict[str, Any]:
    """Checksums of the users' functions and of the methods of their classes, by name."""
    rates = learner.lr.values() if isinstance(learner.lr, Mapping) else [learner.lr]
    functions = {"the loss": [learner.loss], "the step": [learner.step], "the validation step": [learner.valid_step]}
    functions |= {"the learning rate": [*rates], "the transform": [fit.train.transform]}
    for module in (*fit.state.model.modules(), *(() if fit.state.loss is None else fit.state.loss.modules())):
        methods = [getattr(type(module), name, None) for name in ("forward", "train_step", "valid_step")]
        functions[type(module).__qualname__] = methods
    checksums = {name: _contents([each for each in functions[name] if _is_users(each)]) for name in sorted(functions)}
    return {
        "python": platform.python_version(),
        **{name: zlib.crc32(repr(contents).encode()) for name, contents in checksums.items() if contents},
    }


def _is_users(function: Any) -> bool:
    if not callable(function) or isinstance(function, nn.Module):
        return False
    owner = function.func if isinstance(function, partial) else function
    return str(getattr(owner, "__module__", "")).split(".")[0] not in ("torch", "stoker")


def _contents(value: Any) -> Any:
    """What a function computes with: its bytecode, constants, defaults, and the values that it closes over.

    Plain values only, whose repr is the same in every process.
    """
    if isinstance(value, list):
        return [_contents(part) for part in value]
    if isinstance(value, partial):
        arguments = [*value.args, *value.keywords.items()]
        return [_contents(value.func), *map(_plain_contents, arguments)]
    function = getattr(value, "__func__", value)  # of a method
    if not isinstance(function, FunctionType):
        function = type(value).__call__
    if not isinstance(function, FunctionType):
        return _plain_contents(value)
    closed = [cell.cell_contents for cell in function.__closure__ or () if cell != CellType()]
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).items()]
    return [_code_contents(function.__code__, function.__doc__), *map(_plain_contents, (*defaults, *closed))]


def _code_contents(code: CodeType, doc: str | None = None) -> Any:
    constants = [
        _code_contents(each) if isinstance(each, CodeType) else _plain_contents(each)
        for each in code.co_consts
        if each != doc
    ]
    return code.co_code, code.co_names, constants


def _plain_contents(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain_contents(part) for part in value]
    if isinstance(value, frozenset):
        return sorted(map(repr, value))
    if isinstance(value, FunctionType):
        return _code_contents(value.__code__)
    is_plain = value is None or isinstance(value, bool | int | float | complex | str | bytes)
    return value if is_plain else type(value).__qualname__


def _checksum_weights(weights: Any) -> str | None:
    """Identifies the sampling weights of a loader."""
    if weights is None:
        return None
    return f"{zlib.crc32(torch.as_tensor(weights, dtype=torch.float64, device='cpu').numpy().tobytes()):08x}"


def _checksum_orders(loader: Loader) -> str:
    return f"{zlib.crc32(loader.orders.encode()):08x}"


def _describe_sources(loader: Loader) -> str:
    """Several sources and their orders."""
    return f"{loader.describe()} (order {_checksum_orders(loader)})"


def _has_own_position(loader: Loader) -> bool:
    """Whether each rank reads data of its own; a sampler for this rank is at the same position on all of them."""
    return loader.sharded and not hasattr(getattr(loader.source, "sampler", None), "num_replicas")


def _count_samples(loader: Loader) -> int | None:
    try:
        return None if loader.sharded else loader.samples
    except TypeError:
        return None


def _describe_size(loader: Loader) -> str:
    samples, batches = _count_samples(loader), length_of(loader)
    if samples is not None:
        return pluralize(samples, "sample")
    return "a stream" if batches is None else pluralize(batches, "batch")


def as_text(value: Any) -> str:
    """A learning rate or loss as text that is the same in every process: a function by its name, not its address."""
    if isinstance(value, Mapping):
        return ", ".join(f"{describe(selector)}: {as_text(rate)}" for selector, rate in value.items())
    if isinstance(value, int | float):
        return f"{value:g}"
    return getattr(value, "__qualname__", None) or _ADDRESS.sub("", repr(value))


def describe_plan(fit: Fit, learner: "Learner") -> list[str | Plan]:
    """What is trained, for how long, where, and how; the `Plan` of the step describes itself when it is shown."""
    model, seed = fit.state.model, fit.ctx.seed
    name = type(model).__name__
    origin = "trained in place" if model is learner.model else "created for every fit"
    limits = [f"{value:g} {unit}" for unit, value in limits_of(fit).items() if value]
    lines: list[str | Plan] = [
        f"model      {name}, {_count_parameters(fit):,} parameters, {origin}",
        f"length     {' or '.join(limits)}{', whichever comes first' if len(limits) > 1 else ''}",
        *_describe_memory(fit),
        f"device     {fit.device}, {'chosen' if learner.device is None else 'given'}",
        f"precision  {fit.settings.precision}{_precision_advice(fit)}",
        fit.plan,
        f"optimizer  {fit.state.optimizer!r}{_fused_advice(fit, learner)}",
        f"seed       {seed}{'' if learner.seed is not None else f' (drawn at random: give seed={seed} to repeat it)'}",
    ]
    if fit.settings.deterministic:
        lines.append("kernels    deterministic ones, inside fit only")
    if isinstance(fit.state.trained, ModelWithLoss):
        names = [name for name in named_parameters(fit.state.trained) if name.startswith("loss.")]
        lines.insert(
            1,
            f"loss       its parameters are trained too, unless they are frozen: {', '.join(names[:4])}"
            f"{f' and {len(names) - 4} more' if len(names) > 4 else ''}",
        )
    return lines


def _describe_memory(fit: Fit) -> Iterator[str]:
    """What is done to need less memory."""
    limit = fit.settings.micro_batch
    where = " on each process" if fit.ranks.world.size > 1 else ""
    if limit == "auto":
        yield "memory     whole batches, or micro-batches of half the size as often as memory runs out"
    elif limit is not None:
        yield f"memory     micro-batches of at most {limit} samples{where}"
    if fit.recomputed:
        kinds = ", ".join(sorted({type(module).__name__ for module in fit.recomputed}))
        yield f"recompute  the activations of {len(fit.recomputed)} modules ({kinds}) are computed twice, and not kept"


def _fused_advice(fit: Fit, learner: "Learner") -> str:
    if "fused=True" not in repr(fit.state.optimizer) or "fused=True" in repr(learner.optimizer):
        return ""
    return " (torch's fused implementation, which rounds differently; fused=False gives torch's default)"


def _precision_advice(fit: Fit) -> str:
    if fit.settings.precision != "fp32":
        return ", inside fit only"
    if fit.device.type != "cuda":
        return ", with PyTorch's settings"
    if torch.cuda.get_device_capability(fit.device)[0] < 8:
        return ", with PyTorch's settings (this GPU has no tf32 and bf16; fp16 is available)"
    products = torch.get_float32_matmul_precision()
    return f", with PyTorch's settings (matrix products: {products}); tf32 and bf16 would be several times faster"


def facts_of(fit: Fit) -> dict[str, Any]:
    """The facts about a fit for run.json."""
    identity = fit.state.identity
    values = {**identity["limits"], **identity["fixed"], **identity["free"]}
    settings = {name: values[name] for name in _SETTINGS if values[name] not in (None, DEFAULT_MONITOR)}
    with suppress(ValueError):
        settings["lr"] = float(settings["lr"])  # unless it is a schedule or a mapping
    if identity["hparams"]:
        settings["hparams"] = identity["hparams"]
    return {
        "plan": fit.describe(),
        "seed": fit.ctx.seed,
        "device": str(fit.device),
        "precision": fit.settings.precision,
        "model": type(fit.state.model).__name__,
        "optimizer": repr(fit.state.optimizer),
        "settings": settings,
    }


def begin_event(fit: Fit) -> Event:
    """The first event of a fit: what the readers of the record have to know."""
    metrics: dict[str, Any] = {"loss": {"direction": "min", "unit": ""}}
    for metric in (*fit.state.totals.metrics, *fit.valid_metrics, *fit.meters):
        metrics[metric.name] = {"direction": metric.direction, "unit": metric.unit}
        if isinstance(metric, ConfusionMatrix) and metric.labels:
            metrics[metric.name]["labels"] = list(metric.labels)
    monitor = fit.settings.monitor
    declared = metrics.get(str(monitor).partition("/")[2], {})
    if monitor is not None and declared.get("direction") != fit.settings.mode:  # for this data set only
        metrics[monitor] = {"direction": fit.settings.mode, "unit": declared.get("unit", "")}
    extra = {
        **limits_of(fit),
        "batches": fit.ctx.batches,
        "validate_every": fit.settings.validate_every or "epoch",
        "metrics": metrics,
        "monitor": monitor,
        "valid": list(fit.valid),
        "model": type(fit.state.model).__name__,
        "parameters": _count_parameters(fit),
        "device": str(fit.device),
        "seed": fit.ctx.seed,
        "plan": fit.describe(),
    }
    return Event("begin", time.time(), fit.ctx.epoch, 0, fit.ctx.update, extra=extra)


def _count_parameters(fit: Fit) -> int:
    return sum(parameter.numel() for parameter in named_parameters(fit.state.model).values())
