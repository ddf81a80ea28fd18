"""A script under torchrun, to be killed: its agent, its ranks, and whatever they start."""

import os
import signal
import sys
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from torture._children import LONGEST, Child

_MARK = "TORTURE_LAUNCH"  # in the environment of all that a launch starts: orphans are known by it
_HOME = str(Path(__file__).parents[1])  # where `-m torture` and `-m tests` are found, wherever this is started
# Seconds: until ranks have met, that more of them are waited for, and between two signs of life of an agent.
_LIMITS = "join_timeout=60,last_call_timeout=1,close_timeout=5,read_timeout=20,keep_alive_interval=1"


class Launch:
    """`torchrun ARGUMENTS`, in a process of its own; its ranks are started by it, as everywhere.

    With `host`, in the network namespace of that name.
    """

    def __init__(
        self, *arguments: str, prints: Path, environment: Mapping[str, str] | None = None, host: str | None = None
    ) -> None:
        self._mark = uuid.uuid4().hex
        given = {_MARK: self._mark, "OMP_NUM_THREADS": "1", "PYTHONPATH": _HOME, **(environment or {})}
        self._child = Child(_agent, arguments, given, host, prints=prints)

    @property
    def agent(self) -> int:
        """The process that looks after the ranks."""
        return self._child.pid

    def ranks(self) -> list[psutil.Process]:
        """The ranks of this launch, as far as they have been started, in their order."""
        found = {}
        with suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self.agent).children():
                with suppress(psutil.NoSuchProcess, KeyError):
                    found[int(process.environ()["LOCAL_RANK"])] = process
        return [found[rank] for rank in sorted(found)]

    def everybody(self) -> list[psutil.Process]:
        """What the agent has started and is still there: ranks, their workers, and orphans."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                if process.pid != self.agent and process.environ().get(_MARK) == self._mark:
                    found.append(process)
        return found

    def is_over(self) -> bool:
        return self._child.is_over()

    def send(self, number: int) -> None:
        """Sends the agent a signal."""
        self._child.send(number)

    def wait(self) -> int:
        """The agent's exit code, once it has ended and nothing of it is left; what never ends is a `TimeoutError`."""
        code, until = self._child.wait(), time.monotonic() + LONGEST
        while left := self.everybody():
            if time.monotonic() > until:
                raise TimeoutError(f"{len(left)} processes have outlived their agent by {LONGEST} seconds")
            time.sleep(0.02)
        return code

    def end(self) -> None:
        """Kills whatever is left of it."""
        self.send(signal.SIGKILL)
        while left := self.everybody():
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            time.sleep(0.02)
        self._child.wait()

    def printed(self) -> str:
        return self._child.printed()


def alone(ranks: int, *, restarts: int = 0) -> list[str]:
    """What torchrun is told for so many ranks on this machine."""
    return ["--standalone", f"--nproc-per-node={ranks}", f"--max-restarts={restarts}", "--monitor-interval=0.1"]


def met(endpoint: str, name: str, *, nodes: str, ranks: int = 1, restarts: int = 0, limits: str = "") -> list[str]:
    """What torchrun is told for ranks on several machines that meet at an endpoint."""
    return [
        *("--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", f"--rdzv-id={name}"),
        f"--rdzv-conf={','.join(filter(None, [_LIMITS, limits]))}",
        *(f"--nnodes={nodes}", f"--nproc-per-node={ranks}", f"--max-restarts={restarts}", "--monitor-interval=0.1"),
    ]


def _agent(arguments: tuple[str, ...], environment: Mapping[str, str], host: str | None) -> None:
    os.environ |= environment
    if host is not None:
        command = [sys.executable, "-m", "torch.distributed.run", *arguments]
        os.execvp("ip", ["ip", "netns", "exec", host, *command])
    from torch.distributed.run import main

    main(list(arguments))
