"""Resuming a run: its newest complete checkpoint, whether the settings are the same, and its record."""

import os
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from stoker.checkpoint import Found, Saved, Saver, Store, model_state
from stoker.distributed import World, is_sharded, run_on_rank_zero
from stoker.engine import Checkpointer, Ending, Fit, upgrade_state, use_best_weights
from stoker.errors import BadFile, NoSuchMetric, StateMismatch, did_you_mean
from stoker.learner._arguments import FitArguments
from stoker.learner._describe import (
    facts_of,
    has_other_data,
    has_other_metrics,
    has_other_parameters,
    list_changes,
    resume_warnings,
)
from stoker.learner._prepare import Prepared
from stoker.record import Control, Event, Record, Run

_ALONE = World()
_FOLDER = "checkpoints"
_MARGIN = 15.0  # seconds that an orderly end takes besides saving


class LoadedState(NamedTuple):
    """A checkpoint that was loaded into a fit; `changes` are the settings that differ."""

    state: Mapping[str, Any]
    changes: list[str]
    warnings: list[str]


class OpenedRun(NamedTuple):
    """A run that this process writes to; `found` is the checkpoint it resumes from, None for a new run."""

    run: Run
    found: Found | None
    warnings: list[str]


def find_run(arguments: FitArguments, world: World = _ALONE) -> Run | None:
    """The existing run to resume, or None to start a new one."""
    if arguments.run is None or not arguments.should_resume:
        return None
    exists = world.broadcast_object((arguments.directory / "run.json").exists())
    return Run.open(arguments.directory) if exists else None


def seed_of(run: Run | None) -> int | None:
    """The seed that a run drew when it began."""
    seed = None if run is None else run.facts.get("seed")
    return seed if isinstance(seed, int) else None


def store_of(run: Run, world: World = _ALONE) -> Store:
    """The checkpoints of a run."""
    return Store(run.path / _FOLDER, run=run.id, world=world)


def find_checkpoint(fit: Fit, store: Store, accepts: Callable[[Saved], bool] = lambda saved: True) -> Found:
    """The newest complete checkpoint, with the state that this rank continues from."""
    model = fit.state.model
    found = store.newest(accepts, like=model if is_sharded(model) else None)
    if found.saved is None:
        return found
    state = fit.ranks.own_state(upgrade_state(found.state), fit.state, fit.state.totals.metrics)
    return found._replace(state=state)


def load_finished(prepared: Prepared, run: Run, arguments: FitArguments) -> list[str] | None:
    """Loads the result of a finished run and returns warnings; returns None if the run is not finished."""
    fit = prepared.fit
    store = store_of(run, fit.ranks.world)
    if not any(saved.ended is not None for saved in store.saved()[-1:]):
        return None
    found = find_checkpoint(fit, store)
    if found.saved is None or not is_finished(fit, found):
        return None
    loaded = load_state(fit, found.state, force=arguments.should_resume == "force")
    fit.ctx.stopping = found.saved.ended
    run_on_rank_zero(fit.ranks.world, lambda: _complete_end(fit, run, store_of(run)))
    fit.ctx.record = Record.open(run.path)
    last_weights = use_best_weights(fit)
    # For `continue_`; the rest of the state, which may be large, is freed.
    prepared.resumed = {name: found.state[name] for name in ("callbacks", "random")}
    prepared.ending = Ending(last_weights, found.state["random"], found.state["progress"]["seconds"])
    checkpoint = found._replace(state={})
    prepared.reopen = lambda: _reopen(prepared, arguments, checkpoint)
    return [*(f"{change}; the result is that of the old setting" for change in loaded.changes), *loaded.warnings]


def is_finished(fit: Fit, found: Found) -> bool:
    """Whether a checkpoint is the result of a fit, and the present limits do not ask for more."""
    if found.saved is None or found.saved.ended is None:
        return False
    progress, limits = found.state["progress"], fit.state.identity["limits"]
    if limits == found.state["identity"]["limits"]:
        return True
    epochs = progress["epoch"] - (0 if found.saved.resumable else 1)  # the last one was cut short
    done = {"epochs": epochs, "updates": progress["update"], "minutes": progress["seconds"] / 60}
    return any(limit is not None and done[name] >= limit for name, limit in limits.items())


