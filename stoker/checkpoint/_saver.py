"""Saves checkpoints while the training continues: copies of the state, which a thread writes one at a time."""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from pathlib import Path
from threading import Event, Lock, Thread
from typing import NamedTuple

import torch
from torch import Tensor

from stoker.checkpoint._directory import sync_file
from stoker.checkpoint._encoding import EncodedState, State, encode
from stoker.checkpoint._manifest import Moment, Place, Saved
from stoker.checkpoint._policy import Policy
from stoker.checkpoint._store import Store
from stoker.distributed import (
    FailedElsewhere,
    World,
    broadcast_result,
    describe_failure,
    from_local,
    is_dtensor,
    to_local,
)
from stoker.errors import CheckpointFailed, PeerFailed


class Saver:
    """Saves states as a policy decides, one checkpoint at a time; with `background` a thread writes them.

    `ignored` are names of checkpoints that the policy does not see, because they are damaged. With several ranks each
    has a saver and calls `save`, `wait` and `close` where the others do: rank 0 decides what is written and deleted,
    and a failure is known to all. Only `save_reason` may differ between ranks, because of their clocks.
    """

    def __init__(self, store: Store, policy: Policy, *, background: bool, ignored: Collection[str] = ()) -> None:
        self.slowest = 0.0  # the longest time in seconds from `save` until a checkpoint was complete
        self._world = store.world
        # Several ranks write in a group of their own, so that the thread's messages do not mix with the training's.
        needs_group = background and self._world.size > 1
        self._store = store.with_world(_separate_group(self._world)) if needs_group else store
        self._policy = policy
        self._copier = StateCopier() if background else None
        self._saved = [saved for saved in self._store.saved() if saved.name not in ignored]  # with the one in flight
        self._task: _Task | None = None
        self._finished: list[Saved] = []
        self._failure: BaseException | None = None

    def may_be_due(self, update: int) -> bool:
        """Whether to call `save_reason` after a batch in the middle of an epoch without a validation; very cheap."""
        return self._policy.may_save_at(update)

    def count_updates_until_due(self, update: int) -> float:
        """After how many more updates a checkpoint is due; infinite if updates do not decide."""
        return self._policy.count_updates_until_due(update)

    def save_reason(self, here: Moment) -> str | None:
        """The reason to save now, or `None`; cheap enough to call after every batch."""
        return self._policy.save_reason(here, self._saved)

    def save(self, state: State, place: Place, *, events: Path | None = None) -> None:
        """Saves a state; with a thread it returns when there is a copy, else when the checkpoint is complete.

        Waits for the previous checkpoint. If that one failed, raises its `CheckpointFailed` and saves nothing; call
        `save` again to save. The file `events` is synced before the checkpoint is written.
        """
        self.wait()
        task = _Task(self._store, self._policy, place, events, self._saved)
        copied = _CopiedState(state)
        if self._copier is not None:
            try:
                with task.explain_failure():
                    copied = self._copier.copy(encode(state), only_shards=not self._world.is_first)
            except CheckpointFailed:
                if self._world.size == 1:
                    raise
                # Writing this state fails in the same way, and then all ranks know.
        task.copied = copied
        self._task = task
        if self._copier is None:
            self.wait()
            return
        self._saved = _with_new(self._saved, Saved(**place.as_dict(), name="", run="", time=0.0, bytes=0))
        # Not a daemon: Python waits for the thread at exit, where a daemon inside torch's C++ could abort the process.
        try:
            Thread(target=task.run, name="stoker-checkpoint", daemon=False).start()
        except RuntimeError:  # too many threads, or Python is about to exit
            task.run()

    def take_finished(self) -> list[Saved]:
        """The checkpoints that were completed since the last call; raises `CheckpointFailed` if one failed.

        With several ranks the next `save` or `wait` raises it instead, on all ranks together; see `has_failed`.
        """
        if self._task is not None and self._task.done.is_set():
            self._join()
        if self._world.size == 1:
            self._raise_failure()
        finished, self._finished = self._finished, []
        return finished

    @property
    def has_failed(self) -> bool:
        """Whether the next `save` or `wait` raises the failure of a checkpoint."""
        return self._failure is not None

    def wait(self) -> None:
        """Waits until nothing is being written; raises `CheckpointFailed` if that failed."""
        self._join()
        self._raise_failure()

    def close(self) -> None:
        """Waits and frees the memory of the copies; a failure is still raised by the next call."""
        self._join()
        if self._copier is not None:
            self._copier.clear()

    def _join(self) -> None:
        task = self._task
        if task is None:
            return
        task.run()  # there is no thread, or an interrupt came before it had started
        # Not `Thread.join`: if that is interrupted, Python 3.11 takes the thread for finished.
        task.done.wait()
        self._task = None
        self._saved, self._failure = task.saved, task.failure
        self._finished += task.written
        self.slowest = max(self.slowest, task.seconds)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure


