"""Worker processes that build batches in advance.

torch's DataLoader is not used for this: it installs a signal handler that raises a dead worker's error anywhere in the
user's code. Here each worker has its own pipe, and its end is noticed where a batch is awaited.
"""

import io
import math
import mmap
import os
import pickle
import queue
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count, repeat
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
_SLOT = 2**25  # bytes of shared memory for each of these batches; pages that are not used take no memory
_SHARED = 2**18  # bytes; without a slot, a larger tensor gets shared memory, and a file descriptor while it lives
_SMALL = 2**14  # bytes; fewer are stacked outside of the slot and copied
# A terminal or a cluster sends these to every process. The main process handles them and stops its workers itself.
_IGNORED_SIGNALS = {signal.SIGINT, signal.SIGTERM} | ({signal.SIGUSR1} if hasattr(signal, "SIGUSR1") else set())


class Workers:
    """Builds batches in worker processes; every iteration starts its own, which see the source as it is then."""

    def __init__(self, recipe: Recipe, count: int) -> None:
        self.recipe, self.count = recipe, count
        self._prepared: tuple[tuple[int, int], _Pool] | None = None  # its first epoch and batch

    def __reduce__(self) -> tuple[Any, ...]:  # a copy has no processes
        return Workers, (self.recipe, self.count)

    @property
    def ahead(self) -> int:
        """Batches that are read in advance at most."""
        return _AHEAD * self.count

    def build(self, tasks: Iterator[Task], start: tuple[int, int] | None = None) -> Iterator[Any]:
        """Returns the batches of the tasks; `start` is the epoch and batch of the first one."""
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            if prepared[0] == start and prepared[1].is_usable():
                return prepared[1].batches()
            prepared[1].close()
        return _Pool(self.recipe, self.count, tasks).batches()

    def prepare(self, tasks: Iterator[Task], start: tuple[int, int]) -> None:
        """Starts the processes of an iteration that will begin at `start`, and gives them their first tasks."""
        if self._prepared is None or self._prepared[0] != start or not self._prepared[1].is_usable():
            self.close()
            pool = _Pool(self.recipe, self.count, tasks)
            with suppress(WorkerDied):  # the iteration then starts other processes
                pool.send_tasks()
            self._prepared = start, pool

    def close(self) -> None:
        """Stops what was prepared; an iteration stops its own processes when it ends."""
        if self._prepared is not None:
            self._prepared[1].close()
            self._prepared = None


