"""Processes to be killed: forked from a warm one that has torch imported already, so that each costs milliseconds."""

import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

_WARM = multiprocessing.get_context("forkserver")
# The last one is what torch imports by itself in a resume, half a second long.
_MODULES = ["stoker", "torture._programs", "torch.distributed.run", "torch.fx.experimental.symbolic_shapes"]
LONGEST = 120  # seconds; what takes one of them is no slow machine


class Child:
    """A process of its own that calls a function of a module; what it prints goes into a file.

    It is alone in its process group, with the signal handlers of a fresh Python, and a warning is an error in it.
    """

    def __init__(self, program: Callable[..., object], *arguments: Any, prints: Path) -> None:
        _WARM.set_forkserver_preload(_MODULES)  # nothing, once the warm process is there
        self._prints = prints
        self._process = _WARM.Process(target=_enter, args=(program, arguments, prints))
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def is_over(self) -> bool:
        return self._process.exitcode is not None

    def send(self, number: int) -> None:
        """Sends it a signal; one that is over hears nothing."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait(self) -> int:
        """Its exit code, once it has ended: -9 where SIGKILL has ended it. One that never ends is a `TimeoutError`."""
        self._process.join(LONGEST)
        if self._process.exitcode is None:
            self.send(signal.SIGKILL)
            raise TimeoutError(f"process {self.pid} has not ended for {LONGEST} seconds")
        return self._process.exitcode

    def printed(self) -> str:
        return self._prints.read_text() if self._prints.exists() else ""


def preload(*modules: str) -> None:
    """Names modules that are imported before anything is forked; said before the first child is started."""
    _MODULES.extend(modules)


def warm_up(folder: Path) -> None:
    """Starts the process that all others are forked from, which takes seconds."""
    Child(print, prints=folder / "warm.txt").wait()


def _enter(program: Callable[..., object], arguments: tuple[Any, ...], prints: Path) -> None:
    os.setpgid(0, 0)
    file = os.open(prints, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(file, stream.fileno())
    os.close(file)
    multiprocessing.set_start_method(None, force=True)  # its own children are started as everywhere
    warnings.simplefilter("error")
    program(*arguments)
