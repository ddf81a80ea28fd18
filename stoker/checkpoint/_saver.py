"""Saves checkpoints while the training continues: copies of the state, which a thread writes one at a time."""

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from stoker.checkpoint._directory import sync_file
from stoker.checkpoint._encoding import MAX_DEPTH, State
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
from stoker.weights import check_tensor

TensorPath: TypeAlias = tuple[Any, ...]  # the keys and indices that lead to a tensor


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
        own_group = background and self._world.size > 1
        self._store = store.with_world(_separate_group(self._world)) if own_group else store
        self._policy = policy
        self._copier = StateCopier() if background else None
        self._saved = [each for each in self._store.saved() if each.name not in ignored]  # with the one in flight
        self._task: _Task | None = None
        self._thread: Thread | None = None
        self._finished: list[Saved] = []
        self._failure: BaseException | None = None

    def may_be_due(self, update: int) -> bool:
        """Whether to call `save_reason` after a batch in the middle of an epoch without a validation; very cheap."""
        return self._policy.may_save_at(update)

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
        state = state if self._world.is_first else _sharded_only(state)  # rank 0 writes the rest
        copied = _CopiedState(state) if self._copier is None else task.copy(state, self._copier)
        self._task = task
        if self._copier is None:
            task.run(copied)
            self.wait()
            return
        self._saved = _with_new(self._saved, Saved(**place.as_dict(), name="", run="", time=0.0, bytes=0))
        # Not a daemon: Python waits for the thread at exit, where a daemon inside torch's C++ could abort the process.
        self._thread = Thread(target=task.run, args=(copied,), name="stoker-checkpoint", daemon=False)
        try:
            self._thread.start()
        except RuntimeError:  # too many threads, or Python is about to exit
            self._thread = None
            task.run(copied)

    def take_finished(self) -> list[Saved]:
        """The checkpoints that were completed since the last call; raises `CheckpointFailed` if one failed.

        With several ranks the next `save` or `wait` raises it instead, on all ranks together; see `has_failed`.
        """
        if self._task is not None and self._task.done:
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
        if self._thread is not None:
            if self._thread.ident is not None:  # an interrupt may come before it is started
                self._thread.join()
            self._thread = None
        if self._task is not None:
            task, self._task = self._task, None
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
        self.saved = saved
        self.written: list[Saved] = []
        self.failure: BaseException | None = None
        self.seconds = 0.0
        self.done = False

    def copy(self, state: State, copier: "StateCopier") -> "_CopiedState":
        with self._explain_failure():
            return copier.copy(state)

    def run(self, copied: "_CopiedState") -> None:
        try:
            with self._explain_failure(), copied.wait() as state:
                broadcast_result(self._store.world, self._sync_events)
                self.written = [self._store.write(state, self._place)]
            self.saved = _with_new(self.saved, self.written[0])
            self._delete_old()
        except BaseException as error:  # raised later, on the training's thread
            self.failure = error
        self.seconds = time.monotonic() - self._started
        self.done = True

    def _sync_events(self) -> None:
        if self._events is not None:
            sync_file(self._events)

    def _delete_old(self) -> None:
        names = broadcast_result(self._store.world, lambda: self._policy.names_to_delete(self.saved))
        self.saved = [each for each in self.saved if each.name not in names]  # each is tried once
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
    def _explain_failure(self) -> Iterator[None]:
        """Raises an exception as `CheckpointFailed`, which says what failed, and which checkpoints are complete."""
        try:
            yield
        except Exception as error:
            if isinstance(error, PeerFailed) and not isinstance(error, FailedElsewhere):
                raise  # the other ranks are gone, which is not a failure of the disk
            complete = [each.name for each in self.saved if each.resumable]
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

    state: Mapping[str, Any]
    events: Mapping[torch.device, torch.cuda.Event] = {}

    @contextmanager
    def wait(self) -> Iterator[Mapping[str, Any]]:
        """Yields the state on the thread that writes it, when the copies are complete; the training does not wait."""
        with ExitStack() as streams:
            for device, event in self.events.items():
                event.synchronize()  # sync: this thread with the copies; it releases the GIL meanwhile
                # High priority: torch reuses a few streams, and a CUDA graph may be captured on one of the others.
                streams.enter_context(torch.cuda.stream(torch.cuda.Stream(device, priority=-1)))
            yield self.state


