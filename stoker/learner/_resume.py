"""Run directories: creates or opens them, and loads the newest complete checkpoint if the settings are the same."""

import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from stoker.checkpoint import Saved, model_state
from stoker.distributed import World, is_sharded, run_on_rank_zero
from stoker.engine import (
    Checkpointer,
    Ending,
    Fit,
    Kept,
    SystemMetrics,
    check_state,
    explain_bad_state,
    own_state,
    use_best_weights,
)
from stoker.errors import BadFile, StateMismatch
from stoker.learner._arguments import FitArguments
from stoker.learner._describe import facts_of, limits_of, list_changes
from stoker.learner._prepare import Prepared
from stoker.record import Best, Control, Event, Record, Run

if TYPE_CHECKING:
    from stoker.checkpoint import Found, Store

_ALONE = World()
_FOLDER = "checkpoints"
_MARGIN = 15.0  # seconds that an orderly end takes besides saving
_BATCHES = {  # the settings that batches depend on
    *("samples", "batches", "batch_size", "order", "generators", "sampling", "buckets", "sources", "seed", "accumulate")
}


def find_run(arguments: FitArguments, world: World = _ALONE) -> Run | None:
    """The existing run to resume, or None to start a new one."""
    if arguments.run is None or not arguments.should_resume:
        return None
    exists = world.broadcast_object(os.path.exists(arguments.directory / "run.json"))  # False if it can't be known
    return Run.open(arguments.directory) if exists else None


def seed_of(run: Run | None) -> int | None:
    """The seed that a run drew when it began."""
    seed = None if run is None else run.facts.get("seed")
    return seed if isinstance(seed, int) else None


def store_of(run: Run, world: World = _ALONE) -> "Store":
    """The checkpoints of a run."""
    from stoker.checkpoint import Store

    return Store(run.path / _FOLDER, run=run.id, world=world)


@explain_bad_state()
def _find_checkpoint(fit: Fit, run: Run, accepts: Callable[[Saved], bool] = lambda saved: True) -> "Found":
    """The newest complete checkpoint, with the state that this rank continues from."""
    model = fit.state.model
    found = store_of(run, fit.ranks.world).newest(accepts, like=model if is_sharded(model) else None)
    if found.saved is None:
        return found
    check_state(found.state)
    return found._replace(state=own_state(fit.ranks, found.state, fit.state, fit.state.totals.metrics))


# --- a finished run


def load_finished(prepared: Prepared, run: Run, arguments: FitArguments) -> list[str] | None:
    """Loads the result of a finished run and returns warnings; returns None if the run is not finished.

    No hook is called: `resume` of the engine is for runs that train.
    """
    fit = prepared.fit
    last = store_of(run, fit.ranks.world).saved()[-1:]
    if not last or last[0].ended is None:
        return None
    found = _find_checkpoint(fit, run)
    if found.saved is None or not is_finished(fit, found):
        return None
    state, changes, warnings = _compare_state(fit, found.state, force=arguments.should_resume == "force")
    with explain_bad_state():
        fit.state.load_position(state, fit.learning_rates)
        fit.state.load_rest(state)
    fit.ctx.stopping = found.saved.ended
    run_on_rank_zero(fit.ranks.world, lambda: _complete_end(fit, run))
    fit.ctx.record = Record.open(run.path)
    last_weights = use_best_weights(fit)
    prepared.kept = Kept(state["callbacks"], state["random"])
    prepared.ending = Ending(last_weights, state["random"], state["progress"]["seconds"])
    prepared.reopen = partial(_reopen, prepared, arguments, found.saved.name, state["identity"]["free"])
    warnings += [f"a checkpoint was skipped: {problem}" for problem in found.problems]
    return [*(f"{change}; the result is that of the old setting" for change in changes), *warnings]


