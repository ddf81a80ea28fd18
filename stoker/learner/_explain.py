"""`Learner.explain`: what a fit would do, and why."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from html import escape
from typing import TYPE_CHECKING, Any

import torch

from stoker._select import assign, describe, named_parameters
from stoker._text import format_size, html_text
from stoker.checkpoint import Checkpoint, choose_left_out, count_bytes
from stoker.distributed import local_device, world
from stoker.engine import Fit, check_state, explain_bad_state, preserve_rng
from stoker.learner._arguments import FitArguments
from stoker.learner._describe import as_text, list_changes, loaders_of
from stoker.learner._prepare import choose_fused, prepare
from stoker.learner._resume import find_run, is_finished, seed_of, store_of

if TYPE_CHECKING:
    from stoker.learner._learner import Learner


class Explanation(str):
    """The text of `Learner.explain`. An interactive session and a notebook show it line by line."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        parts = [part.partition("\n") for part in self.split("\n\n")]
        return f"<div>{''.join(f'<b>{escape(title)}</b>{html_text(lines)}' for title, _, lines in parts)}</div>"


def explain(learner: "Learner", arguments: FitArguments) -> Explanation:
    """Describes a fit that is prepared and not run; any rank may call it alone."""
    here = world()
    device = local_device(here)
    with preserve_rng(), torch.cuda.device(device) if here.size > 1 and device.type == "cuda" else nullcontext():
        prepared = prepare(learner, arguments, seed=seed_of(find_run(arguments)), world=here, dry=True)
        fit = prepared.fit
        fit.state.model.to(prepared.home)
        if fit.state.loss is not None:
            fit.state.loss.to(prepared.home)
    parts: dict[str, Sequence[str]] = {
        "Plan": fit.describe(),
        "Data": [f"{name:<10} {loader.describe()}" for name, loader in loaders_of(fit).items()],
        "Parameters": list(_parameters(fit, learner, prepared.lr)),
        "Loop": list(_loop(fit)),
    }
    if arguments.run is not None:
        state = f"{arguments.run}: {_describe_run(fit, arguments)}"
        parts["Run"] = [state, _describe_saving(arguments.checkpoint_settings), *_describe_frozen(fit, arguments)]
    texts = ("\n".join([title, *(f"  {line}" for line in lines)]) for title, lines in parts.items())
    return Explanation("\n\n".join(texts))


def _parameters(fit: Fit, learner: "Learner", lr: Any) -> Iterator[str]:
    """Groups of parameters with their optimizers and learning rates."""
    model = fit.state.trained
    parameters = named_parameters(model)
    optimizer = choose_fused(learner.optimizer, model, fit.device)
    optimizers = assign(optimizer if isinstance(optimizer, Mapping) else {"*": optimizer}, parameters, model)
    rates = lr if isinstance(lr, Mapping) else {"*": lr}
    selectors = assign({selector: selector for selector in rates}, parameters, model)
    groups: dict[str, list[str]] = {}
    for name, parameter in parameters.items():
        group = "frozen"
        if parameter.requires_grad:
            rate = as_text(rates[selectors[name]])
            group = f"{describe(selectors[name])}: {optimizers[name].to_code()}, lr {rate}"
        groups.setdefault(group, []).append(name)
    for group, names in groups.items():
        count = sum(parameters[name].numel() for name in names)
        few = ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} more"
        yield f"{group}: {few} ({count:,})"


