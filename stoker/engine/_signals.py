"""`StopSignals`: Ctrl-C, SIGTERM, SIGUSR1 and deadlines end a fit in order, after the current batch."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from stoker.callbacks import Context, Requests
from stoker.data import Loader

_END = object()


class _Interrupted(BaseException):
    """Ends the wait for a batch; never leaves this module."""


class StopSignals:
    """Whether the fit was asked to stop from outside, to be resumed later.

    With several processes a signal becomes a request: all ranks stop together, once all of them know.
    """

    def __init__(self, ctx: Context, requests: Requests) -> None:
        self._ctx, self._requests = ctx, requests
        self.interrupted = False
        self.reason: str | None = None  # why, if that is what stops the fit: a resumed run does not stop for it again
        self.terminated = False  # by SIGTERM: the process exits with its status
        self.deadline: float | None = None  # seconds since 1970: the end of a cluster job, less a margin
        self._is_waiting = False  # for a batch that worker processes make: an interrupt need not wait for it
        # torchrun's process: if it is gone, this one has no supervisor.
        self._parent = os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else None

    def reset(self) -> None:
        """Forgets earlier signals, for a fit that continues."""
        self.interrupted, self.reason = False, None

    @contextmanager
    def handle(self, *, can_save: bool) -> Iterator[None]:
        """Handles signals for the length of a fit, except for those that the user handles. Main thread only."""
        before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number, (default, handler) in self._handlers(can_save=can_save).items():
                if signal.getsignal(number) is default:
                    before[number] = signal.signal(number, handler)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handlers(self, *, can_save: bool) -> dict[int, tuple[Any, Callable[..., None]]]:
        """For each signal: Python's default handler, and ours."""
        pressed: list[int] = []

        def interrupt(number: int, *_: object) -> None:
            if pressed:
                raise KeyboardInterrupt
            pressed.append(number)
            self.request_interrupt(f"Interrupted in {self._position()}")

        def terminate(*_: object) -> None:  # clusters send several: a second one changes nothing
            self.request_interrupt(f"Terminated (SIGTERM) in {self._position()}", terminated=True)

        def save(*_: object) -> None:
            if self._requests.can_save:
                self._ctx.save("requested by SIGUSR1")

        handlers: dict[int, tuple[Any, Callable[..., None]]] = {
            signal.SIGINT: (signal.default_int_handler, interrupt),
            signal.SIGTERM: (signal.SIG_DFL, terminate),
        }
        if can_save and hasattr(signal, "SIGUSR1"):
            handlers[signal.SIGUSR1] = (signal.SIG_DFL, save)
        return handlers

    def _position(self) -> str:
        return f"epoch {self._ctx.epoch}, batch {self._ctx.batch_number}"

    def request_interrupt(self, reason: str, *, terminated: bool = False) -> None:
        """Ends the fit after this batch, to be resumed later. A wait for worker processes ends at once."""
        pending = self._requests.pending
        if pending is not None:
            pending.setdefault("leave", reason)
            pending["terminated"] = terminated or pending.get("terminated", False)
            return
        self.interrupt(reason, terminated=terminated)
        if self._is_waiting:
            self._is_waiting = False
            raise _Interrupted

    def interrupt(self, reason: str, *, terminated: bool = False) -> None:
        """What `request_interrupt` does once all ranks agree; of several reasons the first one is kept."""
        self.interrupted, self.terminated = True, self.terminated or terminated
        if self._ctx.stopping is None:
            self.reason = self._ctx.stopping = reason

    def check_deadline(self, seconds_to_save: float) -> None:
        """Leaves in time before the deadline."""
        if self.deadline is not None and time.time() > self.deadline - seconds_to_save:
            self.request_interrupt(f"Stopped before the deadline, in {self._position()}")

    def check_parent(self) -> None:
        """Leaves if torchrun, which started this process, is gone."""
        if self._parent is not None and os.getppid() != self._parent:
            self._parent = None  # reported once
            self.request_interrupt(
                f"torchrun, which started this process, is gone, in {self._position()}", terminated=True
            )

    def interruptible_batches(self, loader: Loader, batches: Iterable[Any]) -> Iterable[Any]:
        """The batches; a signal ends the wait for one.

        Only a wait for worker processes can be ended: batches made in this process draw random numbers.
        """
        can_leave = self._requests.pending is None and loader.workers > 0 and hasattr(loader.source, "__len__")
        return self._until_interrupted(iter(batches)) if can_leave else batches

    def _until_interrupted(self, batches: Iterator[Any]) -> Iterator[Any]:
        while True:
            try:
                self._is_waiting = not self.interrupted
                batch = next(batches, _END)
            except _Interrupted:
                return
            finally:
                self._is_waiting = False
            if batch is _END:
                return
            yield batch