@explain_bad_state()
def is_finished(fit: Fit, found: "Found") -> bool:
    """Whether a checkpoint is the result of a fit, and the present limits do not ask for more."""
    if found.saved is None or found.saved.ended is None:
        return False
    progress, limits = found.state["progress"], limits_of(fit)
    if limits == found.state["identity"]["limits"]:
        return True
    epochs = progress["epoch"] - (0 if found.saved.resumable else 1)  # the last one was cut short
    done = {"epochs": epochs, "updates": progress["update"], "minutes": progress["seconds"] / 60}
    return any(limit is not None and done[name] >= limit for name, limit in limits.items())


def _complete_end(fit: Fit, run: Run) -> None:
    """Writes the last events of a run, and ends a deletion, if the process was killed before it had done so."""
    store = store_of(run)
    lacks_end = run.record.summary()["state"] == "running"
    if run.writer is not None or not (lacks_end or store.has_leftovers):
        return
    reopened = Run.resume(run.path)
    store.clean()
    if lacks_end:
        fit.ctx.record = reopened.record
        fit.recorder.write_end(reopened.record.summary()["seconds"], fit.state.progress.skipped)
    reopened.close()


def _reopen(prepared: Prepared, arguments: FitArguments, checkpoint: str, settings: Mapping[str, Any]) -> Run:
    """Opens a finished run for writing; `settings` are the free ones that it was trained with."""
    fit = prepared.fit
    run = _open_on_all_ranks(fit, arguments, Run.resume)
    fit.ctx.record = run.record
    if (text := _explain_dropped_best(fit, fit.ctx.best, settings)) is not None:
        fit.ctx.best, fit.state.best_weights = None, None
        fit.ctx.warn(text)
    prepared.reopen = None
    _set_up_checkpoints(fit, arguments, run, checkpoint)
    return run


# --- a new run, or one that continues


class OpenRun(NamedTuple):
    """A run that is open for writing, and the state that it continues from."""

    run: Run
    saved: Mapping[str, Any] | None  # None for a new run, and for one without a complete checkpoint
    write_resume: Callable[[], None]  # cuts the record back to the checkpoint; called when the position is loaded


def open_run(fit: Fit, arguments: FitArguments, *, resume: bool) -> OpenRun:
    """Creates or resumes the run directory, and compares the newest complete checkpoint with the fit.

    Nothing is loaded, and nothing is written to an existing run.
    """
    force = arguments.should_resume == "force"
    run = _open_on_all_ranks(fit, arguments, Run.resume if resume else partial(_create, arguments))
    found = saved = None
    warnings: list[str] = []
    try:
        if resume:
            found = _find_checkpoint(fit, run, lambda saved: saved.resumable)
            if found.saved is not None:
                saved, changes, notes = _compare_state(fit, found.state, force=force)
                warnings = [f"{change}; the run continues with the new setting" for change in changes] + notes
                best = saved["progress"]["best"] if fit.state.has_best_weights(saved) else None
                text = _explain_dropped_best(fit, None if best is None else Best(*best), saved["identity"]["free"])
                if text is not None:
                    saved = {**saved, "best": None, "progress": {**saved["progress"], "best": None}}
                    warnings.append(text)
            elif found.problems and not force:
                problems = "\n  ".join([f"no checkpoint in {str(run.path / _FOLDER)!r} is complete", *found.problems])
                raise BadFile(f'{problems}\nRestore one from a copy, or start again with resume="force"')
        fit.ctx.record = run.record
        if fit.ranks.world.is_first:
            fit.recorder.update_facts, fit.recorder.control = run.update_facts, Control(run.path)
            fit.recorder.system = SystemMetrics(fit.device) if arguments.system_metrics else None
        _set_up_checkpoints(fit, arguments, run, None if found is None or found.saved is None else found.saved.name)
    except BaseException:
        run.close()
        raise
    return OpenRun(run, saved, partial(_write_resume, fit, found, warnings))


