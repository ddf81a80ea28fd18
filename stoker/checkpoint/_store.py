"""The checkpoints of one run: each is there whole, or it is not there."""

import errno
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from stoker.checkpoint import _disk
from stoker.checkpoint._manifest import Manifest, Sum, check_place, to_text
from stoker.checkpoint._names import MANIFEST, beside, is_leftover, is_ours, name_of, order_of
from stoker.checkpoint._place import Place, Saved
from stoker.checkpoint._read import read_manifest, read_state, refusing, verify
from stoker.checkpoint._tree import State, split
from stoker.checkpoint._write import new_file, write_state
from stoker.errors import BadFile, InvalidArgument, MissingFile


class Found(NamedTuple):
    """What was found on disk: a checkpoint and its state, and a line for each newer one that had to be skipped."""

    saved: Saved | None
    state: dict[str, Any]
    problems: list[str]


class Store:
    """The checkpoints of one run, in a folder of their own.

    >>> import tempfile
    >>> import torch
    >>> from stoker.checkpoint import Place, Store
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = Store(folder, run="5f0c")
    ...     saved = store.write({"model": {"weight": torch.ones(2)}}, Place(epoch=1, batch=0, update=120))
    ...     print(saved.name, store.newest().state)
    00000120 {'model': {'weight': tensor([1., 1.])}}

    A checkpoint is written beside its place, synced, renamed into it and read back. `run` is written into each, and
    those of other runs are neither given nor deleted.
    """

    def __init__(self, folder: str | os.PathLike[str], *, run: str = "") -> None:
        self.folder = Path(os.path.abspath(folder))  # also where the process changes its folder later on
        self._run = run

    def write(self, state: State, place: Place) -> Saved:
        """Saves a state; it is whole, verified and on the disk when this returns.

        After an exception everything is as it was: an `OSError` of the disk's (full, read-only), or a `StokerError`
        where the state holds what can't be saved or what was read back is not what was written.
        """
        check_place(place)
        plain, tensors = split(state)
        with self._made() as root:
            name = _free_name(root, place.update)
            there = beside("part", name)
            try:
                _disk.make_folder(there, root)
                with _disk.folder(there, root) as folder:
                    sums = write_state(plain, tensors, folder)
                    manifest = Manifest(self._saved(place, name, sums), sums)
                    with new_file(MANIFEST, folder) as file:
                        file.write(to_text(manifest))
                    _disk.sync(folder)
                _disk.rename(there, name, root)
                there = name
                _disk.sync(root)
                verify(root, self.folder / name, manifest)
            except BaseException:
                with suppress(OSError):
                    _remove(there, root)
                raise
        return manifest.saved

    def saved(self) -> list[Saved]:
        """The checkpoints of this run, oldest first, as their manifests say; the rest of them is not read."""
        found: list[Saved] = []
        with suppress(MissingFile), self._opened() as root:
            for name in _in_order(root):
                with suppress(BadFile):
                    found.append(self._manifest(root, name).saved)
        return found

    def read(self, saved: Saved) -> dict[str, Any]:
        """The state of a checkpoint; `BadFile` unless every byte is the one that was written."""
        with self._opened() as root:
            return read_state(root, self.folder / saved.name, self._manifest(root, saved.name))

    def newest(self, wanted: Callable[[Saved], bool] = lambda saved: True) -> Found:
        """The newest wanted checkpoint that can be read whole, and what was wrong with those after it."""
        problems: list[str] = []
        with suppress(MissingFile), self._opened() as root:
            for name in reversed(_in_order(root)):
                try:
                    manifest = self._manifest(root, name)
                    if wanted(manifest.saved):
                        return Found(manifest.saved, read_state(root, self.folder / name, manifest), problems)
                except BadFile as error:
                    problems.append(str(error).replace(f"{self.folder}{os.sep}", ""))
        return Found(None, {}, problems)

    def delete(self, name: str) -> None:
        """Deletes a checkpoint of this run; one that doesn't say that it is of this run is a `BadFile`, and stays."""
        with _disk.folder(self.folder) as root:
            self._manifest(root, name)
            _remove(name, root)

    @property
    def is_littered(self) -> bool:
        """Whether there is anything for `clean` to remove."""
        with suppress(FileNotFoundError), _disk.folder(self.folder) as root:
            return any(map(is_leftover, _disk.names(root)))
        return False

    def clean(self) -> None:
        """Removes what a killed process left half written or half deleted; for who has the run to itself."""
        with suppress(FileNotFoundError), _disk.folder(self.folder) as root:
            for name in filter(is_leftover, _disk.names(root)):
                with suppress(OSError):  # it is in nobody's way
                    _remove(name, root)

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """The folder, for reading: whatever is wrong with it is a `BadFile`."""
        with refusing(self.folder), _disk.folder(self.folder) as root:
            yield root

    @contextmanager
    def _made(self) -> Iterator[int]:
        """The folder, for writing; it is made where there is none."""
        try:
            root = _disk.open_folder(self.folder)
        except FileNotFoundError:
            _make(self.folder)
            root = _disk.open_folder(self.folder)
        with _disk.closing(root):
            yield root

    def _manifest(self, root: int, name: str) -> Manifest:
        if order_of(name) is None:
            raise InvalidArgument(f"{name!r} is no checkpoint's name; expected one like '00000120'")
        manifest = read_manifest(root, self.folder / name)
        if manifest.saved.run != self._run:
            raise BadFile(f"{self.folder / name} is of another run ({manifest.saved.run[:32]!r}, not {self._run!r})")
        return manifest

    def _saved(self, place: Place, name: str, sums: Mapping[str, Sum]) -> Saved:
        known = {each.name: getattr(place, each.name) for each in fields(Place)}
        known["values"] = {key: float(value) for key, value in place.values.items()}
        whole = sum(each.bytes for each in sums.values())
        return Saved(**known, name=name, run=self._run, time=time.time(), bytes=whole)


def _make(folder: Path) -> None:
    """Makes a folder, and those above it where they are missing; they are on the disk when this returns."""
    try:
        _disk.make_folder(folder)
    except FileNotFoundError:
        _make(folder.parent)
        _disk.make_folder(folder)
    with _disk.folder(folder.parent) as parent:
        _disk.sync(parent)


def _in_order(root: int) -> list[str]:
    """What is called like a checkpoint, oldest first."""
    orders = {name: order for name in _disk.names(root) if (order := order_of(name)) is not None}
    return sorted(orders, key=lambda name: orders[name])


def _free_name(root: int, update: int) -> str:
    """A name that sorts after all that there are for this update."""
    numbers = [order[1] for name in _disk.names(root) if (order := order_of(name)) is not None and order[0] == update]
    return name_of(update, max(numbers) + 1 if numbers else 0)


def _remove(name: str, root: int) -> None:
    """Removes a folder of ours: out of sight first, so that no half of it can be taken for a checkpoint."""
    if not is_leftover(name):
        gone = beside("gone", name)
        _disk.rename(name, gone, root)
        _disk.sync(root)
        name = gone
    with _disk.folder(name, root) as folder:
        for file in _disk.names(folder):
            if is_ours(file):
                _disk.unlink(file, folder)
    try:
        _disk.remove_folder(name, root)
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:  # then somebody has put files of their own there, and these stay
            raise
