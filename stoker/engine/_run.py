"""Runs a fit: with its data in place, an executor, and the best weights in the model, however it ends."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import torch

from stoker._text import format_size
from stoker.checkpoint import random_state
from stoker.data import Loader
from stoker.distributed import propagate_failures
from stoker.engine._deterministic import deterministic_algorithms
from stoker.engine._fit import Fit
from stoker.engine._heap import keep_freed_memory
from stoker.engine._plan import warn_about_plan
from stoker.engine._precision import tf32_if_requested
from stoker.engine._recompute import recompute_activations
from stoker.engine._train import train
from stoker.engine._weights import WeightCopy, copy_weights, restore_weights
from stoker.engine.executors import Executor, make_executor
from stoker.errors import NotFinite

_SHARE_FOR_DATA = 0.4  # of the device's free memory


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Ending:
    """What `continue_` needs of a fit that has ended."""

    last_weights: WeightCopy | None  # where the model was when the best weights took their place
    random: Mapping[str, Any]  # the generators
    seconds: float  # of training


def run(fit: Fit, start: Callable[[], None]) -> Ending:
    """Trains. Afterwards the model has the best weights, also if an exception ends the fit.

    `start` is called when everything is ready: `begin`, `resume` or `continue_`.
    """
    started = time.monotonic()
    ending = Ending(None, {}, 0.0)
    try:
        with (
            tf32_if_requested(fit.settings.precision),
            deterministic_algorithms(enabled=fit.settings.deterministic),
            fit.signals.interruptible(),
            propagate_failures(fit.ranks.world),
        ):
            _train_with_executor(fit, start)
            state = fit.state
            fit.ranks.broadcast_buffers([state.model, state.loss])
    except BaseException as error:
        _handle_failure(fit, error)
        raise
    finally:
        fit.checkpointer.close()
        if fit.step.reducer is not None:
            fit.step.reducer.release()
        fit.ctx.batch = None  # a finished fit frees its data
        ending = Ending(None, random_state(), time.monotonic() - fit.ctx.started)
        try:
            ending = Ending(use_best_weights(fit), ending.random, ending.seconds)
        finally:
            seconds, interrupted = time.monotonic() - started, fit.signals.interrupted
            fit.recorder.write_end(seconds, fit.state.progress.skipped, interrupted=interrupted)
            fit.recorder.record.close()
    return ending


def _train_with_executor(fit: Fit, start: Callable[[], None]) -> None:
    """Trains with an executor, and with the data on the GPU if it fits."""
    device = torch.cuda.device(fit.device) if fit.device.type == "cuda" else nullcontext()
    if fit.device.type == "cpu":
        keep_freed_memory()
    with (
        device,
        recompute_activations(fit.recomputed),
        _place_data(fit) as is_on_device,
        _open_executor(fit) as executor,
    ):
        selects_rows = (
            is_on_device
            and not fit.plan.is_eager
            and fit.train.has_row_selections
            and not fit.hooks.has("on_train_batch_begin")
            and (fit.settings.micro_batch is None or fit.train.batch_transform is None)  # which sees whole batches
        )
        start()
        warn_about_plan(fit)
        train(fit, executor, selects_rows=selects_rows)
        executor.synchronize()


@contextmanager
def _open_executor(fit: Fit) -> Iterator[Executor]:
    executor = make_executor(fit.step, fit.plan, fit.device, is_saved=fit.checkpointer.is_active)

    def synchronize() -> None:
        executor.synchronize()
        fit.recorder.flush(fit.state.totals)  # a checkpoint counts the events

    fit.checkpointer.before_saving = synchronize
    try:
        yield executor
    except NotFinite:
        raise
    except BaseException:
        with suppress(Exception):
            fit.checkpointer.discard_resume_points_from(executor.drain(), accumulate=fit.settings.accumulate)
        raise
    finally:
        fit.checkpointer.before_saving = lambda: None
        executor.close()


def _handle_failure(fit: Fit, error: BaseException) -> None:
    """Records an exception, saves the last good state, and tells callbacks."""
    position = error.position if isinstance(error, NotFinite) else None
    if position is not None:  # of a batch that was run before the current one
        fit.ctx.epoch, fit.ctx.batch_number = position
    fit.stop(f"{type(error).__name__}: {error}")
    fit.recorder.write_error(error)
    fit.checkpointer.discard_resume_points_from(position, accumulate=fit.settings.accumulate)
    fit.checkpointer.rescue(error)
    fit.hooks.fire("on_exception", fit.ctx)


def use_best_weights(fit: Fit) -> WeightCopy | None:
    """Puts the best weights into the model; returns the last ones if they are others, for `continue_`."""
    state = fit.state
    chosen = state.best_weights
    if chosen is None:
        weights = state.evaluation_weights()
        if weights is None:
            return None
        chosen = copy_weights(state.trained, weights, leave_out=state.left_out)
    last = copy_weights(state.trained, leave_out=state.left_out)
    restore_weights(state.trained, chosen)
    return last


# --- data on a GPU


@contextmanager
def _place_data(fit: Fit) -> Iterator[bool]:
    """Moves data to the GPU for the length of a fit; yields whether columns are where the step runs."""
    train, valid, lines = fit.train, fit.valid, fit.describe()
    if fit.device.type == "cuda":
        free = int(torch.cuda.mem_get_info(fit.device)[0] * _SHARE_FOR_DATA)
        fit.train, fit.plan.data = _place_loader(train, fit.device, free)
        free -= 0 if fit.train is train else train.nbytes or 0
        placed = dict(valid)
        for name, loader in valid.items():
            placed[name], _ = _place_loader(loader, fit.device, free)
            free -= 0 if placed[name] is loader else loader.nbytes or 0
        fit.valid = placed
        fit.state.train, fit.state.valid = fit.train, fit.valid
    _update_plan_facts(fit, lines)
    lines = fit.describe()
    try:
        yield fit.device.type == "cpu" or fit.train is not train
    finally:
        fit.train.close()  # frees batches that were prepared for a next epoch
        fit.train, fit.valid = fit.state.train, fit.state.valid = train, valid
        _update_plan_facts(fit, lines)


def _place_loader(loader: Loader, device: torch.device, free: int) -> tuple[Loader, str]:
    """The loader with its data on the device if it fits, and a description of where the data is."""
    if loader.nbytes is None:
        return loader, "batches are copied to the device while the step before runs"
    size = format_size(loader.nbytes)
    if loader.nbytes > free:
        return loader, f"{size} do not fit into {format_size(free)} of the device: batches are copied ahead"
    try:
        return loader.resident(device), f"{size} stay on the device, where batches are gathered"
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        return loader, f"{size} did not fit on the device: batches are copied ahead"


def _update_plan_facts(fit: Fit, lines: list[str]) -> None:
    """Writes the plan into the facts of the run, if it has changed."""
    if fit.recorder.update_facts is not None and fit.describe() != lines:
        fit.recorder.update_facts({"plan": fit.describe()})
