"""A fit from its start to its end: signals, exceptions, and the best weights however it ends."""

import os
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from stoker.distributed import propagate_failures
from stoker.loop._fit import Fit
from stoker.loop._keep import rescue
from stoker.loop._level import level
from stoker.loop._precision import held
from stoker.loop._program import programmed
from stoker.loop._random import random_state
from stoker.loop._signals import interruptible
from stoker.loop._weights import restore, snapshot
from stoker.record import Event


@contextmanager
def running(fit: Fit) -> Iterator[None]:
    """What surrounds the training; afterwards the model has the best weights, also where an exception goes through.

    A context, and not a function that calls the loop: a traceback of the user's is a frame shorter.
    """
    started = time.monotonic()
    fit.parent = os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else None
    with interruptible(fit):
        try:
            with propagate_failures(fit.world), held(fit.settings.precision), programmed(fit):
                yield
                level(fit)
        except BaseException as error:
            fit.ctx.stopping = fit.ctx.stopping or f"{type(error).__name__}: {error}"
            trace = "".join(traceback.format_exception(error))
            fit.record.append(_event(fit, "error", text=f"{type(error).__name__}: {error}", traceback=trace))
            rescue(fit, error)
            fit.hooks.fire("on_exception", fit.ctx)
            raise
        finally:
            if fit.saver is not None:
                fit.saver.close()
            if fit.shared is not None:
                fit.shared.release()
            fit.mark, fit.ctx.batch, fit.searching = None, None, False  # what is over holds no data
            fit.marks.clear()
            fit.random, fit.trained = random_state(), time.monotonic() - fit.ctx.started
            try:
                settle(fit)
            finally:
                tell_end(fit, time.monotonic() - started)
                fit.record.close()


def settle(fit: Fit) -> None:
    """The weights that were asked for into the model; the last ones are kept, to go on from."""
    chosen = fit.best
    if chosen is None and fit.average is not None:
        chosen = snapshot(fit.average.model)
    if chosen is None:
        with fit.optimizer.evaluation_weights() as differ:
            chosen = snapshot(fit.model) if differ else None
    if chosen is not None:
        fit.last = snapshot(fit.model)
        restore(fit.model, chosen)


def tell_end(fit: Fit, seconds: float) -> None:
    """The last two events: why it stopped, and how far it came in so many seconds."""
    fit.record.append(_event(fit, "stop", text=fit.ctx.stopping or ""))
    fit.record.append(_event(fit, "end", **_outcome(fit, seconds)))


def _outcome(fit: Fit, seconds: float) -> dict[str, Any]:
    best = fit.ctx.best
    found = None if best is None else {"epoch": best.epoch, "value": best.value, "monitor": best.name}
    return {
        "epochs": fit.ctx.epoch,
        "updates": fit.ctx.update,
        "seconds": seconds,
        "best": found,
        "skipped": fit.skipped,
    }


def _event(fit: Fit, kind: str, *, text: str = "", **extra: Any) -> Event:
    ctx = fit.ctx
    return Event(kind, time.time(), ctx.epoch, ctx.batch_number, ctx.update, text=text, extra=extra)
