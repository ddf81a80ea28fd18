"""Writes and removes checkpoints, so that each is complete or absent.

Rank 0 creates a temporary directory next to the final place, every rank writes its shards into it, and rank 0 adds
the rest, renames it and reads it back.
"""

import errno
import json
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stoker.checkpoint import _disk
from stoker.checkpoint._encoding import Parts, State, encode
from stoker.checkpoint._manifest import (
    MANIFEST,
    MAX_SIZE,
    STATE,
    Checksum,
    Manifest,
    Place,
    Saved,
    check_place,
    checkpoint_name,
    format_manifest,
    is_checkpoint_file,
    is_leftover,
    shard_file,
    sort_key,
    temporary_name,
    tensors_file,
    to_json,
)
from stoker.checkpoint._reading import check_file, verify
from stoker.distributed import is_dtensor, local_region, to_local
from stoker.errors import InvalidArgument
from stoker.weights import write_tensors

Checksums = Mapping[str, tuple[int, str]]  # by file: plain tuples, which ranks can send each other

_CHUNK = 1 << 22  # bytes that are summed and written at a time, while they are in the processor's cache


class Draft(NamedTuple):
    """A state that is ready to be written."""

    place: Place
    plain: dict[str, Any]
    tensors: Parts  # not sharded
    shards: dict[str, Tensor]  # sharded, by "part/name"


def prepare(state: State, place: Place) -> Draft:
    """Encodes a state; raises if it holds something that cannot be saved."""
    check_place(place)
    plain, tensors = encode(state)
    whole: dict[str, dict[str, Tensor]] = {}
    shards: dict[str, Tensor] = {}
    for part, found in tensors.items():
        for name, tensor in found.items():
            if is_dtensor(tensor):
                shards[f"{part}/{name}"] = tensor
            else:
                whole.setdefault(part, {})[name] = tensor
    return Draft(place, plain, whole, shards)


def create(folder: Path, update: int) -> tuple[str, str]:
    """Creates the directory of a new checkpoint; returns its final name and its temporary name."""
    temporary = None
    try:
        with _open_or_make(folder) as root:
            keys = [key for each in _disk.names(root) if (key := sort_key(each)) is not None and key[0] == update]
            name = checkpoint_name(update, max(number for _, number in keys) + 1 if keys else 0)
            temporary = temporary_name("part", name)
            _disk.make_folder(temporary, root)
    except BaseException:  # also an interrupt after the directory was made
        if temporary is not None:
            discard(folder, temporary)
        raise
    return name, temporary


def write_shards(draft: Draft, folder: Path, temporary: str, rank: int) -> Checksums:
    """Writes this rank's parts of sharded tensors and reads them back.

    The file is in the safetensors format of torch's distributed checkpoints (DCP), which torch can read too.
    """
    own = {key: tensor for key, tensor in draft.shards.items() if _is_first_copy(key, tensor)}
    if not own:
        return {}
    offsets = {
        key: {"saved_offsets": [each.start for each in local_region(key, tensor)]} for key, tensor in own.items()
    }
    metadata = {"DCP_SHARDING_INFO": json.dumps(offsets), "DCP_VERSION": "1.0"}
    name = shard_file(rank)
    with _disk.folder(folder) as root, _disk.folder(temporary, root) as within:
        with _create_file(name, within) as file:
            write_tensors(file, {key: to_local(tensor) for key, tensor in own.items()}, metadata)  # pyright: ignore[reportArgumentType]
        checksum = file.checksum()
        check_file(within, folder / temporary / name, checksum)
        _disk.sync(within)
    return {name: checksum}


def _is_first_copy(key: str, tensor: Any) -> bool:
    """Whether this rank holds a part of the tensor that no rank before it in the mesh holds too."""
    coordinate = tensor.device_mesh.get_coordinate()
    if coordinate is None:
        return False
    if tensor.dtype == torch.complex128:
        raise InvalidArgument(f"{key!r} is sharded and complex128, which shard files cannot hold; use complex64")
    return all(place == 0 for place, each in zip(coordinate, tensor.placements, strict=True) if each.is_replicate())


