"""Processes to be killed: forked from a process that has imported torch, or started by torchrun."""

import multiprocessing
import os
import random
import signal
import sys
import time
import uuid
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Protocol

import psutil

_FORKSERVER = multiprocessing.get_context("forkserver")
# The last one is imported by torch during a resume and takes half a second.
_PRELOADED = ["stoker", "torture.programs", "torch.distributed.run", "torch.fx.experimental.symbolic_shapes"]
TIMEOUT = 240  # seconds; a process that needs longer hangs


class Child:
    """Calls `function(*arguments)` in a new process; what it prints goes to the file `prints`.

    The process has its own process group and Python's default signal handlers, and turns warnings into errors. It is
    forked from a server that has imported torch, which takes milliseconds.
    """

    def __init__(self, function: Callable[..., object], *arguments: Any, prints: Path) -> None:
        _FORKSERVER.set_forkserver_preload(_PRELOADED)  # has no effect once the server runs
        self._prints = prints
        self._process = _FORKSERVER.Process(target=_run_child, args=(function, arguments, prints))
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def is_over(self) -> bool:
        return self._process.exitcode is not None

    def send(self, number: int) -> None:
        """Sends a signal, unless the process has ended."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait(self) -> int:
        """Waits for the exit code, -9 after SIGKILL; raises `TimeoutError` after `TIMEOUT` seconds."""
        self._process.join(TIMEOUT)
        if self._process.exitcode is None:
            self.send(signal.SIGKILL)
            raise TimeoutError(f"process {self.pid} has not ended within {TIMEOUT} seconds")
        return self._process.exitcode

    def printed(self) -> str:
        return self._prints.read_text() if self._prints.exists() else ""


def preload(*modules: str) -> None:
    """Imports modules in the fork server; call it before the first `Child`."""
    _PRELOADED.extend(modules)


def start_server(folder: Path) -> None:
    """Starts the fork server, which takes seconds."""
    Child(print, prints=folder / "server.txt").wait()


def _run_child(function: Callable[..., object], arguments: tuple[Any, ...], prints: Path) -> None:
    os.setpgid(0, 0)
    file = os.open(prints, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(file, stream.fileno())
    os.close(file)
    multiprocessing.set_start_method(None, force=True)  # its own children use the default start method
    warnings.simplefilter("error")
    function(*arguments)


# --- torchrun

_LAUNCH_ID = "TORTURE_LAUNCH"  # in the environment of every process of a launch, to recognise orphans
_ROOT = str(Path(__file__).parents[1])  # where `-m torture` and `-m tests` are found
# Seconds: until ranks have met, that more of them are waited for, and between two heartbeats of an agent.
_TIMEOUTS = "join_timeout=60,last_call_timeout=1,close_timeout=5,read_timeout=20,keep_alive_interval=1"


class Launch:
    """`torchrun *arguments` in a new process."""

    def __init__(self, *arguments: str, prints: Path, environment: Mapping[str, str] | None = None) -> None:
        self._id = uuid.uuid4().hex
        given = {_LAUNCH_ID: self._id, "OMP_NUM_THREADS": "1", "PYTHONPATH": _ROOT, **(environment or {})}
        self._child = Child(_run_agent, arguments, given, prints=prints)

    @property
    def agent(self) -> int:
        """The process id of torchrun's agent, which starts the ranks."""
        return self._child.pid

    def ranks(self) -> list[psutil.Process]:
        """The ranks that the agent has started so far, in order."""
        found = {}
        with suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self.agent).children():
                with suppress(psutil.NoSuchProcess, KeyError):
                    found[int(process.environ()["LOCAL_RANK"])] = process
        return [found[rank] for rank in sorted(found)]

    def everybody(self) -> list[psutil.Process]:
        """All living processes of this launch without the agent: ranks, their workers, and orphans."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                if process.pid != self.agent and process.environ().get(_LAUNCH_ID) == self._id:
                    found.append(process)
        return found

    def is_over(self) -> bool:
        return self._child.is_over()

    def send(self, number: int) -> None:
        """Sends the agent a signal."""
        self._child.send(number)

    def wait(self) -> int:
        """Waits until the agent and all its processes have ended, and returns the agent's exit code."""
        code, deadline = self._child.wait(), time.monotonic() + TIMEOUT
        while alive := self.everybody():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(alive)} processes still run {TIMEOUT} seconds after their agent ended")
            time.sleep(0.02)
        return code

    def end(self) -> None:
        """Kills all of it."""
        self.send(signal.SIGKILL)
        while alive := self.everybody():
            for process in alive:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            time.sleep(0.02)
        self._child.wait()

    def printed(self) -> str:
        return self._child.printed()


