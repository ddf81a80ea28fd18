"""`StopSignals`: Ctrl-C, SIGTERM, SIGUSR1 and deadlines end a fit in order, after the current batch."""

import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch

from stoker.callbacks import Context, Requests
from stoker.data import Loader
from stoker.engine._replayable import stop_pretending

TERMINATED = 143  # the exit status of a process that SIGTERM has ended
_END = object()


class _Interrupted(BaseException):
    """Ends the wait for a batch; never leaves this module."""


class StopSignals:
    """Whether the fit was asked to stop from outside, to be resumed later.

    With several processes a signal becomes a request: all ranks stop together, once all of them know.
    """

    _ctx: Context
    _requests: Requests

    def __init__(self) -> None:
        self._phase: Literal["preparing", "training", "uninterruptible"] = "preparing"
        self._presses = 0  # of Ctrl-C
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

    def attach(self, ctx: Context, requests: Requests) -> None:
        """Sets the context of the fit that signals are requests to."""
        self._ctx, self._requests = ctx, requests

    @contextmanager
    def handle(self, *, can_save: bool) -> Iterator[None]:
        """Handles signals for the length of a fit, except for those that the user handles. Main thread only.

        Until `hold` is called, Ctrl-C raises `KeyboardInterrupt`. From then on the first one asks the fit to stop, and
        a second one raises only where `interruptible` allows it, else when the block ends. So whatever was opened is
        closed, however often it is pressed.
        """
        self._phase, self._presses = "preparing", 0
        # Ctrl-C comes first and is restored last, so that none comes between two of these lines.
        handlers: list[tuple[int, Any, Any]] = [(signal.SIGINT, signal.default_int_handler, self._on_interrupt)]
        handlers.append((signal.SIGTERM, signal.SIG_DFL, self._on_terminate))
        if can_save and hasattr(signal, "SIGUSR1"):
            handlers.append((signal.SIGUSR1, signal.SIG_DFL, self._on_save))
        is_main = threading.current_thread() is threading.main_thread()
        replaced = [each for each in handlers if is_main and signal.getsignal(each[0]) is each[1]]
        with restore_modes():
            try:
                for number, _, handler in replaced:
                    signal.signal(number, handler)
                yield
            finally:
                self.hold()
                for number, default, _ in reversed(replaced):
                    signal.signal(number, default)
        if self._presses > 1:
            raise KeyboardInterrupt

    def hold(self) -> None:
        """From now on Ctrl-C raises only where `interruptible` allows it."""
        self._phase = "uninterruptible"

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Lets a second Ctrl-C raise inside the block; the cleanup that follows is not interrupted again."""
        self._phase = "training"
        if self.interrupted and self._ctx.stopping is None:  # while the run was opened
            self._ctx.stopping = self.reason
        try:
            yield
        finally:
            self.hold()

    @contextmanager
    def uninterrupted(self) -> Iterator[None]:
        """Delays a second Ctrl-C to the end of the block: starting a thread or waiting for one must not be interrupted.

        An exception inside of Python's own locks (`threading.Event`) can leave them in a wrong state.
        """
        phase, presses = self._phase, self._presses
        self.hold()
        try:
            yield
        finally:
            self._phase = phase
        if phase == "training" and self._presses > max(presses, 1):
            self.hold()
            raise KeyboardInterrupt

    def _on_interrupt(self, *_: object) -> None:
        self._presses += 1
        if self._phase != "preparing" and self._presses == 1:
            self.request_interrupt(f"Interrupted in {self._position()}")
        elif self._phase != "uninterruptible":
            self.hold()
            raise KeyboardInterrupt

    def _on_terminate(self, *_: object) -> None:  # clusters send several: a second one changes nothing
        if self._phase == "preparing":
            self.hold()
            raise SystemExit(TERMINATED)
        self.request_interrupt(f"Terminated (SIGTERM) in {self._position()}", terminated=True)

    def _on_save(self, *_: object) -> None:
        if self._phase != "preparing" and self._requests.can_save:  # else there is nothing new to save
            self._ctx.save("requested by SIGUSR1")

    def _position(self) -> str:
        return f"epoch {self._ctx.epoch}, batch {self._ctx.batch_number}"

    def request_interrupt(self, reason: str, *, terminated: bool = False) -> None:
        """Ends the fit after this batch, to be resumed later. A wait for worker processes ends at once."""
        pending = self._requests.pending
        if pending is not None:
            pending.setdefault("interrupt", reason)
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
        while not self.interrupted:  # a signal may have come while workers were started
            try:
                self._is_waiting = True
                batch = next(batches, _END)
            except _Interrupted:
                return
            finally:
                self._is_waiting = False
            if batch is _END:
                return
            yield batch


@contextmanager
def delay_interrupt() -> Iterator[None]:
    """Handles a Ctrl-C that comes inside the block when it ends. Only the main thread gets one."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    presses: list[Any] = []
    signal.signal(signal.SIGINT, lambda *received: presses.append(received))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        for received in presses:
            handler(*received)


@contextmanager
def restore_modes() -> Iterator[None]:
    """Restores the modes of torch: an interrupt inside of `torch.no_grad` or `autocast` leaves them changed."""
    is_grad_enabled = torch.is_grad_enabled()
    autocast = [(kind, torch.is_autocast_enabled(kind)) for kind in ("cpu", "cuda")]
    try:
        yield
    finally:
        torch.set_grad_enabled(is_grad_enabled)
        for kind, is_enabled in autocast:
            torch.set_autocast_enabled(kind, is_enabled)
        stop_pretending()
