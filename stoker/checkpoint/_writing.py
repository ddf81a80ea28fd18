"""One checkpoint on its way to the disk: what is written, what is deleted then, and what is said where that fails."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from stoker.checkpoint import _disk
from stoker.checkpoint._agree import Elsewhere, by_first, said
from stoker.checkpoint._copy import Copied, Copies
from stoker.checkpoint._place import Moment, Place, Saved, fields_of
from stoker.checkpoint._policy import Delete, Rule
from stoker.checkpoint._store import Store
from stoker.checkpoint._tree import State
from stoker.errors import CheckpointFailed, PeerFailed


class Writing:
    """One checkpoint on its way to the disk, and what became of it."""

    def __init__(self, store: Store, policy: Rule, place: Place, events: Path | None, saved: list[Saved]) -> None:
        self._store, self._policy, self._place, self._events = store, policy, place, events
        self._began = time.monotonic()
        self.saved = saved
        self.written: list[Saved] = []
        self.failure: BaseException | None = None
        self.seconds = 0.0
        self.over = False

    def copy(self, state: State, copies: Copies) -> Copied:
        with self._named():
            return copies.take(state)

    def run(self, copied: Copied) -> None:
        try:
            self._write(copied)
            self._delete_old()
        except BaseException as error:  # a thread has nobody to tell; the training asks
            self.failure = error
        self.seconds = time.monotonic() - self._began
        self.over = True

    def _write(self, copied: Copied) -> None:
        with self._named(), copied.arrived() as state:
            by_first(self._store.world, self._sync_events)
            self.written = [self._store.write(state, self._place)]
        self.saved = with_new(self.saved, self.written[0])

    def _sync_events(self) -> None:
        if self._events is not None:
            _sync(self._events)

    def _delete_old(self) -> None:
        actions = self._policy.deletes(Moment(**fields_of(self._place)), self.saved)
        doomed: list[str] = self._store.world.broadcast_object(
            [each.name for each in actions if isinstance(each, Delete)]
        )
        self.saved = [each for each in self.saved if each.name not in doomed]  # each is tried once
        failures: list[tuple[str, Exception]] = []
        for name in doomed:
            try:
                self._store.delete(name)
            except Exception as error:
                failures.append((name, error))
        if failures:
            name, error = failures[0]
            raise CheckpointFailed(
                f"the old checkpoint {name} could not be deleted from {self._store.folder}: {said(error)}, "
                f"then resume the run: {self.written[0].name} is whole"
            ) from error

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Gives an exception the name of what could not be done, where, and what is left."""
        try:
            yield
        except Exception as error:
            if isinstance(error, PeerFailed) and not isinstance(error, Elsewhere):
                raise  # nobody is left to write with: that is not the disk's fault
            whole = [each.name for each in self.saved if each.resumable]
            rest = f"resume the run: {whole[-1]} is whole" if whole else "start the run again: there is no other one"
            raise CheckpointFailed(
                f"the checkpoint at update {self._place.update} could not be written to {self._store.folder}: "
                f"{said(error)}, then {rest}"
            ) from error


def with_new(saved: Sequence[Saved], new: Saved) -> list[Saved]:
    """Checkpoints in order with a new one among them; of the same update it comes last."""
    return sorted([*saved, new], key=lambda each: each.update)


def _sync(path: Path) -> None:
    with _disk.folder(path.parent) as folder:
        file, _ = _disk.open_file(path.name, folder)
        try:
            _disk.sync(file)
        finally:
            _disk.close(file)