class _Task:
    """Writes one checkpoint and deletes old ones; holds the results for the training's thread."""

    def __init__(self, store: Store, policy: Policy, place: Place, events: Path | None, saved: list[Saved]) -> None:
        self._store, self._policy, self._place, self._events = store, policy, place, events
        self._started = time.monotonic()
        self._claim = Lock()
        self.copied = _CopiedState({})
        self.saved = saved
        self.written: list[Saved] = []
        self.failure: BaseException | None = None
        self.seconds = 0.0
        self.done = Event()

    def run(self) -> None:
        """Does the work on the first thread that calls this; the others return at once."""
        if not self._claim.acquire(blocking=False):
            return
        try:
            with self.explain_failure(), self.copied.wait() as state:
                broadcast_result(self._store.world, self._sync_events)
                self.written = [self._store.write(state, self._place)]
            self.saved = _with_new(self.saved, self.written[0])
            self._delete_old()
        except BaseException as error:  # raised later, on the training's thread
            self.failure = error
        finally:
            self.seconds = time.monotonic() - self._started
            self.done.set()

    def _sync_events(self) -> None:
        if self._events is not None:
            sync_file(self._events)

    def _delete_old(self) -> None:
        names = broadcast_result(self._store.world, lambda: self._policy.names_to_delete(self.saved))
        self.saved = [saved for saved in self.saved if saved.name not in names]  # each is tried once
        failures: list[tuple[str, Exception]] = []
        for name in names:
            try:
                self._store.delete(name)
            except Exception as error:
                failures.append((name, error))
        if failures:
            name, error = failures[0]
            raise CheckpointFailed(
                f"the old checkpoint {name} could not be deleted from {self._store.folder}: {describe_failure(error)}, "
                f"then resume the run: {self.written[0].name} is complete"
            ) from error

    @contextmanager
    def explain_failure(self) -> Iterator[None]:
        """Raises an exception as `CheckpointFailed`, which says what failed, and which checkpoints are complete."""
        try:
            yield
        except Exception as error:
            if isinstance(error, PeerFailed) and not isinstance(error, FailedElsewhere):
                raise  # the other ranks are gone, which is not a failure of the disk
            complete = [saved.name for saved in self.saved if saved.resumable]
            advice = f"resume the run: {complete[-1]} is complete" if complete else "start the run again"
            raise CheckpointFailed(
                f"the checkpoint at update {self._place.update} could not be written to {self._store.folder}: "
                f"{describe_failure(error)}, then {advice}"
            ) from error


def _with_new(saved: Sequence[Saved], new: Saved) -> list[Saved]:
    """Sorted by update; the new checkpoint comes last among those of the same update."""
    return sorted([*saved, new], key=lambda each: each.update)


@lru_cache(maxsize=1)  # a group has threads and connections, and only one saver writes at a time
def _separate_group(world: World) -> World:
    """The same ranks in a process group of their own."""
    return world.with_own_group()


