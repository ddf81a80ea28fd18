"""Going on with a run: its newest whole checkpoint, whether this is the same training, and where the record stands."""

import os
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from stoker.checkpoint import Found, Saved, Saver, Store, model_state
from stoker.distributed import World, is_sharded
from stoker.errors import BadFile, NoSuchMetric, StateMismatch, did_you_mean
from stoker.learner._first import only_by_first
from stoker.engine import Checkpointer, Ending, Fit, upgrade_state, use_best_weights
from stoker.learner._identity import changes, doubts, other_data, other_metrics, other_shapes
from stoker.learner._plan import facts_of
from stoker.learner._prepare import Prepared
from stoker.learner._wish import Wish
from stoker.record import Control, Event, Record, Run

_ALONE = World()
_FOLDER = "checkpoints"
_MARGIN = 15.0  # seconds that an orderly end takes beside the saving


class Opened(NamedTuple):
    """A run that this process writes to, and what it goes on from; None for one that has just begun."""

    run: Run
    found: Found | None
    notes: list[str]


def earlier(wish: Wish, world: World = _ALONE) -> Run | None:
    """The run that is to be gone on with, as it lies there; None where there is none, or it is not to be."""
    if wish.run is None or not wish.resumes or not world.told((wish.folder / "run.json").exists()):
        return None
    return Run.open(wish.folder)


def store_of(run: Run, world: World = _ALONE) -> Store:
    """The checkpoints of a run."""
    return Store(run.path / _FOLDER, run=run.id, world=world)


def _newest(fit: Fit, store: Store, wanted: Callable[[Saved], bool] = lambda saved: True) -> Found:
    """The newest whole checkpoint, with the state as this rank goes on from it."""
    model = fit.state.model
    found = store.newest(wanted, like=model if is_sharded(model) else None)
    if found.saved is None:
        return found
    state = fit.ranks.own_state(upgrade_state(found.state), fit.state, fit.state.totals.metrics)
    return found._replace(state=state)


def finished(prepared: Prepared, run: Run, wish: Wish) -> list[str] | None:
    """Where the run is over already, the fit becomes what came out of it, and nothing is trained or written.

    Returns what is worth a warning then, and None for a run that is not over.
    """
    fit = prepared.fit
    store = store_of(run, fit.ranks.world)
    if not any(saved.ended is not None for saved in store.saved()[-1:]):
        return None
    found = _newest(fit, store)
    if found.saved is None or not is_over(fit, found):
        return None
    notes = accept(fit, found.state, force=wish.resumes == "force")
    fit.ctx.stopping = found.saved.ended
    only_by_first(fit.ranks.world, lambda: _finish(fit, run, store_of(run)))
    fit.ctx.record = Record.open(run.path)
    last_weights = use_best_weights(fit)
    # For `continue_`; the rest of the state, which may be large, is freed.
    prepared.resumed = {name: found.state[name] for name in ("callbacks", "random")}
    prepared.ending = Ending(last_weights, found.state["random"], found.state["progress"]["seconds"])
    there = found._replace(state={})
    prepared.reopen = lambda: _reopened(prepared, wish, there)
    return notes


def _finish(fit: Fit, run: Run, store: Store) -> None:
    """What a kill in its last moments kept a run from doing: its last words, and the end of a deletion."""
    silent = run.record.summary()["state"] == "running"
    if run.writer is not None or not (silent or store.has_leftovers):
        return
    last = Run.resume(run.path)
    store.clean()
    if silent:
        fit.ctx.record = last.record
        fit.recorder.write_end(last.record.summary()["seconds"], fit.state.progress.skipped)
    last.close()


def _reopened(prepared: Prepared, wish: Wish, found: Found) -> Run:
    """The run of a fit that had ended already, to write to after all."""
    fit = prepared.fit
    run = _taken(fit, wish, Run.resume)
    fit.ctx.record = run.record
    prepared.reopen = None
    _make_durable(fit, wish, Opened(run, found, []))
    return run


def is_over(fit: Fit, found: Found) -> bool:
    """Whether a checkpoint is the outcome of a fit that this one, with its limits, has nothing to add to."""
    return found.saved is not None and found.saved.ended is not None and not _wants_more(fit, found)


