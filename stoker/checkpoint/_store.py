"""The checkpoints of one run on disk: find, read, write and delete them."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from stoker.checkpoint import _disk
from stoker.checkpoint._directory import (
    Draft,
    complete,
    convert_errors,
    create,
    discard,
    prepare,
    read_manifest,
    read_state,
    remove,
    write_shards,
)
from stoker.checkpoint._encoding import State
from stoker.checkpoint._manifest import Manifest, Place, Saved, is_leftover, sort_key
from stoker.checkpoint._model_state import model_state
from stoker.distributed import World, broadcast_result, gather_results
from stoker.errors import BadFile, InvalidArgument, MissingFile


class Found(NamedTuple):
    """A checkpoint and its state (`None` and empty if there is none), and a line for each newer one that is damaged."""

    saved: Saved | None
    state: dict[str, Any]
    problems: list[str]


class Store:
    """The checkpoints of one run, in a directory of their own.

    >>> import tempfile
    >>> import torch
    >>> from stoker.checkpoint import Place, Store
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = Store(folder, run="5f0c")
    ...     saved = store.write({"model": {"weight": torch.ones(2)}}, Place(epoch=1, batch=0, update=120))
    ...     print(saved.name, store.newest().state)
    00000120 {'model': {'weight': tensor([1., 1.])}}

    A checkpoint is written to a temporary directory, synced, renamed and read back. `run` is stored in each;
    checkpoints of other runs are neither returned nor deleted.

    With several ranks in `world`, all of them share the directory, call the same methods and get the same results.
    Rank 0 writes whole tensors, each rank its part of sharded ones. Any number of ranks can read them.
    """

    def __init__(self, folder: str | os.PathLike[str], *, run: str = "", world: World | None = None) -> None:
        self.folder = Path(os.path.abspath(folder))  # independent of later changes of the working directory
        self.world = World() if world is None else world
        self._run = run

    def with_world(self, world: World) -> "Store":
        """The same checkpoints for these ranks."""
        return Store(self.folder, run=self._run, world=world)

    def write(self, state: State, place: Place) -> Saved:
        """Saves a state; when this returns, it is complete, verified and on the disk.

        An exception leaves everything as it was: an `OSError` of the disk (full, read-only), or a `StokerError` if the
        state cannot be saved or was not read back correctly. An exception of another rank is raised as `PeerFailed`.
        """
        world, drafts = self.world, list[Draft]()
        gather_results(world, lambda: drafts.append(prepare(state, place)))
        names = broadcast_result(world, lambda: create(self.folder, place.update))
        try:
            shards = gather_results(world, lambda: write_shards(drafts[0], self.folder, names[1], world.rank))
            made = broadcast_result(world, lambda: asdict(complete(drafts[0], self.folder, self._run, names, shards)))
        except BaseException:
            if world.is_first:
                discard(self.folder, names[1])
            raise
        return Saved(**made)

    def saved(self) -> list[Saved]:
        """The checkpoints of this run, oldest first; reads their manifests only."""

        def find() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = []
            with suppress(MissingFile), self._open() as root:
                for name in _sorted_names(root):
                    with suppress(BadFile):
                        found.append(asdict(self._read_manifest(root, name).saved))
            return found

        return [Saved(**each) for each in broadcast_result(self.world, find)]

    def read(self, saved: Saved, *, like: nn.Module | None = None) -> dict[str, Any]:
        """The state of a checkpoint; raises `BadFile` unless every byte is the one that was written.

        Tensors that were sharded are returned whole. With a sharded model as `like`, a tensor that is stored under the
        name of a parameter and has its shape (a weight, a moment, an average) is sharded like that parameter.
        """
        return self._read(saved.name, lambda _: True, _named_tensors(like))[1]

    def newest(self, wanted: Callable[[Saved], bool] = lambda saved: True, *, like: nn.Module | None = None) -> Found:
        """The newest wanted checkpoint that is intact, and what is wrong with newer ones."""

        def find() -> list[str]:
            with suppress(MissingFile), self._open() as root:
                return _sorted_names(root)[::-1]
            return []

        problems: list[str] = []
        tensors = _named_tensors(like)
        for name in broadcast_result(self.world, find):
            try:
                saved, state = self._read(name, wanted, tensors)
            except BadFile as error:
                problems.append(str(error).replace(f"{self.folder}{os.sep}", ""))
                continue
            if saved is not None:
                return Found(saved, state, problems)
        return Found(None, {}, problems)

    def _read(
        self, name: str, wanted: Callable[[Saved], bool], like: Mapping[str, Tensor]
    ) -> tuple[Saved | None, dict[str, Any]]:
        """A checkpoint and its state, or `None` if it is not wanted; a `BadFile` of one rank is raised on all."""
        found: tuple[Saved | None, dict[str, Any]] = None, {}
        problem: BadFile | None = None
        try:
            with self._open() as root:
                manifest = self._read_manifest(root, name)
                if wanted(manifest.saved):
                    found = manifest.saved, read_state(root, self.folder / name, manifest, like, self.world)
        except BadFile as error:
            problem = error
        for rank, text in enumerate(gather_results(self.world, lambda: problem and str(problem))):
            if text is not None:
                raise problem if problem and self.world.size == 1 else BadFile(f"rank {rank}: {text}")
        return found

    def delete(self, name: str) -> None:
        """Deletes a checkpoint of this run; raises `BadFile` for one that is damaged or of another run, which stays."""

        def delete() -> None:
            with _disk.folder(self.folder) as root:
                self._read_manifest(root, name)
                remove(name, root)

        broadcast_result(self.world, delete)

    @property
    def has_leftovers(self) -> bool:
        """Whether there is something for `clean` to remove."""
        with suppress(FileNotFoundError), _disk.folder(self.folder) as root:
            return any(map(is_leftover, _disk.names(root)))
        return False

    def clean(self) -> None:
        """Removes what a killed process left half written or half deleted; no other process may write to the run."""

        def clean() -> None:
            with suppress(FileNotFoundError), _disk.folder(self.folder) as root:
                for name in filter(is_leftover, _disk.names(root)):
                    with suppress(OSError):  # leftovers are harmless
                        remove(name, root)

        broadcast_result(self.world, clean)

    @contextmanager
    def _open(self) -> Iterator[int]:
        """Opens the directory for reading; raises `BadFile` if that fails."""
        with convert_errors(self.folder), _disk.folder(self.folder) as root:
            yield root

    def _read_manifest(self, root: int, name: str) -> Manifest:
        if sort_key(name) is None:
            raise InvalidArgument(f"{name!r} is not the name of a checkpoint; expected one such as '00000120'")
        manifest = read_manifest(root, self.folder / name)
        if manifest.saved.run != self._run:
            raise BadFile(
                f"{self.folder / name} belongs to another run ({manifest.saved.run[:32]!r}, not {self._run!r})"
            )
        return manifest


def _named_tensors(model: nn.Module | None) -> Mapping[str, Tensor]:
    if model is None:
        return {}
    state = model_state(model)
    return {**state["parameters"], **state["buffers"]}


def _sorted_names(root: int) -> list[str]:
    """The names of checkpoints in a directory, oldest first."""
    keys = {name: key for name in _disk.names(root) if (key := sort_key(name)) is not None}
    return sorted(keys, key=lambda name: keys[name])
