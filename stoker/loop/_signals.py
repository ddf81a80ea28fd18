"""Signals: the first one ends the batch and the fit in order, wherever it arrives; handlers are put back afterwards."""

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from stoker.data import Loader
from stoker.loop._agree import depart
from stoker.loop._fit import Fit


class _Interrupted(BaseException):
    """Leaves the wait for a batch; never seen outside of it."""


_OVER = object()


@contextmanager
def interruptible(fit: Fit) -> Iterator[None]:
    """Takes Ctrl-C, SIGTERM and SIGUSR1 for the length of a fit, each unless the user has a handler of their own.

    Only the main thread can have them.
    """
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number, (usual, ours) in _handlers(fit).items():
            if signal.getsignal(number) is usual:
                before[number] = signal.signal(number, ours)
    try:
        yield
    finally:
        for number, theirs in before.items():
            signal.signal(number, theirs)


def _handlers(fit: Fit) -> dict[int, tuple[Any, Callable[..., None]]]:
    """For each signal: what Python does with it by itself, and what we do."""

    pressed: list[int] = []

    def interrupt(number: int, *_: object) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)
        leave(fit, f"Interrupted in epoch {fit.ctx.epoch}, batch {fit.ctx.batch_number}")

    def terminate(*_: object) -> None:  # a second one changes nothing: clusters send several
        leave(fit, f"Terminated (SIGTERM) in epoch {fit.ctx.epoch}, batch {fit.ctx.batch_number}", terminated=True)

    def save(*_: object) -> None:
        if fit.ctx._requests.can_save:  # else it is about to end, and has been saved
            fit.ctx.save("asked for by SIGUSR1")

    found: dict[int, tuple[Any, Callable[..., None]]] = {
        signal.SIGINT: (signal.default_int_handler, interrupt),
        signal.SIGTERM: (signal.SIG_DFL, terminate),
    }
    if fit.saver is not None and hasattr(signal, "SIGUSR1"):
        found[signal.SIGUSR1] = (signal.SIG_DFL, save)
    return found


def leave(fit: Fit, reason: str, *, terminated: bool = False) -> None:
    """Ends the fit after this batch, to be gone on with later; a wait for workers is left at once.

    Where several processes train together it is a wish: they leave together, once all of them know.
    """
    wishes = fit.ctx._requests.pending
    if wishes is not None:
        wishes.setdefault("leave", reason)
        wishes["terminated"] = terminated or wishes.get("terminated", False)
        return
    fit.terminated = fit.terminated or terminated
    depart(fit, reason)
    if fit.waiting:
        fit.waiting = False
        raise _Interrupted


def awaited(fit: Fit, loader: Loader, batches: Iterable[Any]) -> Iterable[Any]:
    """The batches; an interrupt leaves the wait for one.

    Only a wait for other processes can be left in the middle: what is made in this one draws random numbers.
    """
    can_leave = fit.accord is None and loader.workers > 0 and hasattr(loader.source, "__len__")
    return _left_when_interrupted(fit, iter(batches)) if can_leave else batches


def _left_when_interrupted(fit: Fit, walk: Iterator[Any]) -> Iterator[Any]:
    while True:
        try:
            fit.waiting = not fit.interrupted
            batch = next(walk, _OVER)
        except _Interrupted:
            return
        finally:
            fit.waiting = False
        if batch is _OVER:
            return
        yield batch
