"""Starts of a training, and the ways in which each can be struck: one process, or the ranks of a torchrun."""

import random
import signal
from contextlib import suppress
from pathlib import Path
from typing import Literal, Protocol

import psutil

from torture._children import Child
from torture._launch import Launch, alone
from torture._programs import train

End = Literal["over", "killed", "terminated", "failed"]

_TERMINATED = 143  # the exit code of a fit that has obeyed a SIGTERM
_POLITE = 0.15  # of all strikes: a SIGTERM, after which nothing may be lost


class Start(Protocol):
    """One start of a training: it is waited for, and may be struck before."""

    def is_over(self) -> bool: ...

    def strike(self, chance: random.Random) -> None:
        """Kills it, or asks it to end."""
        ...

    def wait(self) -> End:
        """How it ended; what never ends is a `TimeoutError`."""
        ...

    def printed(self) -> str: ...


class Single:
    """A training in one process."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._child = Child(train, kind, folder, prints=folder.with_suffix(".txt"))
        self.is_over, self.printed = self._child.is_over, self._child.printed

    def strike(self, chance: random.Random) -> None:
        self._child.send(signal.SIGTERM if chance.random() < _POLITE else signal.SIGKILL)

    def wait(self) -> End:
        code = self._child.wait()
        if code in (-signal.SIGKILL, -signal.SIGTERM):
            return "killed"
        return {0: "over", _TERMINATED: "terminated"}.get(code, "failed")


class Ranked:
    """A training of several ranks under torchrun, which ends with 1 whatever its ranks end with."""

    def __init__(self, kind: str, folder: Path, ranks: int) -> None:
        script = ["-m", "torture._ranked", kind, str(folder)]
        self._launch = Launch(*alone(ranks), *script, prints=folder.with_suffix(".txt"))
        self._struck: End = "failed"
        self.is_over, self.printed = self._launch.is_over, self._launch.printed

    def strike(self, chance: random.Random) -> None:
        if chance.random() < _POLITE:
            self._struck = "terminated"
            self._launch.send(signal.SIGTERM)
            return
        self._struck = "killed"
        ranks = self._launch.ranks()
        victims = chance.choice(["one", "one", "all", "agent"])
        if victims == "agent" or not ranks:  # they may not have been started yet
            self._launch.send(signal.SIGKILL)
            return
        for rank in [chance.choice(ranks)] if victims == "one" else ranks:
            with suppress(psutil.NoSuchProcess):
                rank.kill()

    def wait(self) -> End:
        try:
            return "over" if self._launch.wait() == 0 else self._struck
        finally:
            self._launch.end()