def _open_on_all_ranks(fit: Fit, arguments: FitArguments, open_: Callable[..., Run]) -> Run:
    """Opens the run on rank 0 for writing, and on the other ranks for reading."""
    directory, world = arguments.directory, fit.ranks.world
    run = run_on_rank_zero(world, lambda: open_(directory, config=arguments.config, facts=facts_of(fit)))
    run = Run.open(directory) if run is None else run
    world.barrier()  # rank 0 writes nothing more until all have read
    return run


def _create(arguments: FitArguments, directory: Any, **contents: Any) -> Run:
    """Creates a run. A kill in its first moments may have left a directory without run.json, which is used."""
    if not (arguments.should_resume and os.path.exists(directory / "events.jsonl")):
        return Run.create(directory, **contents)
    from stoker.checkpoint import Store

    if problems := Store(directory / _FOLDER).newest(lambda saved: False).problems:
        raise BadFile(
            f"there are checkpoints in {str(directory)!r} ({problems[0]}), but its run.json, which identifies the "
            "run, is missing: restore it, or choose another run directory"
        )
    return Run.resume(directory, **contents)


def _set_up_checkpoints(fit: Fit, arguments: FitArguments, run: Run, complete: str | None) -> None:
    """Creates what saves the fit; `complete` names the checkpoint that was loaded, and newer ones are damaged."""
    settings, store = arguments.checkpoint_settings, store_of(run, fit.ranks.world)
    if settings is None:
        return
    store.clean()
    names = [saved.name for saved in store.saved() if saved.resumable]
    damaged = names[names.index(complete) + 1 :] if complete in names else names
    policy = settings.policy(fit.ctx.record.direction, fit.settings.monitor)
    from stoker.checkpoint import Saver

    saver = Saver(store, policy, background=settings.background, ignored=damaged)
    fit.checkpointer = Checkpointer(saver, fit.state, fit.ranks, fit.signals, fit.requests, is_timed=policy.uses_clock)
    fit.requests.can_save = True
    deadline = settings.find_deadline(os.environ)
    fit.signals.deadline = None if deadline is None else deadline - _MARGIN


def _write_resume(fit: Fit, found: "Found | None", warnings: list[str]) -> None:
    """Cuts the record back to the checkpoint, and adds warnings; `found` is None for a new run."""
    record, ctx = fit.ctx.record, fit.ctx
    if found is None:
        if record.events:  # of a process that was killed before it had written run.json
            record.rewind(0, Event("resume", time.time(), extra={"checkpoint": None}))
        return
    saved = found.saved
    expected = found.state["progress"]["events"] if saved is not None else 0
    existing = len(record.events)
    extra = {"checkpoint": None if saved is None else saved.name, "batches": ctx.batches, "pid": os.getpid()}
    event = Event("resume", time.time(), ctx.epoch, ctx.batch_number, ctx.update, extra=extra)
    record.rewind(min(expected, existing), event)
    if saved is None and existing:
        ctx.warn("the run has no complete checkpoint and starts again; its earlier events no longer count")
    for problem in found.problems:
        ctx.warn(f"a checkpoint was skipped: {problem}")
    if expected > existing:
        ctx.warn(f"events.jsonl lacks {expected - existing} events that it had at the checkpoint")
    for text in warnings:
        ctx.warn(text)


# --- a state that was saved with other settings