def standalone(ranks: int, *, restarts: int = 0) -> list[str]:
    """Torchrun's arguments for that many ranks on this machine."""
    return ["--standalone", f"--nproc-per-node={ranks}", f"--max-restarts={restarts}", "--monitor-interval=0.1"]


def rendezvous(
    endpoint: str, name: str, *, nodes: str, ranks: int = 1, restarts: int = 0, settings: str = ""
) -> list[str]:
    """Torchrun's arguments for ranks on several machines that meet at an endpoint."""
    return [
        *("--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", f"--rdzv-id={name}"),
        f"--rdzv-conf={','.join(filter(None, [_TIMEOUTS, settings]))}",
        *(f"--nnodes={nodes}", f"--nproc-per-node={ranks}", f"--max-restarts={restarts}", "--monitor-interval=0.1"),
    ]


def _run_agent(arguments: tuple[str, ...], environment: Mapping[str, str]) -> None:
    os.environ |= environment
    from torch.distributed.run import main

    main(list(arguments))


# --- attempts: one start of a training, and how it is killed

End = Literal["finished", "killed", "terminated", "failed"]

_TERMINATED = 143  # exit code of a fit that was stopped by SIGTERM
_TERMINATE = 0.15  # share of SIGTERMs, after which nothing may be lost


class Attempt(Protocol):
    """One start of a training, from the beginning or from its newest checkpoint."""

    def is_over(self) -> bool: ...

    def strike(self, chance: random.Random) -> None:
        """Kills it with SIGKILL, or sends SIGTERM."""
        ...

    def wait(self) -> End:
        """How it ended; raises `TimeoutError` if it does not."""
        ...

    def printed(self) -> str: ...


class SingleProcess:
    """A training in one process."""

    def __init__(self, kind: str, folder: Path) -> None:
        from torture.programs import train

        self._child = Child(train, kind, folder, prints=folder.with_suffix(".txt"))
        self.is_over, self.printed = self._child.is_over, self._child.printed

    def strike(self, chance: random.Random) -> None:
        self._child.send(signal.SIGTERM if chance.random() < _TERMINATE else signal.SIGKILL)

    def wait(self) -> End:
        code = self._child.wait()
        if code in (-signal.SIGKILL, -signal.SIGTERM):
            return "killed"
        return {0: "finished", _TERMINATED: "terminated"}.get(code, "failed")


class SeveralRanks:
    """A training of several ranks under torchrun, whose exit code is 1 whatever happened to its ranks."""

    def __init__(self, kind: str, folder: Path, ranks: int) -> None:
        script = ["-m", "torture.programs", kind, str(folder)]
        self._launch = Launch(*standalone(ranks), *script, prints=folder.with_suffix(".txt"))
        self._struck: End = "failed"
        self.is_over, self.printed = self._launch.is_over, self._launch.printed

    def strike(self, chance: random.Random) -> None:
        if chance.random() < _TERMINATE:
            self._struck = "terminated"
            self._launch.send(signal.SIGTERM)
            return
        self._struck = "killed"
        ranks = self._launch.ranks()
        victims = chance.choice(["one", "one", "all", "agent"])
        if victims == "agent" or not ranks:  # the ranks may not have started yet
            self._launch.send(signal.SIGKILL)
            return
        for rank in [chance.choice(ranks)] if victims == "one" else ranks:
            with suppress(psutil.NoSuchProcess):
                rank.kill()

    def wait(self) -> End:
        try:
            return "finished" if self._launch.wait() == 0 else self._struck
        finally:
            self._launch.end()
