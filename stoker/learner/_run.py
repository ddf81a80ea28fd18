"""Everything around a fit: signals, random numbers, the device, the run directory, the console, `continue_`."""

import io
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TextIO, cast

import torch
from torch import nn

from stoker.distributed import as_parallel, is_sharded, join, propagate_failures
from stoker.engine import (
    TERMINATED,
    Fit,
    Kept,
    Settings,
    StopSignals,
    begin,
    check_valid_sets,
    continue_,
    length_of,
    preserve_rng,
    restore_weights,
    resume,
    run,
    seed_of_rank,
    seed_rng,
)
from stoker.learner._arguments import FitArguments, check_limits
from stoker.learner._describe import as_text, begin_event
from stoker.learner._monitor import check_metric_names
from stoker.learner._prepare import Prepared, prepare
from stoker.learner._ranks import check_ranks_agree, describe_arguments
from stoker.learner._rates import Planned, complete_rates, find_early_ends, make_learning_rates
from stoker.learner._resume import find_run, load_finished, open_run, seed_of
from stoker.record import Event, Record, Run

if TYPE_CHECKING:
    from stoker.learner._learner import Learner


# A callback may train another model, and hooks run without gradients.
@torch.inference_mode(False)
@torch.enable_grad()
def run_fit(learner: "Learner", arguments: FitArguments, *, show: bool) -> Prepared:
    """Prepares a fit and trains; a run that is already finished is only loaded."""
    signals = StopSignals()
    with signals.handle(can_save=arguments.run is not None):
        prepared = _prepare_and_run(learner, arguments, signals, show=show)
    if signals.terminated:
        raise SystemExit(TERMINATED)
    return prepared


def _prepare_and_run(learner: "Learner", arguments: FitArguments, signals: StopSignals, *, show: bool) -> Prepared:
    parallel = as_parallel(learner.parallel)
    world = join(learner.device, timeout=parallel.timeout)
    show = show and world.is_first
    with propagate_failures(world), seed_rng(learner.seed):
        check_ranks_agree(world, lambda: describe_arguments(learner, arguments, parallel))
        existing = find_run(arguments, world)
        prepared = prepare(learner, arguments, seed=seed_of(existing), world=world, signals=signals)
        fit, split = prepared.fit, prepared.fit.ranks.data_world
        # Dropout differs between the shares of a batch. Ranks that have the same rows draw the same numbers.
        own_seed = None if split.is_first else seed_of_rank(fit.ctx.seed, split.rank)
        with seed_rng(own_seed), _for_training(prepared):
            signals.hold()  # from here on Ctrl-C is delayed, so that what is opened is closed
            warnings = None if existing is None else load_finished(prepared, existing, arguments)
            if warnings is not None:
                _report_finished(arguments, str(fit.ctx.stopping), warnings, show)
                return prepared
            saving = arguments.checkpoint_settings if arguments.run is not None else None
            recorded = existing.record.columns if existing is not None else ()
            keep_best = None if saving is None else saving.keep_best
            unmeasured = check_metric_names(fit, prepared.metrics, keep_best, recorded)
            check_valid_sets(fit)
            opened = None
            if arguments.run is not None:
                # Opened last, so that an error before this point leaves no run behind.
                opened = open_run(fit, arguments, resume=existing is not None)
                if world.is_first:
                    _write_log(opened.run)

            def write_begin() -> None:
                if opened is not None:
                    opened.write_resume()
                _write_begin(prepared)
                for text in unmeasured:
                    fit.ctx.warn(text)

            def start() -> None:
                if opened is None or opened.saved is None:
                    begin(fit, write_begin)
                else:
                    resume(fit, opened.saved, write_begin)

            with _console(fit.ctx.record, show):
                prepared.ending = run(fit, start)
    return prepared


@torch.inference_mode(False)
@torch.enable_grad()
def continue_fit(
    prepared: Prepared, *, epochs: int | None, updates: int | None, minutes: float | None, show: bool
) -> None:
    """Continues from the last weights, for that much longer, as if the fit had not ended."""
    check_limits(epochs=epochs, updates=updates, minutes=minutes)
    signals, ctx = prepared.fit.signals, prepared.fit.ctx
    limits = {"epochs": epochs, "updates": updates, "minutes": minutes}
    check_ranks_agree(prepared.fit.ranks.world, lambda: limits)
    signals.reset()
    with signals.handle(can_save=ctx.record.path is not None):
        signals.hold()
        _continue(prepared, limits, show=show)


