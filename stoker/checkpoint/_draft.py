"""A checkpoint that is being written, in a folder beside its place: rank 0 makes and completes it, all fill it."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from stoker.checkpoint import _disk
from stoker.checkpoint._manifest import Manifest, Sum, check_place, to_text
from stoker.checkpoint._names import MANIFEST, beside, name_of, order_of
from stoker.checkpoint._place import Place, Saved, fields_of
from stoker.checkpoint._read import check_file, verify
from stoker.checkpoint._remove import remove
from stoker.checkpoint._shards import Parts, parted, write_shards
from stoker.checkpoint._tree import State, split
from stoker.checkpoint._write import new_file, write_state

Sums = Mapping[str, tuple[int, str]]  # of files, as ranks tell them each other


class Draft(NamedTuple):
    """A state to write: its plain values, its whole tensors, and by "part/name" the sharded ones."""

    place: Place
    plain: dict[str, Any]
    whole: Parts
    shards: dict[str, Tensor]


def drafted(state: State, place: Place) -> Draft:
    """What there is to write of a state; an error where it holds what can't be saved."""
    check_place(place)
    plain, tensors = split(state)
    return Draft(place, plain, *parted(tensors))


def begin(folder: Path, update: int) -> tuple[str, str]:
    """Makes the folder of a new checkpoint: the name that it will have, and the one that it has while it is written."""
    there = None
    try:
        with _made(folder) as root:
            name = _free_name(root, update)
            there = beside("part", name)
            _disk.make_folder(there, root)
    except BaseException:  # an interrupt may come when it has been made
        if there is not None:
            abandon(folder, there)
        raise
    return name, there


def fill(draft: Draft, folder: Path, there: str, rank: int) -> Sums:
    """Writes a rank's shards, and reads them back; the rest is rank 0's, and written when it is completed."""
    if not draft.shards:
        return {}
    with _disk.folder(folder) as root, _disk.folder(there, root) as within:
        sums = write_shards(draft.shards, within, rank)
        for name, said in sums.items():
            check_file(within, folder / there / name, said)
        _disk.sync(within)
    return sums


def complete(draft: Draft, folder: Path, run: str, begun: tuple[str, str], shards: list[Sums]) -> Saved:
    """Writes what is not sharded and the manifest, renames the folder, and reads it back."""
    name, there = begun
    with _disk.folder(folder) as root:
        try:
            with _disk.folder(there, root) as within:
                sums = write_state(draft.plain, draft.whole, within)
                sums |= {file: Sum(*each) for found in shards for file, each in found.items()}
                manifest = Manifest(_saved(draft.place, name, run, sums), sums, len(shards) if draft.shards else None)
                with new_file(MANIFEST, within) as file:
                    file.write(to_text(manifest))
                _disk.sync(within)
            _disk.rename(there, name, root)
            there = name
            _disk.sync(root)
            verify(root, folder / name, manifest)
        except BaseException:
            with suppress(OSError):
                remove(there, root)
            raise
    return manifest.saved


def abandon(folder: Path, there: str) -> None:
    """Removes what was begun, where it still is; what can't be removed is in nobody's way, and `clean` tries again."""
    with suppress(OSError), _disk.folder(folder) as root:
        remove(there, root)


def _saved(place: Place, name: str, run: str, sums: Mapping[str, Sum]) -> Saved:
    known = {**fields_of(place), "values": {key: float(value) for key, value in place.values.items()}}
    return Saved(**known, name=name, run=run, time=time.time(), bytes=sum(each.bytes for each in sums.values()))


@contextmanager
def _made(folder: Path) -> Iterator[int]:
    """The folder of the checkpoints, open; it is made where there is none."""
    try:
        root = _disk.open_folder(folder)
    except FileNotFoundError:
        _make(folder)
        root = _disk.open_folder(folder)
    with _disk.closing(root):
        yield root


def _make(folder: Path) -> None:
    """Makes a folder, and those above it where they are missing; they are on the disk when this returns."""
    try:
        _disk.make_folder(folder)
    except FileNotFoundError:
        _make(folder.parent)
        _disk.make_folder(folder)
    with _disk.folder(folder.parent) as parent:
        _disk.sync(parent)


def _free_name(root: int, update: int) -> str:
    """A name that sorts after all that there are for this update."""
    numbers = [order[1] for name in _disk.names(root) if (order := order_of(name)) is not None and order[0] == update]
    return name_of(update, max(numbers) + 1 if numbers else 0)
