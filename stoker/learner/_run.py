"""Runs a fit: random numbers, device, run directory, console, and what remains of it for `continue_`."""

import io
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, TextIO, cast

import torch
from torch import nn

from stoker.distributed import as_parallel, is_sharded, joined, propagate_failures
from stoker.engine import preserve_rng, restore_weights, run, seed_of_rank, seed_rng
from stoker.learner._arguments import FitArguments, check_limits
from stoker.learner._describe import begin_event
from stoker.learner._prepare import Prepared, prepare
from stoker.learner._ranks import check_ranks_agree, describe_arguments
from stoker.learner._resume import find_run, load_finished, open_run, record_resume, seed_of
from stoker.record import Event, Record, Run
from stoker.view.console import console

if TYPE_CHECKING:
    from stoker.learner._learner import Learner

_TERMINATED = 143  # the exit status of a process that SIGTERM has ended


def run_fit(learner: "Learner", arguments: FitArguments, *, show: bool) -> Prepared:
    """Prepares a fit and trains; a run that is already finished is only loaded."""
    parallel = as_parallel(learner.parallel)
    world = joined(learner.device, timeout=parallel.timeout)
    with propagate_failures(world), seed_rng(learner.seed):
        check_ranks_agree(world, lambda: describe_arguments(learner, arguments, parallel))
        existing = find_run(arguments, world)
        prepared = prepare(learner, arguments, seed=seed_of(existing), world=world)
        fit, split = prepared.fit, prepared.fit.ranks.split
        # Dropout differs between the shares of a batch. Ranks that have the same rows draw the same numbers.
        own_seed = None if split.is_first else seed_of_rank(fit.ctx.seed, split.rank)
        with seed_rng(own_seed), on_device(fit.state.model, fit.device, prepared.home):
            warnings = None if existing is None else load_finished(prepared, existing, arguments)
            if warnings is not None:
                _report_finished(arguments, str(fit.ctx.stopping), warnings, show and world.is_first)
                return prepared
            # Opened last, so that an error before this point leaves no run behind.
            opened = None if arguments.run is None else open_run(prepared, arguments, resume=existing is not None)
            if opened is not None and world.is_first:
                _write_log(opened.run)

            def begin() -> None:
                if opened is not None:
                    record_resume(fit, opened)
                fit.ctx.record.append(begin_event(fit))

            with _console(fit.ctx.record, show and world.is_first):
                prepared.ending = run(fit, resumed=prepared.resumed, on_begin=begin)
    prepared.resumed = None
    if fit.signals.terminated:
        raise SystemExit(_TERMINATED)
    return prepared


def continue_fit(
    prepared: Prepared, *, epochs: int | None, updates: int | None, minutes: float | None, show: bool
) -> None:
    """Continues from the last weights, for that much longer, as if the fit had not ended."""
    check_limits(epochs=epochs, updates=updates, minutes=minutes)
    fit, ending, ctx = prepared.fit, prepared.ending, prepared.fit.ctx
    world, model = fit.ranks.world, fit.state.model
    check_ranks_agree(world, lambda: {"epochs": epochs, "updates": updates, "minutes": minutes})
    assert ending is not None
    if prepared.reopen is not None:
        opened = prepared.reopen()
        if world.is_first:
            _write_log(opened)
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
    shown = _console(ctx.record, show and world.is_first)
    with propagate_failures(world), preserve_rng(), on_device(model, fit.device, prepared.home), shown:
        if ending.last_weights is not None:
            restore_weights(model, ending.last_weights)
        prepared.ending = run(fit, resumed=prepared.resumed, on_begin=lambda: ctx.record.append(begin_event(fit)))
    prepared.resumed = None


@contextmanager
def on_device(model: nn.Module, device: torch.device, home: torch.device) -> Iterator[None]:
    """Moves the model to a device and back; shards stay where they are."""
    if is_sharded(model):
        yield
        return
    model.to(device)
    try:
        yield
    finally:
        model.to(home)


def _report_finished(arguments: FitArguments, reason: str, warnings: Sequence[str], show: bool) -> None:
    """Shows on the console, and not in the run, that a finished run is returned."""
    record = Record()
    with _console(record, show):
        for text in warnings:
            record.append(Event("warning", text=text))
        text = f"{arguments.run} is already finished ({reason}) and is returned unchanged; more epochs continue it"
        record.append(Event("note", text=text))


@contextmanager
def _console(record: Record, show: bool) -> Iterator[None]:
    """Shows a record on the console for the length of a fit."""
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


def _write_log(run: Run) -> None:
    """Writes the plain lines of the console to the log of the run, which itself writes notes, warnings and errors."""
    lines = console(run.record, stream=cast(TextIO, _LogStream(run)), live=False)
    run.record.subscribe(lambda event: None if event.kind in ("note", "warning", "stop", "error") else lines(event))


class _LogStream(io.TextIOBase):
    """A stream that writes to the log of a run."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def write(self, text: str, /) -> int:
        if text.strip():
            self._run.log(text.rstrip("\n"))
        return len(text)