def _loop(fit: Fit) -> Iterator[str]:
    """The loop, with the callbacks that are called at each place."""
    settings, state, supervised = fit.settings, fit.state, fit.step.supervised
    model, keeps_best = type(state.model).__name__, settings.keep == "best" and settings.monitor is not None

    def line(depth: int, text: str, hook: str) -> str:
        callbacks = ", ".join(type(callback).__name__ for callback in fit.hooks.listeners(hook))
        return f"{'  ' * depth}{text}{f'   ◂ {hook}: {callbacks}' if callbacks else ''}"

    yield line(0, "begin", "on_fit_begin")
    yield line(0, "for each epoch", "on_epoch_begin")
    yield line(1, "train", "on_train_begin")
    yield line(1, "for each batch", "on_train_batch_begin")
    if supervised is None:
        step = fit.step.steps.train
        assert step is not None
        call = "(batch)" if step.function is None else "(model, batch)"
        yield line(2, f"{step.name}{call}", "on_train_batch_after_pred")
        yield line(2, "the loss that it returned", "on_train_batch_after_loss")
    else:
        loss = getattr(supervised.loss, "__name__", type(supervised.loss).__name__)
        yield line(2, f"{model}(inputs)", "on_train_batch_after_pred")
        yield line(2, f"{loss}(predictions, targets)", "on_train_batch_after_loss")
    gradients = "gradients"
    if settings.accumulate > 1:
        gradients += f", accumulated over {settings.accumulate} batches (weighted by samples; the last window of an "
        gradients += "epoch may be shorter)"
    yield line(2, gradients, "on_train_batch_after_backward")
    update = "check that loss and gradients are finite"
    update += f", clip values to {settings.clip_value:g}" if settings.clip_value else ""
    update += f", clip the norm to {settings.clip_norm:g}" if settings.clip_norm else ""
    update += ", then step" if state.loss_scale is None else ", then step (fp16: unscaled before the check)"
    yield line(2, update, "on_train_batch_after_step")
    ema = "" if state.ema is None else f", update the EMA of the weights (decay {state.ema.decay:g})"
    yield line(2, f"count the update{ema}", "on_update")
    yield line(2, _describe_metrics(state.totals.metrics), "on_train_batch_end")
    yield line(1, "record the metrics of the epoch", "on_train_end")
    kept = f"keep the weights if {settings.monitor} is the {'lowest' if settings.mode == 'min' else 'highest'} so far"
    monitors_training = str(settings.monitor).startswith("train/")
    if keeps_best and monitors_training:
        yield f"  {kept}"
    if fit.valid:
        every = f", every {settings.validate_every} updates" if settings.validate_every else ""
        yield line(1, f"validate on {', '.join(fit.valid)}{every}", "on_valid_begin")
        yield line(1, "for each batch, in evaluation mode", "on_valid_batch_begin")
        yield line(2, "forward", "on_valid_batch_after_pred")
        yield line(2, "loss", "on_valid_batch_after_loss")
        yield line(2, _describe_metrics(fit.valid_metrics), "on_valid_batch_end")
        yield line(1, "record the metrics", "on_valid_end")
        yield line(1, "keep no weights" if not keeps_best or monitors_training else kept, "on_validation")
    yield line(0, "end the epoch", "on_epoch_end")
    yield line(0, "after Ctrl-C: finish the batch, then end the epoch", "on_interrupt")
    yield line(0, "after an exception", "on_exception")
    kept = "the best weights are loaded into the model" if keeps_best else "the model keeps its last weights"
    yield line(0, f"end: {kept}", "on_fit_end")


def _describe_metrics(metrics: Sequence[Any]) -> str:
    return f"update {', '.join(['loss', *(metric.name for metric in metrics)])} (on the device)"


@explain_bad_state()
def _describe_run(fit: Fit, arguments: FitArguments) -> str:
    """Whether the run would start, continue or be returned."""
    run = find_run(arguments)
    if run is None:
        exists = os.path.exists(arguments.directory / "run.json") and not arguments.should_resume
        return "already contains a run: fit raises an error; resume=True continues it" if exists else "is new"
    store = store_of(run)
    newest = store.newest()
    saved, others = newest.saved, ""
    if saved is not None:
        check_state(newest.state)
        changes = list_changes(newest.state["identity"]["fixed"], fit.state.identity["fixed"])
        if changes and arguments.should_resume != "force":
            return f"was started with other settings ({'; '.join(changes)}): fit raises an error"
        changes += list_changes(newest.state["identity"]["free"], fit.state.identity["free"])
        others = f", with other settings: {'; '.join(changes)}" if changes else ""
        if is_finished(fit, newest):
            return f"is finished ({saved.ended}): fit returns its result and trains nothing"
        if not saved.resumable:
            saved = store.newest(lambda saved: saved.resumable).saved
    if saved is None:
        return "has no complete checkpoint and starts again"
    position = f"epoch {saved.epoch}, batch {saved.batch}, update {saved.update}"
    return f"continues from checkpoint {saved.name}: {position}{others}"


def _describe_saving(settings: Checkpoint | None) -> str:
    if settings is None:
        return "never saved (checkpoint=False), so it cannot be resumed"
    every = f"{settings.every} updates" if isinstance(settings.every, int) else settings.every
    thread = ", by a thread" if settings.background else ""
    by = "the monitored metric" if settings.keep_best is True else settings.keep_best
    best = f", and the best by {by}" if by else ""
    return f"saved every {every} and at the end{thread}; kept: the last {settings.keep_last}{best}"


def _describe_frozen(fit: Fit, arguments: FitArguments) -> list[str]:
    """What checkpoints leave out."""
    parameters = named_parameters(fit.state.model)
    left_out = {name: parameters[name] for name in choose_left_out(parameters, fit.settings.frozen)}
    if not left_out or arguments.checkpoint_settings is None:
        return []
    size = format_size(count_bytes(left_out))
    return [f'without {size} of frozen parameters, only their fingerprints; Checkpoint(frozen="save") includes them']