def _complete_end(fit: Fit, run: Run, store: Store) -> None:
    """Does what a kill in its last moments kept a run from doing: its last events, and the end of a deletion."""
    lacks_end = run.record.summary()["state"] == "running"
    if run.writer is not None or not (lacks_end or store.has_leftovers):
        return
    reopened = Run.resume(run.path)
    store.clean()
    if lacks_end:
        fit.ctx.record = reopened.record
        fit.recorder.write_end(reopened.record.summary()["seconds"], fit.state.progress.skipped)
    reopened.close()


def _reopen(prepared: Prepared, arguments: FitArguments, found: Found) -> Run:
    """Opens a finished run for writing."""
    fit = prepared.fit
    run = _open_on_all_ranks(fit, arguments, Run.resume)
    fit.ctx.record = run.record
    prepared.reopen = None
    _set_up_checkpoints(fit, arguments, OpenedRun(run, found, []))
    return run


def open_run(prepared: Prepared, arguments: FitArguments, *, resume: bool) -> OpenedRun:
    """Creates or resumes the run directory, and loads the newest complete checkpoint into the fit."""
    fit = prepared.fit
    run = _open_on_all_ranks(fit, arguments, Run.resume if resume else _creator(arguments))
    found, warnings = None, list[str]()
    force = arguments.should_resume == "force"
    try:
        if resume:
            found = find_checkpoint(fit, store_of(run, fit.ranks.world), lambda saved: saved.resumable)
            if found.saved is not None:
                loaded = load_state(fit, found.state, force=force)
                warnings = [f"{change}; the run continues with the new setting" for change in loaded.changes]
                warnings += loaded.warnings
                prepared.resumed = loaded.state
            elif found.problems and not force:
                problems = "\n  ".join([f"no checkpoint in {str(run.path / _FOLDER)!r} is complete", *found.problems])
                raise BadFile(f'{problems}\nRestore one from a copy, or start again with resume="force"')
        opened = OpenedRun(run, found, warnings)
        fit.ctx.record = run.record
        if fit.ranks.world.is_first:
            fit.recorder.update_facts, fit.recorder.control = run.update_facts, Control(run.path)
        _set_up_checkpoints(fit, arguments, opened)
    except BaseException:
        run.close()
        raise
    return opened


def _open_on_all_ranks(fit: Fit, arguments: FitArguments, open_: Callable[..., Run]) -> Run:
    """Opens the run on rank 0 for writing, and on the other ranks for reading."""
    directory, world = arguments.directory, fit.ranks.world
    run = run_on_rank_zero(world, lambda: open_(directory, config=arguments.config, facts=facts_of(fit)))
    run = Run.open(directory) if run is None else run
    world.barrier()  # rank 0 writes nothing more until all have read
    return run


def _creator(arguments: FitArguments) -> Callable[..., Run]:
    """Returns a function that creates a run. A kill in its first moments may have left a directory without run.json."""
    directory = arguments.directory
    was_begun = arguments.should_resume and (directory / "events.jsonl").exists()

    def create(*args: Any, **kwargs: Any) -> Run:
        if was_begun and (problems := Store(directory / _FOLDER).newest(lambda saved: False).problems):
            raise BadFile(
                f"there are checkpoints in {str(directory)!r} ({problems[0]}), but its run.json, which identifies the "
                "run, is missing: restore it, or choose another run directory"
            )
        return (Run.resume if was_begun else Run.create)(*args, **kwargs)

    return create


def _set_up_checkpoints(fit: Fit, arguments: FitArguments, opened: OpenedRun) -> None:
    settings, store = arguments.checkpoint_settings, store_of(opened.run, fit.ranks.world)
    if settings is None:
        return
    _check_keep_best(fit, settings.keep_best)
    store.clean()
    complete = None if opened.found is None or opened.found.saved is None else opened.found.saved.name
    names = [saved.name for saved in store.saved() if saved.resumable]
    damaged = names[names.index(complete) + 1 :] if complete in names else names
    policy = settings.policy(fit.ctx.record.direction)
    saver = Saver(store, policy, background=settings.background, ignored=damaged)
    fit.checkpointer = Checkpointer(saver, fit.state, fit.ranks, fit.signals, fit.requests, is_timed=policy.uses_clock)
    fit.requests.can_save = True
    deadline = settings.find_deadline(os.environ)
    fit.signals.deadline = None if deadline is None else deadline - _MARGIN