def complete(draft: Draft, folder: Path, run: str, names: tuple[str, str], shards: list[Checksums]) -> Saved:
    """Writes everything that is not sharded and the manifest, renames the directory and reads it back."""
    name, temporary = names
    with _disk.folder(folder) as root:
        try:
            with _disk.folder(temporary, root) as within:
                files = _write_state(draft, within)
                files |= {file: Checksum(*each) for found in shards for file, each in found.items()}
                fields = draft.place.as_dict()
                values = {key: float(value) for key, value in draft.place.values.items()}
                size = sum(each.bytes for each in files.values())
                saved = Saved(**{**fields, "values": values}, name=name, run=run, time=time.time(), bytes=size)
                manifest = Manifest(saved, files, len(shards) if draft.shards else None)
                with _create_file(MANIFEST, within) as file:
                    file.write(format_manifest(manifest))
                _disk.sync(within)
            _disk.rename(temporary, name, root)
            temporary = name
            _disk.sync(root)
            verify(root, folder / name, manifest)
        except BaseException:
            with suppress(OSError):
                remove(temporary, root)
            raise
    return saved


def _write_state(draft: Draft, within: int) -> dict[str, Checksum]:
    text = to_json(draft.plain)
    if len(text) > MAX_SIZE[STATE]:
        raise InvalidArgument(
            f"the plain values of the state have {len(text):,} bytes as JSON, at most {MAX_SIZE[STATE]:,} are saved; "
            "store long lists of numbers as tensors"
        )
    with _create_file(STATE, within) as file:
        file.write(text)
    files = {STATE: file.checksum()}
    for part, tensors in draft.tensors.items():
        with _create_file(tensors_file(part), within) as file:
            write_tensors(file, tensors)  # pyright: ignore[reportArgumentType]
        files[tensors_file(part)] = file.checksum()
    return files


class _ChecksumWriter:
    """A file that is being written, with its size and checksum so far."""

    def __init__(self, file: int):
        self._file = file
        self._bytes = 0
        self._crc32 = 0

    def write(self, data: bytes | memoryview) -> None:
        """Writes all of `data`."""
        for start in range(0, len(data), _CHUNK):
            piece = memoryview(data)[start : start + _CHUNK]
            self._crc32 = zlib.crc32(piece, self._crc32)
            self._bytes += len(piece)
            while piece:
                piece = piece[_disk.write(self._file, piece) :]

    def checksum(self) -> Checksum:
        return Checksum(self._bytes, f"{self._crc32:08x}")


@contextmanager
def _create_file(name: str, within: int) -> Iterator[_ChecksumWriter]:
    """Creates a file, and syncs and closes it at the end; after an exception it is only closed."""
    file = _disk.create(name, within)
    try:
        yield _ChecksumWriter(file)
        _disk.sync(file)
    except BaseException:
        with suppress(OSError):
            _disk.close(file)
        raise
    _disk.close(file)


@contextmanager
def _open_or_make(folder: Path) -> Iterator[int]:
    try:
        root = _disk.open_folder(folder)
    except FileNotFoundError:
        _make_folders(folder)
        root = _disk.open_folder(folder)
    with _disk.closing(root):
        yield root


def _make_folders(folder: Path) -> None:
    """Creates a directory and missing ones above it; they are on the disk when this returns."""
    try:
        _disk.make_folder(folder)
    except FileNotFoundError:
        _make_folders(folder.parent)
        _disk.make_folder(folder)
    with _disk.folder(folder.parent) as parent:
        _disk.sync(parent)


def remove(name: str, root: int) -> None:
    """Removes a checkpoint or a leftover; it is renamed first, so that no part of it is taken for a checkpoint."""
    if not is_leftover(name):
        gone = temporary_name("gone", name)
        _disk.rename(name, gone, root)
        _disk.sync(root)
        name = gone
    with _disk.folder(name, root) as folder:
        for file in _disk.names(folder):
            if is_checkpoint_file(file):
                _disk.unlink(file, folder)
    try:
        _disk.remove_folder(name, root)
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:  # then it holds files of the user, which stay
            raise


def discard(folder: Path, temporary: str) -> None:
    """Removes the directory of a checkpoint that failed; if that fails too, `Store.clean` removes it later."""
    with suppress(OSError), _disk.folder(folder) as root:
        remove(temporary, root)


def sync_file(path: Path) -> None:
    """Syncs an existing file, such as the events of the run."""
    with _disk.folder(path.parent) as folder:
        file, _ = _disk.open_file(path.name, folder)
        try:
            _disk.sync(file)
        finally:
            _disk.close(file)
