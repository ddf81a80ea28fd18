"""What a fit would do, and why, in words: the plan, the data's way, the parameters, the loop with what hangs on it."""

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import Any

import torch

from stoker._select import assign, describe, named_parameters
from stoker.callbacks import HOOK_NAMES
from stoker.data import Loader
from stoker.distributed import device_of, world
from stoker.engine import Fit, preserve_rng
from stoker.learner._outlook import outlook
from stoker.learner._prepare import fastest, prepare
from stoker.learner._resume import earlier, seed_of
from stoker.learner._spec import Spec
from stoker.learner._wish import Wish

# The loop as it runs: depth, what happens, the milestone that is reached there.
_LOOP = [
    (0, "begin", "on_fit_begin"),
    (0, "for each epoch", "on_epoch_begin"),
    (1, "train", "on_train_begin"),
    (1, "for each batch", "on_train_batch_begin"),
    (2, "{forward}", "on_train_batch_after_pred"),
    (2, "{loss}", "on_train_batch_after_loss"),
    (2, "gradients, as a value{accumulate}", "on_train_batch_after_backward"),
    (2, "{update}", "on_train_batch_after_step"),
    (2, "count the update{average}", "on_update"),
    (2, "{train_metrics}", "on_train_batch_end"),
    (1, "the epoch's numbers to the record", "on_train_end"),
    (1, "{validate}", "on_valid_begin"),
    (1, "for each batch, on a view of the model", "on_valid_batch_begin"),
    (2, "forward", "on_valid_batch_after_pred"),
    (2, "loss", "on_valid_batch_after_loss"),
    (2, "{valid_metrics}", "on_valid_batch_end"),
    (1, "the numbers to the record", "on_valid_end"),
    (1, "{keep}", "on_validation"),
    (0, "close the epoch", "on_epoch_end"),
    (0, "after Ctrl-C: the batch is ended, then the epoch", "on_interrupt"),
    (0, "after an exception", "on_exception"),
    (0, "end: {result}", "on_fit_end"),
]


def explain(spec: Spec, wish: Wish) -> str:
    """The explanation of a fit that is made ready and not run; of several processes each may ask by itself."""
    here = world()
    own = device_of(here)
    with preserve_rng(), torch.cuda.device(own) if here.size > 1 and own.type == "cuda" else nullcontext():
        prepared = prepare(spec, wish, seed=seed_of(earlier(wish)), world=here, dry=True)
        fit = prepared.fit
        fit.state.model.to(prepared.home)
    parts = [["Plan", *(f"  {line}" for line in fit.describe())], _data(fit), _groups(fit, spec), _loop(fit)]
    parts += [["Run", *(f"  {line}" for line in outlook(fit, wish))]] if wish.run is not None else []
    return "\n\n".join("\n".join(lines) for lines in parts)


def _data(fit: Fit) -> list[str]:
    lines = ["Data", f"  train      {_way(fit.train)}"]
    lines += [f"  {name:<10} {_way(loader)}" for name, loader in fit.valid.items()]
    return lines


def _way(loader: Loader) -> str:
    try:
        size = f"{loader.samples:,} samples in {len(loader):,} batches"
    except TypeError:
        size = "a stream of unknown length"
    order = "in its own order" if loader.shuffle is None else f"shuffled by (seed {loader.shuffle}, epoch)"
    work = f", {loader.workers} workers" if loader.workers else ""
    return f"{size}, {order}{work}"


def _groups(fit: Fit, spec: Spec) -> list[str]:
    """The parameters as a table: who steps them, and at which learning rate."""
    parameters = named_parameters(fit.state.model)
    recipe = fastest(spec.optimizer, fit.state.model, fit.device)
    optimizers = recipe if isinstance(recipe, Mapping) else {"*": recipe}
    rates = spec.lr if isinstance(spec.lr, Mapping) else {"*": spec.lr}
    stepped = assign({key: key for key in optimizers}, parameters, fit.state.model)
    rated = assign({key: key for key in rates}, parameters, fit.state.model)
    rows: dict[tuple[str, str, str], list[str]] = {}
    for name, parameter in parameters.items():
        if not parameter.requires_grad:
            row = ("frozen", "–", "–")
        else:
            row = (
                describe(rated[name]).strip("'"),
                optimizers[stepped[name]].to_code(),
                _rate(rates[rated[name]]),
            )
        rows.setdefault(row, []).append(name)
    table = [("pattern", "parameters", "optimizer", "lr")]
    for (pattern, optimizer, rate), names in rows.items():
        count = sum(parameters[name].numel() for name in names)
        table.append((pattern, f"{_few(names)} ({count:,})", optimizer, rate))
    return ["Parameters", *_columns(table)]


def _rate(rate: Any) -> str:
    return f"{rate:g}" if isinstance(rate, int | float) else repr(rate) if not callable(rate) else f"{rate}"


def _few(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} more"


def _columns(rows: list[tuple[str, ...]]) -> Iterable[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _loop(fit: Fit) -> list[str]:
    words = _words(fit)
    lines = ["Loop"]
    for depth, what, milestone in _LOOP:
        if milestone.startswith("on_valid") and not fit.valid:
            continue
        listening = [type(each).__name__ for each in fit.hooks.listeners(milestone)]
        who = f"   ◂ {milestone}: {', '.join(listening)}" if listening else ""
        lines.append(f"  {'  ' * depth}{what.format(**words)}{who}")
    return lines


def _words(fit: Fit) -> dict[str, str]:
    settings, model = fit.settings, type(fit.state.model).__name__
    own = fit.step.supervised is None
    steps = ["check that loss and gradients are finite"]
    steps += [f"clip values to {settings.clip_value:g}"] if settings.clip_value else []
    steps += [f"clip the norm to {settings.clip_norm:g}"] if settings.clip_norm else []
    window = settings.accumulate
    loss = "" if own else getattr(fit.step.supervised.loss, "__name__", type(fit.step.supervised.loss).__name__)  # pyright: ignore
    return {
        "forward": f"{model}.train_step(batch)" if own else f"{model}(inputs)",
        "loss": "the loss that it gave" if own else f"{loss}(predictions, target)",
        "accumulate": ""
        if window == 1
        else f", added up over {window} batches (weighed by samples; a short rest counts)",
        "update": f"{', '.join(steps)}, then step"
        + ("" if fit.state.loss_scale is None else " (fp16: unscaled before the check)"),
        "average": "" if fit.state.ema is None else f", move the average of the weights (decay {fit.state.ema.decay:g})",
        "train_metrics": _metrics(fit.state.totals.metrics),
        "valid_metrics": _metrics(fit.valid_metrics),
        "validate": f"validate on {', '.join(fit.valid)}"
        + (f", every {settings.validate_every} updates" if settings.validate_every else ""),
        "keep": f"keep the weights if {settings.monitor} is the best so far"
        if settings.keep == "best"
        else "keep nothing",
        "result": "the best weights go into the model"
        if fit.valid and settings.keep == "best"
        else "the model keeps its last weights",
    }


def _metrics(metrics: Any) -> str:
    return "count " + ", ".join(["loss", *(metric.name for metric in metrics)]) + " (on the device)"


assert {milestone for _, _, milestone in _LOOP} <= set(HOOK_NAMES)
