"""A fit from the call to its end: the run directory, the console, the random numbers, the device and back."""

import io
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TextIO, cast

from stoker.learner._plan import beginning, facts_of
from stoker.learner._prepare import prepare
from stoker.learner._spec import Spec
from stoker.learner._wish import Wish, check_limits
from stoker.loop import Fit, put_back, restore, running, seeded, set_random_state, train
from stoker.record import Record, Run
from stoker.show import console


def start(spec: Spec, wish: Wish, *, show: bool) -> Fit:
    """Makes everything ready and trains."""
    with seeded(spec.seed):
        fit = prepare(spec, wish)
        with on_device(fit):
            # The last thing before it starts: what could not be made ready leaves no run behind.
            if wish.run is not None:
                run = Run.create(wish.run, config=wish.config, facts=facts_of(fit))
                fit.record = fit.ctx.record = run.record
                _write_lines(run)
            with watched(fit.record, show), running(fit):
                fit.record.append(beginning(fit))
                train(fit)
    return fit


def go_on(fit: Fit, *, epochs: int | None, updates: int | None, minutes: float | None, show: bool) -> None:
    """Trains on from the last weights, for so much more, as if the fit had not ended."""
    check_limits(epochs=epochs, updates=updates, minutes=minutes)
    ctx = fit.ctx
    fit.settings = replace(
        fit.settings,
        epochs=None if epochs is None else ctx.epoch + epochs,
        updates=None if updates is None else ctx.update + updates,
        minutes=minutes,
    )
    ctx.epochs, ctx.updates_planned, ctx.started = fit.settings.epochs, fit.settings.updates, time.monotonic()
    ctx.stopping, fit.interrupted = None, False
    fit.states = [callback.state_dict() for callback in fit.hooks]
    with put_back(), on_device(fit), watched(fit.record, show):
        if fit.random is not None:
            set_random_state(fit.random)
        if fit.last is not None:
            restore(fit.model, fit.last)
            fit.last = None
        with running(fit):
            fit.record.append(beginning(fit))
            train(fit)


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


@contextmanager
def on_device(fit: Fit) -> Iterator[None]:
    """The model where it computes, and back home."""
    fit.model.to(fit.device)
    try:
        yield
    finally:
        fit.model.to(fit.home)
