"""Worker processes that build batches in advance.

torch's DataLoader is not used for this: it installs a signal handler that raises a dead worker's error anywhere in the
user's code. Here each worker has its own pipe, and its end is noticed where a batch is awaited.

A `Workers` object belongs to one loader and keeps its processes between epochs. `_Pool` is one set of processes: it
sends tasks and receives batches. `_Run` is one iteration over a loader that uses a pool.
"""

import io
import math
import os
import pickle
import queue
import signal
import sys
import threading
import traceback
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from multiprocessing.util import Finalize
from typing import Any, NamedTuple

import torch
import torch.multiprocessing
from torch import Tensor

from stoker.data._batch import Recipe, Task
from stoker.errors import SampleFailed, WorkerDied, WrongType

_AHEAD = 2  # batches that each worker is asked for in advance
_SHARED = 2**18  # bytes; a larger tensor goes through shared memory, which costs a file descriptor while it lives
# A terminal or a cluster sends these to every process. The main process handles them and stops its workers itself.
_IGNORED_SIGNALS = {signal.SIGINT, signal.SIGTERM} | ({signal.SIGUSR1} if hasattr(signal, "SIGUSR1") else set())

Start = tuple[int, int]  # epoch and batch


class Workers:
    """The worker processes of one loader: started at the first batch, and kept for later epochs.

    Each of several simultaneous iterations has its own processes.
    """

    def __init__(self, recipe: Recipe, count: int) -> None:
        self.recipe, self.count = recipe, count
        self._idle: list[_Pool] = []
        self._runs: list[_Run] = []  # the iterations in progress; the latest is last
        self._prepared: tuple[Start, _Run] | None = None  # its pool is idle, or used by the run that it follows

    def __reduce__(self) -> tuple[Any, ...]:  # a copy has no processes
        return Workers, (self.recipe, self.count)

    def build(self, tasks: Iterable[Task], *, start: Start | None = None) -> Iterator[Any]:
        """Yields the batches of the tasks in order; `start` is the epoch and batch of the first task."""
        run = self._take_prepared(start) or _Run(self._acquire(), iter(tasks))
        self._runs.append(run)
        try:
            yield from run.batches()
        finally:  # also if the iteration is abandoned
            self._runs.remove(run)
            self._release(run.pool)

    def prepare(self, tasks: Iterable[Task], *, start: Start) -> None:
        """Starts the first batches of an iteration that will begin at `start`: now, or after the current one's tasks.

        Another thread may iterate meanwhile; if it ends during this call, nothing is prepared.
        """
        if self._prepared is not None and self._prepared[0] == start and self._prepared[1].pool.is_usable():
            return
        self._forget_prepared()
        current = self._runs[-1:]
        run = _Run(current[0].pool if current else self._acquire(), iter(tasks))
        self._prepared = start, run
        if current:
            current[0].following = run
            return
        try:
            with suppress(WorkerDied):  # the iteration then starts other processes
                run.send_tasks(run.capacity)
        finally:
            self._release(run.pool)

    def close(self) -> None:
        """Stops the processes that no iteration uses; the next iteration starts new ones."""
        self._forget_prepared()
        while self._idle:
            self._idle.pop().close()

    def _take_prepared(self, start: Start | None) -> "_Run | None":
        """Returns the run that was prepared for this start; any other is dropped."""
        prepared = self._prepared
        self._forget_prepared()
        if prepared is None or prepared[0] != start:
            return None
        run = prepared[1]
        try:
            self._idle.remove(run.pool)
        except ValueError:  # another iteration uses the pool
            return None
        if run.pool.is_usable() and run.is_latest():
            return run
        self._release(run.pool)
        return None

    def _forget_prepared(self) -> None:
        self._prepared = None
        for run in self._runs:
            run.following = None

    def _acquire(self) -> "_Pool":
        while True:
            try:
                pool = self._idle.pop()  # atomic: only one thread gets it
            except IndexError:
                return _Pool(self.recipe, self.count)
            if pool.is_usable():
                return pool
            pool.close()

    def _release(self, pool: "_Pool") -> None:
        if self._idle or not pool.is_usable():  # after simultaneous iterations one set of processes is kept
            pool.close()
        else:
            self._idle.append(pool)