class _Pool:
    """The processes of one iteration, with a pipe to each; task n goes to process n % count."""

    def __init__(self, recipe: Recipe, count: int, tasks: Iterator[Task]) -> None:
        self._tasks: Iterator[Task] | None = tasks  # None after the last one
        self._error: Exception | None = None  # of reading a stream; raised after the batches before it
        self._sent = self._received = 0
        self._owner = os.getpid()
        self._pipes: list[Any] = []  # Connection; on Windows PipeConnection
        self._processes: list[BaseProcess] = []
        self._memories: list[mmap.mmap | None] = []
        # Also called if the pool is garbage, and at exit before multiprocessing sends SIGTERM, which workers ignore.
        self.close = Finalize(self, _stop, (self._pipes, self._processes), exitpriority=100)
        context = torch.multiprocessing.get_context()
        for _ in range(count):
            ours, theirs = context.Pipe()
            memory = mmap.mmap(-1, _AHEAD * _SLOT) if context.get_start_method() == "fork" else None
            process = context.Process(target=_work, args=(theirs, recipe, memory), daemon=True, name="stoker-loader")
            # Stored before the start: a signal may raise anywhere in here, and every process has to be stopped.
            self._pipes.append(ours)
            self._processes.append(process)
            self._memories.append(memory)
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

    def is_usable(self) -> bool:
        """Whether the processes live and belong to this process, not to its parent before a fork."""
        return os.getpid() == self._owner and all(process.is_alive() for process in self._processes)

    def batches(self) -> Iterator[Any]:
        """Yields the batches in order, while later ones are being built; stops the processes at the end."""
        try:
            while True:
                self.send_tasks()
                if self._received == self._sent:
                    break
                answer = self._receive(self._received % len(self._pipes))
                self._received += 1
                if isinstance(answer, _Failure):
                    raise answer.error
                yield answer
            if self._error is not None:
                raise self._error
        finally:
            self.close()

    def send_tasks(self) -> None:
        """Sends tasks until each process has enough of them."""
        while self._tasks is not None and self._sent - self._received < _AHEAD * len(self._pipes):
            worker = self._sent % len(self._pipes)
            try:
                message = pack(next(self._tasks))
            except StopIteration:
                self._tasks = None
            except Exception as error:
                self._tasks, self._error = None, error
            else:
                try:
                    self._pipes[worker].send_bytes(message)
                except OSError as error:
                    raise self._death(worker) from error
                self._sent += 1

    def _receive(self, worker: int) -> Any:
        pipe, process = self._pipes[worker], self._processes[worker]
        try:
            # Looks now and then: a process that another thread forked meanwhile may keep the sentinel open.
            while pipe not in wait([pipe, process.sentinel], timeout=1):  # seconds
                if not process.is_alive() and not pipe.poll():
                    raise self._death(worker)
            return pickle.loads(pipe.recv_bytes(), buffers=repeat(self._memories[worker]))
        except (EOFError, OSError) as error:
            process.join(timeout=5)  # seconds; a process that ends closes its pipe first
            if process.exitcode is None:
                raise
            raise self._death(worker) from error

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
    for pipe in pipes:
        pipe.close()
    started = [process for process in processes if process.pid is not None]
    for process in started:
        process.kill()
    for process in started:
        process.join()


# --- in the worker process


def _work(pipe: Connection, recipe: Recipe, memory: mmap.mmap | None) -> None:
    """Builds the batch of one task after another, until the pipe or the parent process is gone."""
    for number in _IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _IGNORED_SIGNALS)  # blocked since before the start
    sys.stdout, sys.stderr = _reopen(sys.stdout), _reopen(sys.stderr)
    torch.set_num_threads(1)
    slot = None if memory is None else _Slot(memory)
    stack = torch.stack if slot is None else slot.stack
    tasks: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive_tasks, args=(pipe, tasks, os.getppid()), daemon=True).start()
    for number in count():
        message = tasks.get()
        if slot is not None:
            slot.start(number)
        try:
            answer = pack(recipe.build(pickle.loads(message), stack), share_above=_SHARED, slot=slot)
        except Exception as error:
            answer = _pickle_failure(error)
        pipe.send_bytes(answer)


def _reopen(stream: Any) -> Any:
    """Returns an unbuffered stream to the same file.

    A buffered one has a lock, which another thread of the parent process may have held during the fork: printing would
    then wait forever. And a worker is killed in the end, so what a transform printed must not wait in a buffer.
    """
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    try:
        file = io.FileIO(stream.fileno(), "w", closefd=False)
    except (OSError, ValueError):  # it has no file, or a closed one
        return stream
    return io.TextIOWrapper(file, stream.encoding, stream.errors, write_through=True)  # pyright: ignore[reportArgumentType]


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