@explain_bad_state()
def _compare_state(
    fit: Fit, state: Mapping[str, Any], *, force: bool
) -> tuple[Mapping[str, Any], list[str], list[str]]:
    """Compares a saved state with a fit; returns the state to load, the settings that differ, and warnings.

    Raises `StateMismatch` if fixed settings or the shapes of tensors differ. With `force`, seed, data, optimizer and
    precision may differ; parts that do not match are replaced by new ones. Changes nothing.
    """
    saved, own = state["identity"], fit.state.identity
    changes = list_changes(saved["fixed"], own["fixed"])
    can_force = _without_frozen(saved["fixed"]) == _without_frozen(own["fixed"])
    if changes and not force:
        text = "\n  ".join(["the run was started with other settings", *changes])
        advice = ', or continue anyway with resume="force"' if can_force else ""
        raise StateMismatch(f"{text}\nUse the same settings, or another run directory{advice}")
    if changes and not can_force:
        lines = [line for line in changes if line.startswith("model: ")]
        text = "\n  ".join(["the state does not match the model", *lines])
        raise StateMismatch(
            f'{text}\nresume="force" cannot load the weights of another model: use the same model, or another run '
            "directory"
        )
    warnings = _find_shape_warnings(fit)
    if changes:
        state, notes = _replace_other_parts(fit, state)
        warnings += notes
    fit.state.check_shapes(state)
    return state, [*changes, *list_changes(saved["free"], own["free"])], warnings


def _explain_dropped_best(fit: Fit, best: Best | None, settings: Mapping[str, Any]) -> str | None:
    """Why the best weights so far are dropped: another metric has chosen them. None if they are kept."""
    changed = list_changes(settings, {"monitor": fit.state.identity["free"]["monitor"]})
    if best is None or fit.settings.monitor is None or (best.name == fit.settings.monitor and not changed):
        return None
    return f"the best weights so far were chosen by {best.name} and are dropped: the best are chosen from here on"


def _without_frozen(settings: Mapping[str, Any]) -> dict[str, str]:
    """Names, shapes and dtypes of parameters: if they differ, not even `resume="force"` can load them."""
    model = settings["model"]
    return {name: kind.removesuffix(", frozen") for name, kind in model.items()} if isinstance(model, Mapping) else {}


def _find_shape_warnings(fit: Fit) -> list[str]:
    """Warnings about a compiled model whose code depends on the shapes that the process has seen before."""
    contexts = [getattr(module, "dynamo_ctx", None) for module in fit.state.model.modules()]
    if not any(context is not None and getattr(context, "_dynamic", False) is None for context in contexts):
        return []
    return [
        "the model is compiled, and its code may depend on the shapes that a process has seen before; with "
        "torch.compile(..., dynamic=False) every process has the same code, and so the same bits"
    ]


def _replace_other_parts(fit: Fit, state: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[str]]:
    """Replaces the parts of a state that do not match the present settings by new ones; also returns warnings."""
    current = fit.state
    saved, own = state["identity"]["fixed"], current.identity["fixed"]
    changed = {name for name in own if saved[name] != own[name]}
    warnings: list[str] = []
    # Which parameters are frozen is a setting of the present model.
    parts: dict[str, Any] = {"model": {**state["model"], "trainable": model_state(current.model)["trainable"]}}
    try:
        current.optimizer.check_state_dict(state["optimizer"])
    except StateMismatch:
        parts["optimizer"] = current.optimizer.state_dict()
        warnings.append("the optimizer starts from scratch: the saved state is that of another optimizer")
    if current.loss_scale is not None and state["loss_scale"] is None:
        parts["loss_scale"] = current.loss_scale.state_dict()
    progress = dict(state["progress"])
    is_inside_epoch = progress["stage"] == "train"
    if changed & _BATCHES:
        parts["loader"] = {}
    if is_inside_epoch and changed & _BATCHES:
        progress |= {"stage": "closed", "epoch": progress["epoch"] - 1, "batch": 0, "needs_validation": False}
        parts |= {"accumulators": {}, "totals": current.totals.state_dict(), "gradient_norms": []}
        warnings.append(f"epoch {progress['epoch'] + 1} starts again: its batches have changed")
    elif "metrics" in changed:
        parts |= {"totals": current.totals.state_dict(), "gradient_norms": []}
        if is_inside_epoch:
            warnings.append(f"the metrics of epoch {progress['epoch']} only include its batches from here on")
    return {**state, **parts, "progress": progress}, warnings