class _Buffer(NamedTuple):
    """Memory for the copy of one tensor."""

    device: torch.device  # of the tensor
    copy: Tensor

    def fits(self, tensor: Tensor) -> bool:
        return self.device == tensor.device and self.copy.shape == tensor.shape and self.copy.dtype == tensor.dtype


class StateCopier:
    """Copies states into memory that is allocated once and reused.

    A tensor on the CPU is copied there. A tensor on a GPU is copied on that GPU if it has enough free memory, else to
    pinned memory; in both cases the copy is queued on the stream between two updates, and nothing waits for it here.
    """

    def __init__(self) -> None:
        self._buffers: dict[TensorPath, _Buffer] = {}

    def copy(self, state: Mapping[str, Any]) -> _CopiedState:
        """Copies everything in a state that can change; overwrites the copy that the previous call returned."""
        found: dict[TensorPath, Tensor] = {}

        def collect(path: TensorPath, tensor: Tensor) -> Tensor:
            check_tensor(".".join(map(str, path)), to_local(tensor))
            found[path] = to_local(tensor).detach()
            return tensor

        with torch.inference_mode(False), torch.no_grad():  # inference tensors could not be overwritten later
            _map_tensors(state, collect)
            kept = {path: each for path, each in self._buffers.items() if path in found and each.fits(found[path])}
            self._buffers = kept | _allocate({path: each for path, each in found.items() if path not in kept})
            for path, tensor in found.items():
                self._buffers[path].copy.copy_(tensor, non_blocking=True)
            events: dict[torch.device, torch.cuda.Event] = {}
            for gpu in {each.device for each in found.values() if each.is_cuda}:
                events[gpu] = torch.cuda.Event()
                events[gpu].record(torch.cuda.current_stream(gpu))
            return _CopiedState(
                _map_tensors(state, lambda path, tensor: from_local(self._buffers[path].copy, tensor)), events
            )

    def clear(self) -> None:
        """Frees the memory."""
        self._buffers = {}


def _sharded_only(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same state with `None` for every whole tensor: what ranks other than 0 have to write."""
    return _map_tensors(state, lambda _, tensor: tensor if is_dtensor(tensor) else None)


def _map_tensors(tree: Any, function: Callable[[TensorPath, Tensor], Tensor | None], path: TensorPath = ()) -> Any:
    """The same tree in new containers, with `function(path, tensor)` in place of each tensor.

    Unlike `stoker._tree` it supports deques, copies bytearrays, and leaves to the store what that refuses.
    """
    if isinstance(tree, Tensor):
        return function(path, tree)
    if len(path) > MAX_DEPTH or hasattr(tree, "_fields"):  # the store raises for these
        return tree
    if isinstance(tree, bytearray):
        return bytes(tree)
    if isinstance(tree, Mapping):
        return {key: _map_tensors(value, function, (*path, key)) for key, value in tree.items()}
    if not isinstance(tree, list | tuple | deque):
        return tree
    items = [_map_tensors(value, function, (*path, place)) for place, value in enumerate(tree)]
    if isinstance(tree, deque):
        return deque(items, tree.maxlen)
    return items if isinstance(tree, list) else tuple(items)


def _allocate(tensors: Mapping[TensorPath, Tensor]) -> dict[TensorPath, _Buffer]:
    made: dict[TensorPath, _Buffer] = {}
    for device in {each.device for each in tensors.values()}:
        own = {path: each for path, each in tensors.items() if each.device == device}
        copies = _allocate_for_gpu(own, device) if device.type == "cuda" else [_empty(each) for each in own.values()]
        made |= {path: _Buffer(device, copy) for path, copy in zip(own, copies, strict=True)}
    return made


def _allocate_for_gpu(tensors: Mapping[TensorPath, Tensor], device: torch.device) -> list[Tensor]:
    """On the GPU if it has twice the memory that is needed, because the training needs some too; else pinned."""
    needed = sum(each.nbytes for each in tensors.values())
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if torch.cuda.mem_get_info(device)[0] + unused >= 2 * needed:
        try:
            return [_empty(each, device=device) for each in tensors.values()]
        except torch.OutOfMemoryError:  # the free memory is fragmented
            pass
    return [_empty(each, pin_memory=True) for each in tensors.values()]


def _empty(like: Tensor, device: torch.device | str = "cpu", *, pin_memory: bool = False) -> Tensor:
    return torch.empty(like.shape, dtype=like.dtype, device=device, pin_memory=pin_memory)
