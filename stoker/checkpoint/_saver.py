"""Saves checkpoints while the training continues: one at a time, on a thread, and deletes old ones."""

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from threading import Thread

from stoker.checkpoint._copies import CopiedState, StateCopier, sharded_only
from stoker.checkpoint._encoding import State
from stoker.checkpoint._manifest import Moment, Place, Saved
from stoker.checkpoint._policy import Policy
from stoker.checkpoint._store import Store
from stoker.checkpoint._writing import sync_file
from stoker.distributed import FailedElsewhere, World, broadcast_result, describe_failure
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
        state = state if self._world.is_first else sharded_only(state)  # rank 0 writes the rest
        copied = CopiedState(state) if self._copier is None else task.copy(state, self._copier)
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

    def copy(self, state: State, copier: StateCopier) -> CopiedState:
        with self._explain_failure():
            return copier.copy(state)

    def run(self, copied: CopiedState) -> None:
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
        """Raises an exception as `CheckpointFailed`, which says what failed, where, and what is left."""
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