def _continue(prepared: Prepared, limits: Mapping[str, Any], *, show: bool) -> None:
    fit, ending, ctx = prepared.fit, prepared.ending, prepared.fit.ctx
    world = fit.ranks.world
    assert ending is not None
    epochs, updates, minutes = limits["epochs"], limits["updates"], limits["minutes"]
    settings = replace(
        fit.settings,
        epochs=None if epochs is None else ctx.epoch + epochs,
        updates=None if updates is None else ctx.update + updates,
        minutes=None if minutes is None else ending.seconds / 60 + minutes,
    )
    lr = complete_rates(prepared.given_lr, _planned(fit, settings))
    if prepared.reopen is not None:
        opened = prepared.reopen()
        if world.is_first:
            _write_log(opened)
    fit.settings = fit.step.settings = settings
    before, prepared.lr = as_text(prepared.lr), lr
    fit.learning_rates = make_learning_rates(lr, fit.state.trained)
    ctx.epochs, ctx.updates_planned = fit.settings.epochs, fit.settings.updates
    ctx.started = time.monotonic() - ending.seconds
    ctx.stopping = None
    fit.requests.pending = None if fit.agreement is None else {}
    kept, prepared.kept = prepared.kept, None
    if kept is None:
        callbacks = {name: callback.state_dict() for name, callback in fit.hooks.stateful.items()}
        kept = Kept(callbacks, ending.random)

    def write_begin() -> None:
        _write_begin(prepared)
        if (now := as_text(lr)) != before:
            ctx.warn(f"the learning rate is as long as the fit: {before} before, {now} from update {ctx.update + 1} on")

    shown = _console(ctx.record, show and world.is_first)
    with propagate_failures(world), preserve_rng(), _for_training(prepared), shown:
        if ending.last_weights is not None:
            restore_weights(fit.state.trained, ending.last_weights)
        prepared.ending = run(fit, lambda: continue_(fit, kept, write_begin))


def _write_begin(prepared: Prepared) -> None:
    """Writes the first event of a fit, and warns about learning rates that end long before it."""
    fit = prepared.fit
    fit.ctx.record.append(begin_event(fit))
    for text in find_early_ends(prepared.lr, _planned(fit, fit.settings)):
        fit.ctx.warn(text)


def _planned(fit: Fit, settings: Settings) -> Planned:
    batches = length_of(fit.train)
    return Planned.of(epochs=settings.epochs, updates=settings.updates, batches=batches, accumulate=settings.accumulate)


@contextmanager
def _for_training(prepared: Prepared) -> Iterator[None]:
    """Moves the model to its device. Afterwards it is back, and in eval mode: ready to be used or exported."""
    state = prepared.fit.state
    with on_device(state.model, state.loss, prepared.fit.device, prepared.home):
        try:
            yield
        finally:
            state.model.eval()


@contextmanager
def on_device(model: nn.Module, loss: Any, device: torch.device, home: torch.device) -> Iterator[None]:
    """Moves the model and a loss module to a device and back; shards stay where they are."""
    modules = [module for module in (model, loss) if isinstance(module, nn.Module) and not is_sharded(module)]
    for module in modules:
        module.to(device)
    try:
        yield
    finally:
        for module in modules:
            module.to(home)


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
    from stoker.view.console import console

    listener = console(record)
    unsubscribe = record.subscribe(listener)
    try:
        yield
    finally:
        unsubscribe()
        listener.close()


def _write_log(run: Run) -> None:
    """Writes the plain lines of the console to the log of the run, which itself writes notes, warnings and errors."""
    from stoker.view.console import console

    class Log(io.TextIOBase):
        def write(self, text: str, /) -> int:
            if text.strip():
                run.log(text.rstrip("\n"))
            return len(text)

    lines = console(run.record, stream=cast(TextIO, Log()), live=False)
    run.record.subscribe(lambda event: None if event.kind in ("note", "warning", "stop", "error") else lines(event))