def _wants_more(fit: Fit, found: Found) -> bool:
    """Whether the limits allow for more than those that the run has reached."""
    loop, limits = found.state["progress"], fit.state.identity["limits"]
    if limits == found.state["identity"]["limits"]:
        return False
    whole = loop["epoch"] - (0 if found.saved is None or found.saved.resumable else 1)  # one that was cut short is not
    done = {"epochs": whole, "updates": loop["update"], "minutes": loop["seconds"] / 60}
    return all(limit is None or done[name] < limit for name, limit in limits.items())


def open_run(prepared: Prepared, wish: Wish, *, again: bool) -> Opened:
    """The run's directory, new or resumed, with the fit at its newest whole checkpoint."""
    fit = prepared.fit
    run = _taken(fit, wish, Run.resume if again else _made(wish))
    found, notes = None, list[str]()
    try:
        if again:
            found = _newest(fit, store_of(run, fit.ranks.world), lambda saved: saved.resumable)
            if found.saved is not None:
                notes = accept(fit, found.state, force=wish.resumes == "force")
                prepared.resumed = found.state
            if found.saved is None and found.problems and wish.resumes != "force":
                raise _nothing_whole(run, found)
        opened = Opened(run, found, notes)
        fit.ctx.record = run.record
        if fit.ranks.world.is_first:
            fit.recorder.update_facts, fit.recorder.control = run.update_facts, Control(run.path)
        _make_durable(fit, wish, opened)
    except BaseException:
        run.close()
        raise
    return opened


def _taken(fit: Fit, wish: Wish, take: Callable[..., Run]) -> Run:
    """The run, written by rank 0 from now on; the others have what it says so far, and write nothing."""
    run = only_by_first(fit.ranks.world, lambda: take(wish.folder, config=wish.config, facts=facts_of(fit)))
    run = Run.open(wish.folder) if run is None else run
    fit.ranks.world.barrier()  # rank 0 says nothing more until all have read that
    return run


def _made(wish: Wish) -> Callable[..., Run]:
    """How to make a run that is not there. A kill in its first moments may have left a directory without one in it."""
    begun = wish.resumes and (wish.folder / "events.jsonl").exists()

    def make(*args: Any, **kwargs: Any) -> Run:
        if begun and (lost := Store(wish.folder / _FOLDER).newest(lambda saved: False).problems):
            raise BadFile(
                f"there are checkpoints in {str(wish.folder)!r} ({lost[0]}), and its run.json, which says whose they "
                "are, is not there: put it back, or choose another run="
            )
        return (Run.resume if begun else Run.create)(*args, **kwargs)

    return make


def _nothing_whole(run: Run, found: Found) -> BadFile:
    told = "\n  ".join([f"no checkpoint in {str(run.path / _FOLDER)!r} is whole", *found.problems])
    return BadFile(f'{told}\nMend them (another copy, another disk), or begin anew with resume="force"')


def _make_durable(fit: Fit, wish: Wish, opened: Opened) -> None:
    wanted, store = wish.checkpoints, store_of(opened.run, fit.ranks.world)
    if wanted is None:
        return
    _check_number(fit, wanted.keep_best)
    store.clean()
    found = opened.found
    whole = None if found is None or found.saved is None else found.saved.name
    names = [saved.name for saved in store.saved() if saved.resumable]
    damaged = names[names.index(whole) + 1 :] if whole in names else names
    policy = wanted.policy(fit.ctx.record.direction)
    saver = Saver(store, policy, background=wanted.background, ignored=damaged)
    fit.checkpointer = Checkpointer(
        saver, fit.state, fit.ranks, fit.signals, fit.requests, is_timed=policy.uses_clock
    )
    fit.requests.can_save = True
    by = wanted.find_deadline(os.environ)
    fit.signals.deadline = None if by is None else by - _MARGIN


def _check_number(fit: Fit, name: str | None) -> None:
    """A misspelt number of a validation set is told now, and not after the first epoch."""
    numbers = ["loss", *(metric.name for metric in fit.valid_metrics)]
    known = [f"{each}/{number}" for each in fit.valid for number in numbers]
    own = fit.step.supervised is None or name is None or name.partition("/")[0] not in fit.valid
    if not own and not any(name == each or str(name).startswith(f"{each}/") for each in known):
        raise NoSuchMetric(
            f"keep_best={name!r}, and no such number is counted{did_you_mean(str(name), known) or '.'} "
            f"There are: {', '.join(known)}"
        )


