"""The checkpoints of one run on disk: find, read, write and delete them."""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from stoker._files import explain_errors
from stoker.checkpoint import _disk
from stoker.checkpoint._directory import complete, create, discard, read_manifest, read_state, remove, write_shards
from stoker.checkpoint._encoding import EncodedState, State, encode
from stoker.checkpoint._manifest import Manifest, Place, Saved, check_place, is_leftover, sort_key
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

    def write(self, state: State | EncodedState, place: Place) -> Saved:
        """Saves a state; when this returns, it is complete, verified and on the disk.

        An exception leaves everything as it was: an `OSError` of the disk (full, read-only), or a `StokerError` if the
        state cannot be saved or was not read back correctly. An exception of another rank is raised as `PeerFailed`.
        """
        world, prepared = self.world, list[EncodedState]()

        def prepare() -> None:
            check_place(place)
            prepared.append(state if isinstance(state, EncodedState) else encode(state))

        gather_results(world, prepare)
        encoded = prepared[0]
        # Ranks send each other plain values, such as names.
        names = broadcast_result(world, lambda: [path.name for path in create(self.folder, place.update)])
        final, temporary = (self.folder / name for name in names)
        try:
            shards = gather_results(world, lambda: write_shards(encoded.tensors, temporary, world.rank))
            fields = broadcast_result(
                world, lambda: asdict(complete(encoded, place, self._run, temporary, final, shards))
            )
        except BaseException:
            if world.is_first:
                discard(temporary)
            raise
        return Saved(**fields)

    def saved(self) -> list[Saved]:
        """The checkpoints of this run, oldest first; reads their manifests only."""

        def read_all() -> list[dict[str, Any]]:
            manifests: list[dict[str, Any]] = []
            for name in self._names():
                with suppress(BadFile):
                    manifests.append(asdict(self._read_manifest(name).saved))
            return manifests

        return [Saved(**fields) for fields in broadcast_result(self.world, read_all)]

    def read(self, saved: Saved, *, like: nn.Module | None = None) -> dict[str, Any]:
        """The state of a checkpoint; raises `BadFile` unless every byte is the one that was written.

        Tensors that were sharded are returned whole. With a sharded model as `like`, a tensor that is stored under the
        name of a parameter and has its shape (a weight, a moment, an average) is sharded like that parameter.
        """
        return self._read(saved.name, lambda _: True, _named_tensors(like))[1]

    def newest(self, wanted: Callable[[Saved], bool] = lambda saved: True, *, like: nn.Module | None = None) -> Found:
        """The newest wanted checkpoint that is intact, and what is wrong with newer ones."""
        problems: list[str] = []
        tensors = _named_tensors(like)
        for name in reversed(broadcast_result(self.world, self._names)):
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
        result: tuple[Saved | None, dict[str, Any]] = None, {}
        problem: BadFile | None = None
        try:
            manifest = self._read_manifest(name)
            if wanted(manifest.saved):
                result = manifest.saved, read_state(self.folder / name, manifest, like, self.world)
        except BadFile as error:
            problem = error
        for rank, text in enumerate(gather_results(self.world, lambda: problem and str(problem))):
            if text is not None:
                raise problem if problem and self.world.size == 1 else BadFile(f"rank {rank}: {text}")
        return result

    def delete(self, name: str) -> None:
        """Deletes a checkpoint of this run, if it is there.

        Raises `BadFile` for one that is damaged or of another run, which stays.
        """

        def delete() -> None:
            with suppress(FileNotFoundError):  # somebody else has deleted it, or is deleting it
                self._read_manifest(name)
                remove(self.folder / name)

        broadcast_result(self.world, delete)

    @property
    def has_leftovers(self) -> bool:
        """Whether there is something for `clean` to remove."""
        with suppress(FileNotFoundError):
            return any(map(is_leftover, _disk.names(self.folder)))
        return False

    def clean(self) -> None:
        """Removes what a killed process left half written or half deleted; no other process may write to the run."""

        def clean() -> None:
            with suppress(FileNotFoundError):
                for name in filter(is_leftover, _disk.names(self.folder)):
                    discard(self.folder / name)  # leftovers are harmless if that fails

        broadcast_result(self.world, clean)

    def _names(self) -> list[str]:
        """The names of all checkpoints in the directory, oldest first."""
        names: list[str] = []
        with suppress(MissingFile), explain_errors(self.folder):
            names = _disk.names(self.folder)
        keys = {name: key for name in names if (key := sort_key(name)) is not None}
        return sorted(keys, key=lambda name: keys[name])

    def _read_manifest(self, name: str) -> Manifest:
        if sort_key(name) is None:
            raise InvalidArgument(f"{name!r} is not the name of a checkpoint; expected one such as '00000120'")
        manifest = read_manifest(self.folder / name)
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
