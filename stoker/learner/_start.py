"""A fit from the call to its end: the run directory, the console, the random numbers, the device and back."""

import io
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import TextIO, cast

import torch
from torch import nn

from stoker.distributed import failing, is_sharded, joined
from stoker.engine import Fit, preserve_rng, restore_weights, run, seed_of_rank, seeded
from stoker.learner._plan import beginning
from stoker.learner._prepare import Prepared, prepare
from stoker.learner._resume import earlier, finished, open_run, seed_of, tell_resume
from stoker.learner._same import check_same, wished
from stoker.learner._spec import Spec
from stoker.learner._wish import Wish, check_limits
from stoker.record import Event, Record, Run
from stoker.view.console import console

_TERMINATED = 143  # what a shell says of a process that SIGTERM has ended


def start_fit(spec: Spec, wish: Wish, *, show: bool) -> Prepared:
    """Prepares a fit and trains; a run that is finished already is returned unchanged."""
    world = joined(spec.device, timeout=spec.parallel.timeout)
    with failing(world), seeded(spec.seed):
        check_same(world, lambda: wished(spec, wish))
        before = earlier(wish, world)
        prepared = prepare(spec, wish, seed=seed_of(before), world=world)
        fit = prepared.fit
        with drawing_apart(fit), on_device(fit.state.model, fit.device, prepared.home):
            notes = None if before is None else finished(prepared, before, wish)
            if notes is not None:
                _tell_over(fit, wish, notes, show and world.is_first)
                return prepared
            # The last thing before it starts: what could not be prepared leaves no run behind.
            opened = None if wish.run is None else open_run(prepared, wish, again=before is not None)
            if opened is not None and world.is_first:
                _write_lines(opened.run)

            def begin() -> None:
                if opened is not None:
                    tell_resume(fit, opened)
                fit.ctx.record.append(beginning(fit))

            with watched(fit.ctx.record, show and world.is_first):
                prepared.ending = run(fit, resumed=prepared.resumed, on_begin=begin)
    prepared.resumed = None
    if fit.signals.terminated:
        raise SystemExit(_TERMINATED)
    return prepared


def continue_fit(
    prepared: Prepared, *, epochs: int | None, updates: int | None, minutes: float | None, show: bool
) -> None:
    """Trains on from the last weights, for so much more, as if the fit had not ended."""
    check_limits(epochs=epochs, updates=updates, minutes=minutes)
    fit, ending = prepared.fit, prepared.ending
    check_same(fit.ranks.world, lambda: {"epochs": epochs, "updates": updates, "minutes": minutes})
    assert ending is not None
    ctx = fit.ctx
    if prepared.reopen is not None:
        opened = prepared.reopen()
        if fit.ranks.world.is_first:
            _write_lines(opened)
    fit.settings = fit.step.settings = replace(
        fit.settings,
        epochs=None if epochs is None else ctx.epoch + epochs,
        updates=None if updates is None else ctx.update + updates,
        minutes=None if minutes is None else ending.seconds / 60 + minutes,
    )
    ctx.epochs, ctx.updates_planned = fit.settings.epochs, fit.settings.updates
    ctx.started = time.monotonic() - ending.seconds
    ctx.stopping = None
    fit.signals.reset()
    fit.requests.pending = {} if fit.ranks.agrees else None
    if prepared.resumed is None:
        callbacks = {name: callback.state_dict() for name, callback in fit.hooks.stateful.items()}
        prepared.resumed = {"callbacks": callbacks, "random": ending.random}
    shown = watched(ctx.record, show and fit.ranks.world.is_first)
    model = fit.state.model
    with failing(fit.ranks.world), preserve_rng(), on_device(model, fit.device, prepared.home), shown:
        if ending.last_weights is not None:
            restore_weights(model, ending.last_weights)
        prepared.ending = run(fit, resumed=prepared.resumed, on_begin=lambda: ctx.record.append(beginning(fit)))
    prepared.resumed = None


def _tell_over(fit: Fit, wish: Wish, notes: Sequence[str], show: bool) -> None:
    said = Record()  # of its own: nothing has happened to the run
    with watched(said, show):
        for note in notes:
            said.append(
                Event("warning", text=note.replace("; the run goes on with that", "; this is what came before"))
            )
        text = f"{wish.run} is over already ({fit.ctx.stopping}), and is given back as it is; more epochs would go on"
        said.append(Event("note", text=text))


def _write_lines(run: Run) -> None:
    """The plain lines of the console into the run's log, whatever is shown; the run itself writes what goes wrong."""
    lines = console(run.record, stream=cast(TextIO, _Lines(run)), live=False)
    run.record.subscribe(lambda event: None if event.kind in ("note", "warning", "stop", "error") else lines(event))


class _Lines(io.TextIOBase):
    """A stream whose lines go into a run's log."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def write(self, text: str, /) -> int:
        if text.strip():
            self._run.log(text.rstrip("\n"))
        return len(text)


@contextmanager
def watched(record: Record, show: bool) -> Iterator[None]:
    """The console for the length of a fit, where it is wanted."""
    if not show:
        yield
        return
    listener = console(record)
    unsubscribe = record.subscribe(listener)
    try:
        yield
    finally:
        unsubscribe()
        listener.close()


def drawing_apart(fit: Fit) -> AbstractContextManager[None]:
    """Random numbers of its own for every share of a batch after the first: what they drop out is not the same.

    Ranks that have the same rows, and each a part of the layers, drop out the same.
    """
    return nullcontext() if fit.ranks.split.is_first else seeded(seed_of_rank(fit.ctx.seed, fit.ranks.split.rank))


@contextmanager
def on_device(model: nn.Module, device: torch.device, home: torch.device) -> Iterator[None]:
    """The model where it computes, and back home; shards stay where they are."""
    if is_sharded(model):
        yield
        return
    model.to(device)
    try:
        yield
    finally:
        model.to(home)