def _check_keep_best(fit: Fit, name: str | None) -> None:
    """Raises now, and not after the first epoch, if no validation set has a metric of this name."""
    if fit.step.supervised is None or name is None or name.partition("/")[0] not in fit.valid:
        return
    metrics = ["loss", *(metric.name for metric in fit.valid_metrics)]
    known = [f"{each}/{metric}" for each in fit.valid for metric in metrics]
    if not any(name == each or name.startswith(f"{each}/") for each in known):
        raise NoSuchMetric(
            f"keep_best={name!r}, but there is no such metric{did_you_mean(name, known) or '.'} "
            f"The metrics are: {', '.join(known)}"
        )


def load_state(fit: Fit, state: Mapping[str, Any], *, force: bool) -> LoadedState:
    """Loads a checkpoint into the fit; raises `StateMismatch` if the settings are not the same.

    With `force`, seed, data, optimizer and precision may differ; parts that do not match start from scratch.
    """
    saved, own = state["identity"], fit.state.identity
    changes = list_changes(saved["fixed"], own["fixed"])
    if changes and not force:
        can_force = not has_other_parameters(saved["fixed"], own["fixed"])
        text = "\n  ".join(["the run was started with other settings", *changes])
        advice = ', or continue anyway with resume="force"' if can_force else ""
        raise StateMismatch(f"{text}\nUse the same settings, or another run directory{advice}")
    warnings = resume_warnings(fit)
    free_changes = list_changes(saved["free"], own["free"])
    if changes:
        state, notes = _replace_other_parts(fit, state)
        warnings += notes
    try:
        fit.state.load_state_dict(state, fit.learning_rates)
    except StateMismatch as error:
        if not changes:
            raise
        raise StateMismatch(
            f'{error}\nresume="force" cannot load the weights of another model: use the same model, or another run '
            "directory"
        ) from None
    return LoadedState(state, [*changes, *free_changes], warnings)


def _replace_other_parts(fit: Fit, state: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[str]]:
    """Replaces the parts of a state that do not match the present settings by new ones; also returns warnings."""
    train = fit.state
    warnings: list[str] = []
    # Which parameters are frozen is a setting of the present model.
    changed: dict[str, Any] = {"model": {**state["model"], "trainable": model_state(train.model)["trainable"]}}
    saved, own = state["identity"]["fixed"], train.identity["fixed"]
    new_optimizer = train.optimizer.state_dict()
    try:
        train.optimizer.load_state_dict(state["optimizer"])
    except StateMismatch:
        changed["optimizer"] = new_optimizer
        warnings.append("the optimizer starts from scratch: the saved state is that of another optimizer")
    if train.ema is not None and state["average"] is None:
        changed["average"] = state["model"]
    if train.loss_scale is not None and state["loss_scale"] is None:
        changed["loss_scale"] = train.loss_scale.state_dict()
    progress, is_inside_epoch = dict(state["progress"]), state["progress"]["stage"] == "train"
    if has_other_data(saved, own):
        changed["loader"] = {}
    if is_inside_epoch and has_other_data(saved, own):
        progress |= {"stage": "closed", "epoch": progress["epoch"] - 1, "batch": 0, "needs_validation": False}
        changed |= {"accumulators": {}, "totals": train.totals.state_dict(), "gradient_norms": []}
        warnings.append(f"epoch {progress['epoch'] + 1} starts again: its batches have changed")
    elif has_other_metrics(saved, own):
        changed |= {"totals": train.totals.state_dict(), "gradient_norms": []}
        if is_inside_epoch:
            warnings.append(f"the metrics of epoch {progress['epoch']} only include its batches from here on")
    return {**state, **changed, "progress": progress}, warnings


def record_resume(fit: Fit, opened: OpenedRun) -> None:
    """Cuts the record back to the checkpoint, and adds warnings."""
    found, record, ctx = opened.found, opened.run.record, fit.ctx
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
    for text in opened.warnings:
        ctx.warn(text)
