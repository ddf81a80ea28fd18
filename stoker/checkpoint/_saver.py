"""Saving beside the training: one checkpoint at a time is written, here or by a thread, and old ones are deleted."""

from collections.abc import Collection
from pathlib import Path
from threading import Thread

from stoker.checkpoint._agree import apart
from stoker.checkpoint._copy import Copied, Copies, sharded_only
from stoker.checkpoint._place import Moment, Place, Saved, fields_of
from stoker.checkpoint._policy import Policy, Save, as_rule
from stoker.checkpoint._store import Store
from stoker.checkpoint._tree import State
from stoker.checkpoint._writing import Writing, with_new
from stoker.distributed import World


class Saver:
    """Saves a training as a policy says, one checkpoint at a time; a thread writes it where `background` is set.

    `ignored` are names of checkpoints that the policy doesn't get to see: damaged ones, that count for nothing.
    With several ranks every one has a saver, and calls `save`, `wait` and `close` where the others do: what is written,
    deleted and kept is rank 0's word, and all know of a failure. Only the answer to `due` may differ, by the clock.
    """

    def __init__(
        self,
        store: Store,
        policy: Policy,
        *,
        background: bool,
        ignored: Collection[str] = (),
        world: World | None = None,
    ) -> None:
        self.slowest = 0.0  # seconds that a checkpoint took at most, from `save` until it was whole
        self._world = store.world if world is None else world
        self._store = store.of(apart(self._world) if background else self._world) if self._world.size > 1 else store
        self._policy = as_rule(policy)
        self._copies = Copies() if background else None
        # The one that is being written is among them.
        self._saved = [each for each in self._store.saved() if each.name not in ignored]
        self._writing: Writing | None = None
        self._thread: Thread | None = None
        self._finished: list[Saved] = []
        self._failure: BaseException | None = None

    def may_be_due(self, update: int) -> bool:
        """Whether to ask `due` after a batch that was neither validated nor an epoch's last; costs next to nothing."""
        pace = self._policy.pace
        return pace is None or (pace > 0 and update % pace == 0)

    def due(self, here: Moment) -> str | None:
        """The reason to save now, or None; cheap enough to be asked after every batch."""
        wanted = self._policy.saves(here, self._saved)
        return "; ".join(each.reason for each in wanted if isinstance(each, Save)) if wanted else None

    def save(self, state: State, place: Place, *, events: Path | None = None) -> None:
        """Saves a state; with a thread it returns as soon as there is a copy, else when the checkpoint is whole.

        It waits for the checkpoint before this one, and raises that one's failure with nothing saved; called again, it
        saves. The file `events` is on the disk before the checkpoint is.
        """
        self.wait()
        writing = Writing(self._store, self._policy, place, events, self._saved)
        state = state if self._world.is_first else sharded_only(state)  # the rest is rank 0's to write
        copied = Copied(state) if self._copies is None else writing.copy(state, self._copies)
        self._writing = writing
        if self._copies is None:
            writing.run(copied)
            self.wait()
            return
        self._saved = with_new(self._saved, Saved(**fields_of(place), name="", run="", time=0.0, bytes=0))
        # Not a daemon: Python waits for it at its end, where one inside torch's C++ would abort the process.
        self._thread = Thread(target=writing.run, args=(copied,), name="stoker-checkpoint", daemon=False)
        try:
            self._thread.start()
        except RuntimeError:  # there are too many threads, or Python is about to end
            self._thread = None
            writing.run(copied)

    def finished(self) -> list[Saved]:
        """The checkpoints that were written since this was last asked; `CheckpointFailed` where one was not.

        With several ranks, that is raised by the next `save` or `wait`, on all at the same place; see `troubled`.
        """
        if self._writing is not None and self._writing.over:
            self._join()
        if self._world.size == 1:
            self._raise_failure()
        finished, self._finished = self._finished, []
        return finished

    @property
    def troubled(self) -> bool:
        """Whether a checkpoint is known to have failed, so that the next `save` or `wait` raises."""
        return self._failure is not None

    def wait(self) -> None:
        """Waits until nothing is being written; raises as `finished` does."""
        self._join()
        self._raise_failure()

    def close(self) -> None:
        """Waits, and gives the memory of the copies back; a failure is still there for `finished` to raise."""
        self._join()
        if self._copies is not None:
            self._copies.clear()

    def _join(self) -> None:
        if self._thread is not None:
            if self._thread.ident is not None:  # an interrupt may come before it is started
                self._thread.join()
            self._thread = None
        if self._writing is not None:
            writing, self._writing = self._writing, None
            self._saved, self._failure = writing.saved, writing.failure
            self._finished += writing.written
            self.slowest = max(self.slowest, writing.seconds)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
