"""The checkpoints of one run: each is there whole, or it is not there."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from stoker.checkpoint import _disk
from stoker.checkpoint._agree import agreed, by_first
from stoker.checkpoint._draft import Draft, abandon, begin, complete, drafted, fill
from stoker.checkpoint._manifest import Manifest
from stoker.checkpoint._model import model_state
from stoker.checkpoint._names import is_leftover, order_of
from stoker.checkpoint._place import Place, Saved
from stoker.checkpoint._read import read_manifest, read_state, refusing
from stoker.checkpoint._remove import remove
from stoker.checkpoint._tree import State
from stoker.distributed import World
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

    With several ranks in `world`, all of them share the folder, call the same methods and get the same answers. Rank 0
    writes what is whole and each rank its part of what is sharded; any number of ranks reads it again.
    """

    def __init__(self, folder: str | os.PathLike[str], *, run: str = "", world: World | None = None) -> None:
        self.folder = Path(os.path.abspath(folder))  # also where the process changes its folder later on
        self.world = World() if world is None else world
        self._run = run

    def of(self, world: World) -> "Store":
        """The same checkpoints, for these ranks."""
        return Store(self.folder, run=self._run, world=world)

    def write(self, state: State, place: Place) -> Saved:
        """Saves a state; it is whole, verified and on the disk when this returns.

        After an exception everything is as it was: an `OSError` of the disk's (full, read-only), or a `StokerError`
        where the state holds what can't be saved or what was read back is not what was written. Where that was another
        rank's, it is a `PeerFailed` with that rank's words.
        """
        world, drafts = self.world, list[Draft]()
        agreed(world, lambda: drafts.append(drafted(state, place)))
        begun = by_first(world, lambda: begin(self.folder, place.update))
        try:
            sums = agreed(world, lambda: fill(drafts[0], self.folder, begun[1], world.rank))
            made = by_first(world, lambda: asdict(complete(drafts[0], self.folder, self._run, begun, sums)))
        except BaseException:
            if world.is_first:
                abandon(self.folder, begun[1])
            raise
        return Saved(**made)

    def saved(self) -> list[Saved]:
        """The checkpoints of this run, oldest first, as their manifests say; the rest of them is not read."""
        return [Saved(**each) for each in by_first(self.world, self._listed)]

    def _listed(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        with suppress(MissingFile), self._opened() as root:
            for name in _in_order(root):
                with suppress(BadFile):
                    found.append(asdict(self._manifest(root, name).saved))
        return found

    def read(self, saved: Saved, *, like: nn.Module | None = None) -> dict[str, Any]:
        """The state of a checkpoint; `BadFile` unless every byte is the one that was written.

        What was sharded comes whole. With a sharded model as `like`, a tensor that is kept under a parameter's name
        and has its shape (a weight, a moment, an average) comes sharded as that parameter is, however it was saved.
        """
        return self._tried(saved.name, lambda _: True, _places(like))[1]

    def newest(self, wanted: Callable[[Saved], bool] = lambda saved: True, *, like: nn.Module | None = None) -> Found:
        """The newest wanted checkpoint that can be read whole, and what was wrong with those after it."""
        problems: list[str] = []
        places = _places(like)
        for name in by_first(self.world, self._names):
            try:
                saved, state = self._tried(name, wanted, places)
            except BadFile as error:
                problems.append(str(error).replace(f"{self.folder}{os.sep}", ""))
                continue
            if saved is not None:
                return Found(saved, state, problems)
        return Found(None, {}, problems)

    def _names(self) -> list[str]:
        with suppress(MissingFile), self._opened() as root:
            return _in_order(root)[::-1]
        return []

    def _tried(
        self, name: str, wanted: Callable[[Saved], bool], like: Mapping[str, Tensor]
    ) -> tuple[Saved | None, dict[str, Any]]:
        """A checkpoint and its state, or None where it is not wanted; a `BadFile` on all ranks if on one."""
        found: tuple[Saved | None, dict[str, Any]] = None, {}
        problem: BadFile | None = None
        try:
            with self._opened() as root:
                manifest = self._manifest(root, name)
                if wanted(manifest.saved):
                    found = manifest.saved, read_state(root, self.folder / name, manifest, like, self.world)
        except BadFile as error:
            problem = error
        for rank, text in enumerate(agreed(self.world, lambda: problem and str(problem))):
            if text is not None:
                raise problem if problem and self.world.size == 1 else BadFile(f"rank {rank}: {text}")
        return found

    def delete(self, name: str) -> None:
        """Deletes a checkpoint of this run; one that doesn't say that it is of this run is a `BadFile`, and stays."""
        by_first(self.world, lambda: self._delete(name))

    def _delete(self, name: str) -> None:
        with _disk.folder(self.folder) as root:
            self._manifest(root, name)
            remove(name, root)

    @property
    def is_littered(self) -> bool:
        """Whether there is anything for `clean` to remove."""
        with suppress(FileNotFoundError), _disk.folder(self.folder) as root:
            return any(map(is_leftover, _disk.names(root)))
        return False

    def clean(self) -> None:
        """Removes what a killed process left half written or half deleted; for who has the run to itself."""
        by_first(self.world, self._clean)

    def _clean(self) -> None:
        with suppress(FileNotFoundError), _disk.folder(self.folder) as root:
            for name in filter(is_leftover, _disk.names(root)):
                with suppress(OSError):  # it is in nobody's way
                    remove(name, root)

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """The folder, for reading: whatever is wrong with it is a `BadFile`."""
        with refusing(self.folder), _disk.folder(self.folder) as root:
            yield root

    def _manifest(self, root: int, name: str) -> Manifest:
        if order_of(name) is None:
            raise InvalidArgument(f"{name!r} is no checkpoint's name; expected one like '00000120'")
        manifest = read_manifest(root, self.folder / name)
        if manifest.saved.run != self._run:
            raise BadFile(f"{self.folder / name} is of another run ({manifest.saved.run[:32]!r}, not {self._run!r})")
        return manifest


def _places(model: nn.Module | None) -> Mapping[str, Tensor]:
    """A model's parameters and buffers by name."""
    state = {} if model is None else model_state(model)
    return {**state.get("parameters", {}), **state.get("buffers", {})}


def _in_order(root: int) -> list[str]:
    """What is called like a checkpoint, oldest first."""
    orders = {name: order for name in _disk.names(root) if (order := order_of(name)) is not None}
    return sorted(orders, key=lambda name: orders[name])