# --- Copies of a state, taken between two updates


class _CopiedState(NamedTuple):
    """A state to write, and for each of its GPUs the event after which the copies are complete."""

    state: State | EncodedState
    events: Mapping[torch.device, torch.cuda.Event] = {}

    @contextmanager
    def wait(self) -> Iterator[State | EncodedState]:
        """Yields the state on the thread that writes it, when the copies are complete; the training does not wait."""
        with ExitStack() as streams:
            for device, event in self.events.items():
                event.synchronize()  # sync: this thread with the copies; it releases the GIL meanwhile
                # High priority: torch reuses a few streams, and a CUDA graph may be captured on one of the others.
                streams.enter_context(torch.cuda.stream(torch.cuda.Stream(device, priority=-1)))
            yield self.state


_Key = tuple[str, str, torch.device, torch.Size, torch.dtype]  # part, name, and what the memory has to fit


class StateCopier:
    """Copies states into memory that is allocated once and reused.

    A tensor on the CPU is copied there. A tensor on a GPU is copied on that GPU if it has enough free memory, else to
    pinned memory; in both cases the copy is queued on the stream between two updates, and nothing waits for it here.
    """

    def __init__(self) -> None:
        self._buffers: dict[_Key, Tensor] = {}

    def copy(self, state: EncodedState, *, only_shards: bool = False) -> _CopiedState:
        """Copies the tensors of a state, or only the sharded ones; overwrites what the previous call returned."""
        tensors: dict[_Key, Tensor] = {}
        for part, named in state.tensors.items():
            for name, tensor in named.items():
                if is_dtensor(tensor) or not only_shards:
                    local = to_local(tensor)
                    tensors[part, name, local.device, local.shape, local.dtype] = tensor
        copies: dict[str, dict[str, Tensor]] = {}
        with torch.inference_mode(False), torch.no_grad():  # inference tensors could not be overwritten later
            self._allocate(tensors)
            for key, tensor in tensors.items():
                self._buffers[key].copy_(to_local(tensor), non_blocking=True)
                copies.setdefault(key[0], {})[key[1]] = from_local(self._buffers[key], tensor)
        events: dict[torch.device, torch.cuda.Event] = {}
        for device in {key[2] for key in tensors if key[2].type == "cuda"}:
            events[device] = torch.cuda.Event()
            events[device].record(torch.cuda.current_stream(device))
        return _CopiedState(EncodedState(state.plain, copies), events)

    def _allocate(self, keys: Collection[_Key]) -> None:
        """Allocates memory for new keys, and frees that of others."""
        self._buffers = {key: buffer for key, buffer in self._buffers.items() if key in keys}
        new = [key for key in keys if key not in self._buffers]
        for device in {key[2] for key in new}:
            wanted = [key for key in new if key[2] == device]
            buffers = _allocate_for_gpu(wanted, device) if device.type == "cuda" else [_empty(key) for key in wanted]
            self._buffers.update(zip(wanted, buffers, strict=True))

    def clear(self) -> None:
        """Frees the memory."""
        self._buffers = {}


def _allocate_for_gpu(keys: list[_Key], device: torch.device) -> list[Tensor]:
    """On the GPU if it has twice the memory that is needed, because the training needs some too; else pinned."""
    needed = sum(shape.numel() * dtype.itemsize for *_, shape, dtype in keys)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if torch.cuda.mem_get_info(device)[0] + unused >= 2 * needed:
        try:
            return [_empty(key, device) for key in keys]
        except torch.OutOfMemoryError:  # the free memory is fragmented
            pass
    return [_empty(key, pin_memory=True) for key in keys]


def _empty(key: _Key, device: torch.device | str = "cpu", *, pin_memory: bool = False) -> Tensor:
    *_, shape, dtype = key
    return torch.empty(shape, dtype=dtype, device=device, pin_memory=pin_memory)
