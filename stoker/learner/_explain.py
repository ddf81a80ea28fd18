"""`Learner.explain`: what a fit would do, and why."""

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from stoker._select import assign, describe, named_parameters
from stoker.checkpoint import Checkpoint
from stoker.data import Loader
from stoker.distributed import local_device, world
from stoker.engine import Fit, preserve_rng, upgrade_state
from stoker.learner._arguments import FitArguments
from stoker.learner._describe import list_changes
from stoker.learner._prepare import choose_fused, prepare
from stoker.learner._resume import find_run, is_finished, seed_of, store_of

if TYPE_CHECKING:
    from stoker.learner._learner import Learner

# The loop: depth, what happens, and the hook that is called there.
_LOOP = [
    (0, "begin", "on_fit_begin"),
    (0, "for each epoch", "on_epoch_begin"),
    (1, "train", "on_train_begin"),
    (1, "for each batch", "on_train_batch_begin"),
    (2, "{forward}", "on_train_batch_after_pred"),
    (2, "{loss}", "on_train_batch_after_loss"),
    (2, "gradients{accumulate}", "on_train_batch_after_backward"),
    (2, "{update}", "on_train_batch_after_step"),
    (2, "count the update{ema}", "on_update"),
    (2, "{train_metrics}", "on_train_batch_end"),
    (1, "record the metrics of the epoch", "on_train_end"),
    (1, "{validate}", "on_valid_begin"),
    (1, "for each batch, in evaluation mode", "on_valid_batch_begin"),
    (2, "forward", "on_valid_batch_after_pred"),
    (2, "loss", "on_valid_batch_after_loss"),
    (2, "{valid_metrics}", "on_valid_batch_end"),
    (1, "record the metrics", "on_valid_end"),
    (1, "{keep}", "on_validation"),
    (0, "end the epoch", "on_epoch_end"),
    (0, "after Ctrl-C: finish the batch, then end the epoch", "on_interrupt"),
    (0, "after an exception", "on_exception"),
    (0, "end: {result}", "on_fit_end"),
]
_NO_CHECKPOINT = "has no complete checkpoint and starts again"


def explain(learner: "Learner", arguments: FitArguments) -> str:
    """Describes a fit that is prepared and not run; any rank may call it alone."""
    here = world()
    own = local_device(here)
    with preserve_rng(), torch.cuda.device(own) if here.size > 1 and own.type == "cuda" else nullcontext():
        prepared = prepare(learner, arguments, seed=seed_of(find_run(arguments)), world=here, dry=True)
        fit = prepared.fit
        fit.state.model.to(prepared.home)
    parts = {"Plan": fit.describe(), "Data": _data(fit), "Parameters": _parameters(fit, learner), "Loop": _loop(fit)}
    if arguments.run is not None:
        saving = _describe_saving(arguments.checkpoint_settings)
        parts["Run"] = [f"{Path(arguments.run)}: {_describe_run(fit, arguments)}", saving]
    return "\n\n".join("\n".join([title, *(f"  {line}" for line in lines)]) for title, lines in parts.items())


def _data(fit: Fit) -> list[str]:
    loaders: dict[str, Loader] = {"train": fit.train, **fit.valid}
    return [f"{name:<10} {_describe_loader(loader)}" for name, loader in loaders.items()]


def _describe_loader(loader: Loader) -> str:
    try:
        size = f"{loader.samples:,} samples in {len(loader):,} batches"
    except TypeError:
        size = "a stream of unknown length"
    order = "in its own order" if loader.shuffle is None else f"shuffled by (seed {loader.shuffle}, epoch)"
    return f"{size}, {order}{f', {loader.workers} workers' if loader.workers else ''}"


def _parameters(fit: Fit, learner: "Learner") -> Iterable[str]:
    """A table of the parameters with their optimizers and learning rates."""
    model = fit.state.model
    parameters = named_parameters(model)
    optimizer = choose_fused(learner.optimizer, model, fit.device)
    optimizers = optimizer if isinstance(optimizer, Mapping) else {"*": optimizer}
    rates = learner.lr if isinstance(learner.lr, Mapping) else {"*": learner.lr}
    optimizer_keys = assign({key: key for key in optimizers}, parameters, model)
    rate_keys = assign({key: key for key in rates}, parameters, model)
    rows: dict[tuple[str, str, str], list[str]] = {}
    for name, parameter in parameters.items():
        if parameter.requires_grad:
            rate = rates[rate_keys[name]]
            pattern = describe(rate_keys[name]).strip("'")
            row = (pattern, optimizers[optimizer_keys[name]].to_code(), _describe_rate(rate))
        else:
            row = ("frozen", "–", "–")
        rows.setdefault(row, []).append(name)
    table = [("pattern", "parameters", "optimizer", "lr")]
    for (pattern, optimizer, rate), names in rows.items():
        count = sum(parameters[name].numel() for name in names)
        few = ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} more"
        table.append((pattern, f"{few} ({count:,})", optimizer, rate))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]