class _Run:
    """An iteration: tasks that go through the processes of a pool."""

    def __init__(self, pool: "_Pool", tasks: Iterator[Task]) -> None:
        self.pool, self.tasks = pool, tasks
        self.capacity = _AHEAD * pool.count
        self.following: _Run | None = None  # the prepared run that uses the pool once all tasks of this one are sent
        self._pending: deque[int] = deque()  # the pool's numbers of the tasks in flight
        self._has_more = True
        self._error: Exception | None = None

    def is_latest(self) -> bool:
        """Whether no other run has used the pool since, and dropped this one's batches."""
        return not self._pending or self._pending[-1] == self.pool.sent - 1

    def batches(self) -> Iterator[Any]:
        """Yields the batches in order, while later ones are being built."""
        while True:
            self.send_tasks(self.capacity)
            if not self._pending:
                break
            yield self.pool.receive(self._pending.popleft())
        if self._error is not None:
            raise self._error

    def send_tasks(self, capacity: int) -> None:
        """Sends tasks until `capacity` batches are in flight: of this run, and then of the following one."""
        while self._has_more and len(self._pending) < capacity:
            try:
                message = pack(next(self.tasks))
            except StopIteration:
                self._has_more = False
            except Exception as error:  # reading a stream failed: the batches before this one come first
                self._has_more, self._error = False, error
            else:
                self._pending.append(self.pool.send(message))
        following = self.following
        if not self._has_more and following is not None:
            following.send_tasks(capacity - len(self._pending))


class _Pool:
    """Worker processes with a pipe to each; task n goes to process n % count."""

    def __init__(self, recipe: Recipe, count: int) -> None:
        self.count = count
        self._owner = os.getpid()
        self._pipes: list[Any] = []  # Connection; on Windows PipeConnection
        self._processes: list[BaseProcess] = []
        # At exit this runs before multiprocessing ends daemons with SIGTERM, which workers ignore.
        self.close = Finalize(self, _stop, (self._pipes, self._processes), exitpriority=100)
        context = torch.multiprocessing.get_context()
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, recipe), daemon=True, name="stoker-loader")
            # Stored before the start: a signal may raise anywhere in here, and every process has to be stopped.
            self._pipes.append(ours)
            self._processes.append(process)
            try:
                with _block_signals():
                    process.start()
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                self.close()
                raise WrongType(
                    f"the source, transform or batcher can't be sent to a worker process ({error}); define them at the "
                    "top level of a module (a lambda or a local function can't be pickled), or use workers=0"
                ) from error
            except BaseException:
                self.close()
                raise
            theirs.close()
        self.sent = 0  # tasks
        self._received = [0] * count  # answers of each process
        self._in_sync = True  # no message is half sent or half read, as Ctrl-C can leave it

    def is_usable(self) -> bool:
        """Whether the processes belong to this process (not to its parent before a fork), live and are in sync."""
        if os.getpid() != self._owner or not self._processes:
            return False
        return self._in_sync and all(process.is_alive() for process in self._processes)

    def send(self, message: memoryview) -> int:
        """Sends a task, and returns its number for `receive`."""
        number, self._in_sync = self.sent, False
        try:
            self._pipes[number % self.count].send_bytes(message)
        except OSError as error:
            raise self._death(number % self.count) from error
        self.sent += 1
        self._in_sync = True
        return number

    def receive(self, number: int) -> Any:
        """Returns the batch of a task, or raises its exception; earlier batches that were not received are dropped."""
        turn, worker = divmod(number, self.count)
        while self._received[worker] < turn:
            self._receive_next(worker)
        answer = self._receive_next(worker)
        if isinstance(answer, _Failure):
            raise answer.error
        return answer

    def _receive_next(self, worker: int) -> Any:
        pipe, process = self._pipes[worker], self._processes[worker]
        self._in_sync = False
        try:
            if pipe not in wait([pipe, process.sentinel]) and not pipe.poll():
                raise self._death(worker)
            answer = pickle.loads(pipe.recv_bytes())
        except (EOFError, OSError) as error:
            process.join(timeout=5)  # seconds; a process that ends closes its pipe first
            if process.exitcode is None:
                raise
            raise self._death(worker) from error
        self._received[worker] += 1
        self._in_sync = True
        return answer

    def _death(self, worker: int) -> WorkerDied:
        process = self._processes[worker]
        process.join(timeout=5)
        code = process.exitcode or 0
        cause = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        return WorkerDied(
            f"worker process {process.pid} {cause}; most often the machine ran out of memory (use fewer workers or "
            "smaller batches), or native code crashed (use workers=0 to see where)"
        )


