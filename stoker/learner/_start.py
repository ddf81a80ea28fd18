"""A fit from the call to its end: the run directory, the console, the random numbers, the device and back."""

import io
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import TextIO, cast

import torch
from torch import nn

from stoker.distributed import is_sharded, joined, propagate_failures
from stoker.learner._plan import beginning
from stoker.learner._prepare import prepare
from stoker.learner._resume import earlier, finished, open_run, seed_of, tell_resume
from stoker.learner._same import check_same, wished
from stoker.learner._spec import Spec
from stoker.learner._wish import Wish, check_limits
from stoker.loop import Fit, put_back, restore, running, seed_of_rank, seeded, train
from stoker.record import Event, Record, Run
from stoker.view.console import console

_TERMINATED = 143  # what a shell says of a process that SIGTERM has ended


@contextmanager
def started(spec: Spec, wish: Wish, *, show: bool) -> Iterator[tuple[Fit, bool]]:
    """Makes everything ready, and says whether there is anything to train: a run that is over is given back as it is.

    A context, and not a function that calls the loop: a traceback of the user's is a frame shorter.
    """
    world = joined(spec.device, timeout=spec.parallel.timeout)
    with propagate_failures(world), seeded(spec.seed):
        check_same(world, lambda: wished(spec, wish))
        before = earlier(wish, world)
        fit = prepare(spec, wish, seed=seed_of(before), world=world)
        with drawing_apart(fit), on_device(fit.model, fit.device, fit.home):
            notes = None if before is None else finished(fit, before, wish)
            if notes is not None:
                _tell_over(fit, wish, notes, show and world.is_first)
                yield fit, False
                return
            # The last thing before it starts: what could not be made ready leaves no run behind.
            opened = None if wish.run is None else open_run(fit, wish, again=before is not None)
            if opened is not None and world.is_first:
                _write_lines(opened.run)
            with watched(fit.record, show and world.is_first), running(fit):
                if opened is not None:
                    tell_resume(fit, opened)
                fit.record.append(beginning(fit))
                yield fit, True
    if fit.terminated:
        raise SystemExit(_TERMINATED)


def go_on(fit: Fit, *, epochs: int | None, updates: int | None, minutes: float | None, show: bool) -> None:
    """Trains on from the last weights, for so much more, as if the fit had not ended."""
    check_limits(epochs=epochs, updates=updates, minutes=minutes)
    check_same(fit.world, lambda: {"epochs": epochs, "updates": updates, "minutes": minutes})
    ctx = fit.ctx
    if fit.reopen is not None:
        run = fit.reopen()
        if fit.world.is_first:
            _write_lines(run)
    fit.settings = replace(
        fit.settings,
        epochs=None if epochs is None else ctx.epoch + epochs,
        updates=None if updates is None else ctx.update + updates,
        minutes=None if minutes is None else fit.trained / 60 + minutes,
    )
    ctx.epochs, ctx.updates_planned = fit.settings.epochs, fit.settings.updates
    ctx.started = time.monotonic() - fit.trained
    ctx.stopping, fit.interrupted, fit.cut, ctx._requests.can_save = None, False, False, fit.saver is not None
    fit.common, ctx._requests.pending = False, None if fit.accord is None else {}
    if fit.resumed is None:
        callbacks = {name: callback.state_dict() for name, callback in fit.hooks.stateful.items()}
        fit.resumed = {"callbacks": callbacks, "random": fit.random}
    shown = watched(fit.record, show and fit.world.is_first)
    with propagate_failures(fit.world), put_back(), on_device(fit.model, fit.device, fit.home), shown:
        if fit.last is not None:
            restore(fit.model, fit.last)
            fit.last = None
        with running(fit):
            fit.record.append(beginning(fit))
            train(fit)


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
    return nullcontext() if fit.split.is_first else seeded(seed_of_rank(fit.ctx.seed, fit.split.rank))


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