def _describe_rate(rate: Any) -> str:
    return f"{rate:g}" if isinstance(rate, int | float) else str(rate)


def _loop(fit: Fit) -> list[str]:
    words = _loop_words(fit)
    lines: list[str] = []
    for depth, what, hook in _LOOP:
        if hook.startswith("on_valid") and not fit.valid:
            continue
        listeners = [type(each).__name__ for each in fit.hooks.listeners(hook)]
        called = f"   ◂ {hook}: {', '.join(listeners)}" if listeners else ""
        lines.append(f"{'  ' * depth}{what.format(**words)}{called}")
    return lines


def _loop_words(fit: Fit) -> dict[str, str]:
    settings, state, supervised = fit.settings, fit.state, fit.step.supervised
    model = type(state.model).__name__
    update = ["check that loss and gradients are finite"]
    update += [f"clip values to {settings.clip_value:g}"] if settings.clip_value else []
    update += [f"clip the norm to {settings.clip_norm:g}"] if settings.clip_norm else []
    keeps_best = settings.keep == "best"
    words = {
        "accumulate": "",
        "update": f"{', '.join(update)}, then step",
        "ema": "" if state.ema is None else f", update the EMA of the weights (decay {state.ema.decay:g})",
        "train_metrics": _describe_metrics(state.totals.metrics),
        "valid_metrics": _describe_metrics(fit.valid_metrics),
        "validate": f"validate on {', '.join(fit.valid)}",
        "keep": f"keep the weights if {settings.monitor} is the best so far" if keeps_best else "keep no weights",
        "result": "the best weights are loaded into the model"
        if fit.valid and keeps_best
        else "the model keeps its last weights",
    }
    if supervised is None:
        words |= {"forward": f"{model}.train_step(batch)", "loss": "the loss that it returned"}
    else:
        loss = getattr(supervised.loss, "__name__", type(supervised.loss).__name__)
        words |= {"forward": f"{model}(inputs)", "loss": f"{loss}(predictions, targets)"}
    if settings.accumulate > 1:
        window = f"accumulated over {settings.accumulate} batches"
        words["accumulate"] = f", {window} (weighted by samples; the last window of an epoch may be shorter)"
    if state.loss_scale is not None:
        words["update"] += " (fp16: unscaled before the check)"
    if settings.validate_every:
        words["validate"] += f", every {settings.validate_every} updates"
    return words


def _describe_metrics(metrics: Any) -> str:
    return f"update {', '.join(['loss', *(metric.name for metric in metrics)])} (on the device)"


def _describe_run(fit: Fit, arguments: FitArguments) -> str:
    """Whether the run would start, continue or be returned."""
    run = find_run(arguments)
    if run is None:
        exists = (Path(str(arguments.run)) / "run.json").exists() and not arguments.should_resume
        return "already contains a run: fit raises an error; resume=True continues it" if exists else "is new"
    store = store_of(run)
    found = store.newest()
    saved = found.saved
    if saved is None:
        return _NO_CHECKPOINT
    found = found._replace(state=upgrade_state(found.state))
    changes = list_changes(found.state["identity"]["fixed"], fit.state.identity["fixed"])
    if changes and arguments.should_resume != "force":
        return f"was started with other settings ({'; '.join(changes)}): fit raises an error"
    if is_finished(fit, found):
        return f"is finished ({saved.ended}): fit returns its result and trains nothing"
    if not saved.resumable:
        saved = store.newest(lambda saved: saved.resumable).saved
    if saved is None:
        return _NO_CHECKPOINT
    return f"continues from checkpoint {saved.name}: epoch {saved.epoch}, batch {saved.batch}, update {saved.update}"


def _describe_saving(settings: Checkpoint | None) -> str:
    if settings is None:
        return "never saved (checkpoint=False), so it cannot be resumed"
    every = f"{settings.every} updates" if isinstance(settings.every, int) else settings.every
    thread = ", by a thread" if settings.background else ""
    kept = f"the last {settings.keep_last}" if settings.keep_last > 1 else "the last one"
    if settings.keep_best is not None:
        kept += f" and the best by {settings.keep_best}"
    is_one = settings.keep_last == 1 and settings.keep_best is None
    return f"saved every {every} and at the end{thread}; {kept} {'is' if is_one else 'are'} kept"