class _Slot:
    """The place for the tensors of a batch in memory that a worker and the main process share.

    The main process copies them before it sends the task whose batch takes the same slot. So a batch that is kept takes
    neither a slot nor a file descriptor, and no batch pays for the first use of new memory.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._address = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
        self._start = self._end = 0
        self.buffer = pickle.PickleBuffer(memory)  # stands for the memory in a message

    def start(self, number: int) -> None:
        """Starts a batch, by its number among those of this worker."""
        self._start = number % _AHEAD * _SLOT
        self._end = self._start + _SLOT

    def stack(self, tensors: list[Tensor] | tuple[Tensor, ...]) -> Tensor:
        """Stacks tensors, in the slot if they are large and there is room."""
        first = tensors[0]
        is_large = _is_simple(first) and len(tensors) * first.nbytes > _SMALL
        if not is_large or not all(map(_is_simple, tensors)):
            return torch.stack(tensors)
        place = self._allocate(first.dtype, (len(tensors), *first.shape))
        return torch.stack(tensors) if place is None else torch.stack(tensors, out=place)

    def find_or_copy(self, tensor: Tensor) -> int | None:
        """Returns where a dense tensor is in the memory, to which it is copied if there is room; None if not."""
        if not 0 <= tensor.data_ptr() - self._address < len(self._memory):
            flat = tensor.as_strided((tensor.numel(),), (1,))
            place = self._allocate(tensor.dtype, flat.shape)
            if place is None:
                return None
            tensor = place.copy_(flat)
        return tensor.data_ptr() - self._address

    def _allocate(self, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor | None:
        count = math.prod(shape)
        stop = self._start + count * dtype.itemsize
        if not count or stop > self._end:
            return None
        place = torch.frombuffer(self._memory, dtype=dtype, count=count, offset=self._start).view(shape)
        self._start = -(-stop // 64) * 64  # bytes; as torch aligns tensors
        return place


def _is_plain(value: Any) -> bool:
    """Whether a value is an ordinary tensor on the CPU, with a stride for each dimension."""
    is_strided = type(value) is Tensor and value.device.type == "cpu" and value.layout == torch.strided
    return is_strided and not (value.is_nested or value.is_quantized or value.requires_grad)


def _is_simple(tensor: Tensor) -> bool:
    return _is_plain(tensor) and tensor.is_contiguous()


def pack(value: Any, *, share_above: float = math.inf, slot: _Slot | None = None) -> memoryview:
    """Pickles a value for another process, with its tensors in the slot; if that is full or None, as bytes.

    Tensors of more than `share_above` bytes then get shared memory of their own. That moves the storage of a tensor, so
    it is only for tensors that nothing else uses, and costs both processes a file descriptor while the tensor lives.
    Of a view only its own elements are sent.
    """
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, share_above, slot).dump(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise WrongType(
            f"samples and batches are sent between processes, and one can't be pickled ({error}); make it of tensors, "
            "arrays and plain values, or use workers=0"
        ) from error
    return buffer.getbuffer()


class _Pickler(ForkingPickler):
    """Python's pickler for other processes, in which torch shares tensors; most are in a slot or sent as bytes."""

    def __init__(self, buffer: io.BytesIO, share_above: float, slot: _Slot | None) -> None:
        # Only the memory is out of band: whoever unpickles has it already. Arrays of numpy stay in the message.
        super().__init__(buffer, 5, True, lambda each: slot is None or each is not slot.buffer)
        self._share_above, self._slot = share_above, slot

    def reducer_override(self, value: Any) -> Any:
        if not _is_plain(value):
            return NotImplemented
        is_dense = value.is_contiguous() and not value.is_conj() and not value.is_neg()
        own = value if is_dense else value.resolve_conj().resolve_neg().clone()  # with the strides of a dense original
        about = own.dtype, tuple(own.shape), own.stride()
        place = None if self._slot is None else self._slot.find_or_copy(own)
        if self._slot is not None and place is not None:
            return _copy_tensor, (self._slot.buffer, place, *about)
        if value.nbytes > self._share_above:
            return NotImplemented
        content = bytearray(own.as_strided((own.numel(),), (1,)).view(torch.uint8).numpy())
        return _copy_tensor, (content, 0, *about)


def _copy_tensor(
    buffer: Any, place: int, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...]
) -> Tensor:
    count = math.prod(shape)
    if not count:
        return torch.empty(shape, dtype=dtype, device="cpu")
    return torch.frombuffer(buffer, dtype=dtype, count=count, offset=place).as_strided(shape, stride).clone()