@contextmanager
def _block_signals() -> Iterator[None]:
    """Blocks the ignored signals, so that a process started in here never receives them.

    Python's warning about a fork beside threads is suppressed: a worker uses nothing that a thread of ours locks.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*multi-threaded.*fork", category=DeprecationWarning)
        if not hasattr(signal, "pthread_sigmask"):  # Windows
            yield
            return
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _IGNORED_SIGNALS)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _stop(pipes: list[Connection], processes: list[BaseProcess]) -> None:
    """Stops the processes; also runs when their pool is garbage, and when the process exits (not in a fork of it)."""
    for pipe in pipes:
        pipe.close()
    started = [process for process in processes if process.pid is not None]
    for process in started:
        process.kill()
    for process in started:
        process.join()
        process.close()
    pipes.clear()
    processes.clear()


# --- in the worker process


def _work(pipe: Connection, recipe: Recipe) -> None:
    """Builds the batch of one task after another, until the pipe or the parent process is gone."""
    for number in _IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _IGNORED_SIGNALS)  # blocked since before the start
    torch.set_num_threads(1)
    stack = partial(stack_shared, above=_SHARED)
    tasks: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive_tasks, args=(pipe, tasks, os.getppid()), daemon=True).start()
    while True:
        message = tasks.get()
        try:
            answer = pack(recipe.build(pickle.loads(message), stack), share_above=_SHARED)
        except Exception as error:
            answer = _pickle_failure(error)
        sys.stdout.flush()  # a worker is killed in the end, and what a transform printed must not be lost
        pipe.send_bytes(answer)


def _receive_tasks(pipe: Connection, tasks: "queue.SimpleQueue[bytes]", parent: int) -> None:
    """Reads tasks at once, so that the main process never waits in sending; exits if the parent is gone."""
    try:
        while True:
            while not pipe.poll(1.0):  # seconds
                if os.getppid() != parent:
                    os._exit(0)
            tasks.put(pipe.recv_bytes())
    except (EOFError, OSError):
        os._exit(0)


class _Failure(NamedTuple):
    """What a worker sends in place of a batch."""

    error: Exception


def _pickle_failure(error: Exception) -> bytes:
    """Pickles an exception with the worker's traceback as a note; `SampleFailed` stands for one that can't be."""
    text = "".join(traceback.format_exception(error))
    error.add_note(f"in a worker process:\n{text}")
    try:
        message = pickle.dumps(_Failure(error))
        pickle.loads(message)  # some exceptions can be pickled, but not unpickled
    except Exception:
        text = f"loading failed in a worker process, with an exception that can't be pickled:\n{text}"
        return pickle.dumps(_Failure(SampleFailed(text)))
    return message


# --- messages between the processes


def pack(value: Any, *, share_above: float = math.inf) -> memoryview:
    """Pickles a value for another process; tensors of more than `share_above` bytes go through shared memory.

    Sharing moves the storage of a tensor, so it is only for tensors that nothing else uses, and costs both processes a
    file descriptor while the tensor lives. Bytes cost two copies, and of a view only its own elements are sent.
    """
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, share_above).dump(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise WrongType(
            f"samples and batches are sent between processes, and one can't be pickled ({error}); make it of tensors, "
            "arrays and plain values, or use workers=0"
        ) from error
    return buffer.getbuffer()


def stack_shared(tensors: list[Tensor], *, above: float) -> Tensor:
    """Stacks tensors into shared memory if they are large, so that `pack` has nothing to copy."""
    size = sum(each.nbytes for each in tensors)
    plain = (type(each) is Tensor and each.is_contiguous() and not each.requires_grad for each in tensors)
    if size <= above or tensors[0].device.type != "cpu" or not all(plain):
        return torch.stack(tensors)
    # Private API: `torch.utils.data.default_collate` allocates the batches of its workers in the same way.
    memory = torch.UntypedStorage._new_shared(size, device="cpu")
    flat = torch.empty(0, dtype=tensors[0].dtype, device="cpu").set_(memory)
    return torch.stack(tensors, out=flat.view(len(tensors), *tensors[0].shape))


class _Pickler(ForkingPickler):
    """Python's pickler for other processes, in which torch shares tensors; small ones are sent as bytes."""

    def __init__(self, buffer: io.BytesIO, share_above: float) -> None:
        super().__init__(buffer)
        self._share_above = share_above

    def reducer_override(self, value: Any) -> Any:
        plain = type(value) is Tensor and value.device.type == "cpu" and value.layout == torch.strided
        if not plain or value.requires_grad or value.is_quantized or value.nbytes > self._share_above:
            return NotImplemented
        own = value.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
        return _unpack_tensor, (bytearray(own.flatten().view(torch.uint8).numpy()), value.dtype, tuple(value.shape))


def _unpack_tensor(content: bytearray, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    if not content:
        return torch.empty(shape, dtype=dtype, device="cpu")
    return torch.frombuffer(content, dtype=dtype).reshape(shape)