def accept(fit: Fit, state: Mapping[str, Any], *, force: bool) -> list[str]:
    """Puts the fit where the state stood, if it is the same training; returns what is worth a warning.

    With `force`, another seed, data, optimizer or precision is accepted: what can't be gone on with begins anew.
    """
    saved, own = state["identity"], fit.state.identity
    lines = changes(saved["fixed"], own["fixed"])
    if lines and not force:
        or_force = "" if other_shapes(saved["fixed"], own["fixed"]) else ', or go on all the same with resume="force"'
        told = "\n  ".join(["this is not the training that the run began with", *lines])
        raise StateMismatch(f"{told}\nPut it back as it was, choose another run={or_force}")
    warnings = [f"{line}; the run goes on with that" for line in [*lines, *changes(saved["free"], own["free"])]]
    warnings += doubts(fit)
    if not lines:
        fit.state.load_state_dict(state, fit.learning_rates)
        return warnings
    return warnings + _forced(fit, state)


def _forced(fit: Fit, state: Mapping[str, Any]) -> list[str]:
    """What can be taken over of a state that is not of this training; a model that doesn't fit can't."""
    notes: list[str] = []
    # What is frozen is as the user wants it now.
    changed: dict[str, Any] = {"model": {**state["model"], "trainable": model_state(fit.state.model)["trainable"]}}
    saved, own = state["identity"]["fixed"], fit.state.identity["fixed"]
    fresh = fit.state.optimizer.state_dict()
    try:
        fit.state.optimizer.load_state_dict(state["optimizer"])
    except StateMismatch:
        changed["optimizer"] = fresh
        notes.append("the optimizer begins anew: its state is of another one")
    if fit.state.ema is not None and state["ema"] is None:
        changed["ema"] = state["model"]
    if fit.state.loss_scale is not None and state["loss_scale"] is None:
        changed["loss_scale"] = fit.state.loss_scale.state_dict()
    loop, inside = dict(state["progress"]), state["progress"]["stage"] == "train"
    if other_data(saved, own):
        changed["loader"] = {}
    if inside and other_data(saved, own):
        loop |= {"stage": "closed", "epoch": loop["epoch"] - 1, "batch": 0, "needs_validation": False}
        changed |= {"accumulators": {}, "totals": fit.state.totals.state_dict(), "gradient_norms": []}
        notes.append(f"epoch {loop['epoch'] + 1} begins anew: its batches are no longer the same")
    elif other_metrics(saved, own):
        changed |= {"totals": fit.state.totals.state_dict(), "gradient_norms": []}
        notes += [f"the numbers of epoch {loop['epoch']} count its batches from here on only"] if inside else []
    try:
        fit.state.load_state_dict({**state, **changed, "progress": loop}, fit.learning_rates)
    except StateMismatch as error:
        raise StateMismatch(
            f'{error}\nresume="force" can\'t go on with another model: put it back as it was, or choose another run='
        ) from None
    return notes


def tell_resume(fit: Fit, opened: Opened) -> None:
    """The record as it was at the checkpoint, and what there is to say about it."""
    found, record = opened.found, opened.run.record
    if found is None:
        if record.events:  # of a process that was killed before it had a run
            record.rewind(0, Event("resume", time.time(), extra={"checkpoint": None}))
        return
    saved, ctx = found.saved, fit.ctx
    kept = found.state["progress"]["events"] if saved is not None else 0
    there = len(record.events)
    extra = {"checkpoint": None if saved is None else saved.name, "batches": ctx.batches, "pid": os.getpid()}
    event = Event("resume", time.time(), ctx.epoch, ctx.batch_number, ctx.update, extra=extra)
    record.rewind(min(kept, there), event)
    if saved is None and there:
        ctx.warn("the run has no whole checkpoint, and begins anew; what its record said before no longer counts")
    for problem in found.problems:
        ctx.warn(f"a checkpoint was skipped: {problem}")
    if kept > there:
        ctx.warn(f"events.jsonl lacks {kept - there} events that were in it at the checkpoint")
    for note in opened.notes:
        ctx.warn(note)


def seed_of(run: Run | None) -> int | None:
    """The seed that the run drew when it began, for a learner that names none."""
    seed = None if run is None else run.facts.get("seed")
    return seed if isinstance(seed, int) else None
