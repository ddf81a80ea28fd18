"""Processes that make batches: how they are started, asked, answered by, and ended.

torch's DataLoader is not used for this: it installs a signal handler, out of which a dead worker's error is raised
anywhere in the user's code. Here each worker has a pipe of its own, and its end is seen where a batch is awaited.
"""

import os
import pickle
import queue
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from typing import Any

import torch
import torch.multiprocessing

from stoker.data._batches import Recipe
from stoker.data._wire import packed, stacked_to_share
from stoker.errors import SampleFailed, WorkerDied, WrongType

_SHARED = 2**18  # bytes; a larger tensor is shared, not copied, and costs a file descriptor for as long as it lives
# What a terminal or a cluster sends to every process of a run is the main process's; it ends its workers itself.
_NOT_OURS = {signal.SIGINT, signal.SIGTERM} | ({signal.SIGUSR1} if hasattr(signal, "SIGUSR1") else set())


class Pool:
    """Some processes, each with a line to it; task after task is given to them in turn."""

    def __init__(self, recipe: Recipe, count: int) -> None:
        self.count = count
        self._owner = os.getpid()
        self._lines: list[Any] = []  # a Connection each; on Windows a PipeConnection
        self._processes: list[BaseProcess] = []
        # at an exit it comes before multiprocessing's own way of ending daemons, SIGTERM, which workers don't take
        self.close = Finalize(self, _end, (self._lines, self._processes), exitpriority=100)
        context = torch.multiprocessing.get_context()
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, recipe), daemon=True, name="stoker-loader")
            # In the lists before it is started: a signal may raise anywhere in here, and none must be forgotten.
            self._lines.append(ours)
            self._processes.append(process)
            try:
                with _deaf():
                    process.start()
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                self.close()
                raise WrongType(
                    f"the source, transform or batcher can't be sent to a worker process ({error}); define them at the "
                    "top of a module (a lambda or a local function can't travel), or use workers=0"
                ) from error
            except BaseException:
                self.close()
                raise
            theirs.close()
        self.asked = 0  # tasks; the one with number n is for process n % count
        self._answered = [0] * count  # answers that each process has given
        self._whole = True  # no message is half sent or half read, as Ctrl-C can leave it

    def usable(self) -> bool:
        """Whether these are this process's own (not its parent's, across a fork), open, alive and in step."""
        if os.getpid() != self._owner or not self._processes:
            return False
        return self._whole and all(process.is_alive() for process in self._processes)

    def ask(self, message: memoryview) -> int:
        """Sends a task; the number is what its answer is asked for by."""
        number, self._whole = self.asked, False
        try:
            self._lines[number % self.count].send_bytes(message)
        except OSError as error:
            raise self._died(number % self.count) from error
        self.asked += 1
        self._whole = True
        return number

    def answer(self, number: int) -> Any:
        """A task's batch, or the exception that it raised; answers before it that nobody came for are dropped."""
        turn, worker = divmod(number, self.count)
        while self._answered[worker] < turn:
            self._receive(worker)
        answer = self._receive(worker)
        if isinstance(answer, _Failure):
            raise answer.exception()
        return answer

    def _receive(self, worker: int) -> Any:
        line, process = self._lines[worker], self._processes[worker]
        self._whole = False
        try:
            if line not in wait([line, process.sentinel]) and not line.poll():
                raise self._died(worker)
            answer = pickle.loads(line.recv_bytes())
        except (EOFError, OSError) as error:
            process.join(timeout=5)  # seconds; a process that goes away closes its line first
            if process.exitcode is None:
                raise
            raise self._died(worker) from error
        self._answered[worker] += 1
        self._whole = True
        return answer

    def _died(self, worker: int) -> WorkerDied:
        process = self._processes[worker]
        process.join(timeout=5)
        code = process.exitcode or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        return WorkerDied(
            f"loading process {process.pid} {how}; most often the machine ran out of memory (use fewer workers or "
            "smaller batches), or native code crashed (workers=0 shows where)"
        )


@contextmanager
def _deaf() -> Iterator[None]:
    """Holds the main process's signals back: a process started in here hears none, from its first instruction on.

    Python's warning about a fork beside threads is left out: a worker uses nothing that a thread of ours locks.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*multi-threaded.*fork", category=DeprecationWarning)
        if not hasattr(signal, "pthread_sigmask"):  # Windows
            yield
            return
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _NOT_OURS)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(lines: list[Connection], processes: list[BaseProcess]) -> None:
    """Ends the processes; also runs when their pool is garbage, and when the process exits (not in a fork of it)."""
    for line in lines:
        line.close()
    started = [process for process in processes if process.pid is not None]
    for process in started:
        process.kill()
    for process in started:
        process.join()
        process.close()
    lines.clear()
    processes.clear()


@dataclass(frozen=True)
class _Failure:
    """An exception on its way from a worker: itself, if it survives the journey, and always its traceback."""

    error: bytes | None
    text: str

    @classmethod
    def of(cls, error: Exception) -> "_Failure":
        text = "".join(traceback.format_exception(error))
        try:
            carried = pickle.dumps(error)
            pickle.loads(carried)  # some can be pickled and not be made again, which must not happen over there
        except Exception:
            return cls(None, text)
        return cls(carried, text)

    def exception(self) -> Exception:
        if self.error is None:
            return SampleFailed(
                f"loading failed in a worker process, with an exception that can't travel:\n{self.text}"
            )
        error = pickle.loads(self.error)
        error.add_note(f"in a worker process:\n{self.text}")
        return error


def _work(line: Connection, recipe: Recipe) -> None:
    """What a worker does: answers one task after another, until its line or its parent is gone."""
    for number in _NOT_OURS:
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _NOT_OURS)  # held since before we were started
    torch.set_num_threads(1)
    stack = partial(stacked_to_share, above=_SHARED)
    tasks: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(line, tasks, os.getppid()), daemon=True).start()
    while True:
        message = tasks.get()
        try:
            answer = packed(recipe.build(pickle.loads(message), stack), share_above=_SHARED)
        except Exception as error:
            answer = pickle.dumps(_Failure.of(error))
        sys.stdout.flush()  # a worker ends without a farewell, and what a transform printed must not be lost
        line.send_bytes(answer)


def _listen(line: Connection, tasks: "queue.SimpleQueue[bytes]", parent: int) -> None:
    """Takes tasks in as they come, so that the main process never waits in sending; ends a worker that is alone."""
    try:
        while True:
            while not line.poll(1.0):  # seconds
                if os.getppid() != parent:
                    os._exit(0)
            tasks.put(line.recv_bytes())
    except (EOFError, OSError):
        os._exit(0)
