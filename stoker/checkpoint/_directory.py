"""The directory of one checkpoint: written so that it is complete or absent, and read without trusting it.

Rank 0 creates a temporary directory next to the final one, every rank writes its shards into it, and rank 0 adds
the rest, renames it and reads it back. Reading accepts regular files of the expected size and checksum only, and
raises `BadFile` for everything else.
"""

import json
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from errno import ENOTEMPTY
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stoker._files import explain_errors, parse_json
from stoker.checkpoint import _disk
from stoker.checkpoint._encoding import EncodedState, Parts, decode, tensor_paths
from stoker.checkpoint._manifest import (
    MANIFEST,
    MAX_MANIFEST,
    MAX_STATE,
    STATE,
    Checksum,
    Manifest,
    Place,
    Saved,
    checkpoint_name,
    format_manifest,
    is_checkpoint_file,
    is_leftover,
    is_shard_file,
    parse_manifest,
    part_name,
    shard_file,
    sort_key,
    temporary_name,
    to_json,
)
from stoker.distributed import World, from_local, is_dtensor, local_region, shard_like, to_local
from stoker.errors import BadFile, InvalidArgument
from stoker.weights import read_tensors, write_tensors

_READ_CHUNK = 1 << 20  # bytes that are read and summed at a time
_WRITE_CHUNK = 1 << 22  # bytes that are summed and written at a time, while they are in the processor's cache

# --- Writing


def create(folder: Path, update: int) -> tuple[Path, Path]:
    """Creates the directory of a new checkpoint; returns its final path and its temporary path, where it is now."""
    try:
        names = _disk.names(folder)
    except FileNotFoundError:
        _make_folders(folder)
        names = []
    keys = [key for name in names if (key := sort_key(name)) is not None and key[0] == update]
    name = checkpoint_name(update, max(number for _, number in keys) + 1 if keys else 0)
    temporary = folder / temporary_name("part", name)
    try:
        _disk.make_folder(temporary)
    except BaseException:  # also an interrupt after the directory was made
        discard(temporary)
        raise
    return folder / name, temporary


def _make_folders(folder: Path) -> None:
    """Creates a directory and missing ones above it; they are on the disk when this returns."""
    try:
        _disk.make_folder(folder)
    except FileNotFoundError:
        _make_folders(folder.parent)
        _disk.make_folder(folder)
    _disk.sync_folder(folder.parent)


def write_shards(tensors: Parts, folder: Path, rank: int) -> dict[str, tuple[int, str]]:
    """Writes this rank's parts of sharded tensors and reads them back; returns the checksum of the file by its name.

    The file is in the safetensors format of torch's distributed checkpoints (DCP), which torch can read too.
    """
    sharded = {f"{part}/{name}": tensor for part, each in tensors.items() for name, tensor in each.items()}
    mine = {key: tensor for key, tensor in sharded.items() if is_dtensor(tensor) and _is_first_copy(key, tensor)}
    if not mine:
        return {}
    offsets = {key: {"saved_offsets": [part.start for part in local_region(key, mine[key])]} for key in mine}
    metadata = {"DCP_SHARDING_INFO": json.dumps(offsets), "DCP_VERSION": "1.0"}
    path = folder / shard_file(rank)
    with _create_file(path) as file:
        write_tensors(file, {key: to_local(tensor) for key, tensor in mine.items()}, metadata)  # pyright: ignore[reportArgumentType]
    _check_file(path, file.checksum())
    _disk.sync_folder(folder)
    size, crc32 = file.checksum()
    return {path.name: (size, crc32)}


def _is_first_copy(key: str, tensor: Any) -> bool:
    """Whether this rank holds a part of the tensor that no rank before it in the mesh holds too."""
    coordinate = tensor.device_mesh.get_coordinate()
    if coordinate is None:
        return False
    if tensor.dtype == torch.complex128:
        raise InvalidArgument(f"{key!r} is sharded and complex128, which shard files cannot hold; use complex64")
    pairs = zip(coordinate, tensor.placements, strict=True)
    return all(index == 0 for index, placement in pairs if placement.is_replicate())


def complete(
    encoded: EncodedState,
    place: Place,
    run: str,
    temporary: Path,
    final: Path,
    shards: list[dict[str, tuple[int, str]]],
) -> Saved:
    """Writes everything that is not sharded and the manifest, renames the directory and reads it back.

    `shards` are the checksums of each rank.
    """
    files = _write_state(encoded, temporary)
    files |= {name: Checksum(*checksum) for rank in shards for name, checksum in rank.items()}
    values = {name: float(value) for name, value in place.values.items()}
    size = sum(checksum.bytes for checksum in files.values())
    saved = Saved(**{**place.as_dict(), "values": values}, name=final.name, run=run, time=time.time(), bytes=size)
    manifest = Manifest(saved, files, len(shards) if any(map(is_shard_file, files)) else None)
    with _create_file(temporary / MANIFEST) as file:
        file.write(format_manifest(manifest))
    _disk.sync_folder(temporary)
    try:
        _disk.rename(temporary, final)
        _disk.sync_folder(final.parent)
        _verify(final, manifest)
    except BaseException:
        discard(temporary if temporary.exists() else final)
        raise
    return saved


def _write_state(encoded: EncodedState, folder: Path) -> dict[str, Checksum]:
    text = to_json(encoded.plain)
    if len(text) > MAX_STATE:
        raise InvalidArgument(
            f"the plain values of the state have {len(text):,} bytes as JSON, at most {MAX_STATE:,} are saved; "
            "store long lists of numbers as tensors"
        )
    with _create_file(folder / STATE) as file:
        file.write(text)
    files = {STATE: file.checksum()}
    for part, named in encoded.tensors.items():
        whole = {name: tensor for name, tensor in named.items() if not is_dtensor(tensor)}
        if whole:
            name = f"{part}.safetensors"
            with _create_file(folder / name) as file:
                write_tensors(file, whole)  # pyright: ignore[reportArgumentType]
            files[name] = file.checksum()
    return files


class _ChecksumWriter:
    """A file that is being written, with its size and checksum so far."""

    def __init__(self, file: int):
        self._file = file
        self._bytes = 0
        self._crc32 = 0

    def write(self, data: bytes | memoryview) -> None:
        """Writes all of `data`."""
        for start in range(0, len(data), _WRITE_CHUNK):
            piece = memoryview(data)[start : start + _WRITE_CHUNK]
            self._crc32 = zlib.crc32(piece, self._crc32)
            self._bytes += len(piece)
            while piece:
                piece = piece[_disk.write(self._file, piece) :]

    def checksum(self) -> Checksum:
        return Checksum(self._bytes, f"{self._crc32:08x}")


@contextmanager
def _create_file(path: Path) -> Iterator[_ChecksumWriter]:
    """Creates a file, and syncs and closes it at the end; after an exception it is only closed."""
    file = _disk.create(path)
    try:
        yield _ChecksumWriter(file)
        _disk.sync(file)
    except BaseException:
        with suppress(OSError):
            _disk.close(file)
        raise
    _disk.close(file)


def remove(folder: Path) -> None:
    """Removes a checkpoint or a leftover; it is renamed first, so that no part of it is taken for a checkpoint."""
    if not is_leftover(folder.name):
        renamed = folder.with_name(temporary_name("gone", folder.name))
        _disk.rename(folder, renamed)
        _disk.sync_folder(folder.parent)
        folder = renamed
    _disk.check_folder(folder)
    for name in _disk.names(folder):
        if is_checkpoint_file(name):
            _disk.unlink(folder / name)
    try:
        _disk.remove_folder(folder)
    except OSError as error:
        if error.errno != ENOTEMPTY:  # then it holds files of the user, which stay
            raise


def discard(folder: Path) -> None:
    """Removes the directory of a checkpoint that failed; if that fails too, `Store.clean` removes it later."""
    with suppress(OSError):
        remove(folder)


def sync_file(path: Path) -> None:
    """Syncs an existing file, such as the events of the run."""
    file, _ = _disk.open_file(path)
    try:
        _disk.sync(file)
    finally:
        _disk.close(file)


# --- Reading


class _ChecksumReader:
    """A file that is read once, from start to end, with the checksum of what was read so far."""

    def __init__(self, path: Path, file: int, size: int):
        self.path = path
        self.size = size  # bytes
        self._file = file
        self._position = 0
        self._crc32 = 0

    def tell(self) -> int:
        return self._position

    def seek(self, position: int) -> None:
        assert position == self._position, "the file is read once, in order"

    def readinto(self, memory: memoryview) -> int:
        """Fills the start of `memory` and returns the number of bytes."""
        with explain_errors(self.path):
            count = _disk.read(self._file, memory[:_READ_CHUNK])
        self._crc32 = zlib.crc32(memory[:count], self._crc32)
        self._position += count
        return count

    def read(self, count: int) -> bytes:
        """At most `count` bytes; empty at the end."""
        memory = bytearray(min(count, _READ_CHUNK))
        return bytes(memory[: self.readinto(memoryview(memory))])

    def read_all(self) -> bytearray:
        content = bytearray(self.size)
        rest = memoryview(content)
        while rest and (count := self.readinto(rest)):
            rest = rest[count:]
        return content

    def check(self, expected: Checksum) -> None:
        """Reads the rest, and raises unless the file is what was written."""
        memory = memoryview(bytearray(_READ_CHUNK))
        while self.readinto(memory):
            pass
        if Checksum(self._position, f"{self._crc32:08x}") != expected:
            raise BadFile(f"{self.path} is damaged: its checksum does not match")


@contextmanager
def _open_file(path: Path, expected: Checksum | None = None) -> Iterator[_ChecksumReader]:
    """Opens a file, which has to be of the expected size."""
    with explain_errors(path):
        file, size = _disk.open_file(path)
    try:
        if expected is not None and size != expected.bytes:
            raise BadFile(f"{path} has {size:,} bytes; expected {expected.bytes:,}")
        yield _ChecksumReader(path, file, size)
    finally:
        with suppress(OSError):  # nothing was written
            _disk.close(file)


def _check_file(path: Path, expected: Checksum) -> None:
    """Reads a file and raises `BadFile` unless it is what was written."""
    with _open_file(path, expected) as file:
        file.check(expected)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a checkpoint."""
    with explain_errors(folder):
        _disk.check_folder(folder)
    with _open_file(folder / MANIFEST) as file:
        if file.size > MAX_MANIFEST:
            raise BadFile(f"{file.path} has {file.size:,} bytes; a manifest has at most {MAX_MANIFEST:,}")
        manifest = parse_manifest(file.read_all(), file.path)
    if manifest.saved.name != folder.name:
        raise BadFile(f"{file.path} belongs to the checkpoint {manifest.saved.name}, not to {folder.name}")
    return manifest


def _verify(folder: Path, manifest: Manifest) -> None:
    """Reads a checkpoint back, without the shards, which each rank has read back already."""
    if format_manifest(read_manifest(folder)) != format_manifest(manifest):
        raise BadFile(f"{folder / MANIFEST} is not what was written")
    for name, expected in manifest.files.items():
        if not is_shard_file(name):
            _check_file(folder / name, expected)


def read_state(folder: Path, manifest: Manifest, like: Mapping[str, Tensor], world: World) -> dict[str, Any]:
    """The state; every byte is compared with the manifest, the shards being divided among the ranks for this.

    A tensor that is stored under the name of a sharded tensor in `like`, with its shape, is sharded like that one.
    """
    with _open_file(folder / STATE, manifest.files[STATE]) as file:
        text = file.read_all()
        file.check(manifest.files[STATE])
    plain = parse_json(text, folder / STATE)
    targets = {key: like[name] for key, name in _match_names(plain, like)}
    tensors: dict[str, dict[str, Tensor]] = {}
    for name, expected in manifest.files.items():
        if (part := part_name(name)) is not None:
            with _open_file(folder / name, expected) as file:
                tensors[part] = read_tensors(file, name=str(file.path), size=file.size)  # pyright: ignore[reportArgumentType]
                file.check(expected)
    for part, named in tensors.items():
        for name, tensor in named.items():
            target = targets.get(f"{part}/{name}")
            if target is not None and target.shape == tensor.shape:
                named[name] = shard_like(name, tensor, target)
    for number, name in enumerate(manifest.shards):
        with _open_file(folder / name, manifest.files[name]) as file:
            if number % world.size == world.rank:
                file.check(manifest.files[name])
    for key, tensor in _read_shards([folder / name for name in manifest.shards], targets).items():
        part, _, name = key.partition("/")
        tensors.setdefault(part, {})[name] = tensor
    return decode(plain, tensors, path=folder / STATE)


def _match_names(plain: Any, like: Mapping[str, Tensor]) -> Iterator[tuple[str, str]]:
    """For stored tensors by "part/name" the innermost key above them that names a sharded tensor in `like`."""
    sharded = {name for name, tensor in like.items() if is_dtensor(tensor)}
    if not sharded or not isinstance(plain, dict):
        return
    for part, value in plain.items():
        for key, path in tensor_paths(value):
            name = next((name for name in reversed(path) if name in sharded), None)
            if name is not None:
                yield f"{part}/{key}", name


# --- Shards, which may have been written by another number of ranks

Region = tuple[slice, ...]


class _Chunk(NamedTuple):
    """A stored region of a tensor."""

    region: Region
    data: Any  # a slice of safetensors, which reads what it is indexed with


def _read_shards(paths: list[Path], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of shard files by "part/name", in CPU memory, each sharded like the tensor in `like`.

    Of these only this rank's region is read. A tensor without a match of the same shape is read as a whole.
    """
    if not paths:
        return {}
    from safetensors import SafetensorError, safe_open

    chunks: dict[str, dict[str, _Chunk]] = {}
    folder = paths[0].parent
    with ExitStack() as stack:
        try:
            for path in paths:
                opened = stack.enter_context(safe_open(path, framework="pt"))
                for key, chunk in _list_chunks(path, opened):
                    chunks.setdefault(key, {})[repr(chunk.region)] = chunk  # replicas of a region count once
            return {key: _assemble(folder, key, list(parts.values()), like.get(key)) for key, parts in chunks.items()}
        except SafetensorError as error:
            raise BadFile(f"{folder} cannot be read: {error}") from error


def _list_chunks(path: Path, opened: Any) -> Iterator[tuple[str, _Chunk]]:
    try:
        offsets = json.loads(opened.metadata()["DCP_SHARDING_INFO"])
        for key in opened.keys():  # noqa: SIM118  not a mapping
            data, start = opened.get_slice(key), offsets[key]["saved_offsets"]
            sizes = zip(start, data.get_shape(), strict=True)
            yield key, _Chunk(tuple(slice(int(offset), int(offset) + size) for offset, size in sizes), data)
    except (KeyError, TypeError, ValueError, RecursionError, OverflowError) as error:
        raise BadFile(f"{path} does not say where its tensors belong: {error!r}") from error


def _assemble(folder: Path, key: str, chunks: list[_Chunk], like: Tensor | None) -> Tensor:
    ndim = len(chunks[0].region)
    if any(len(chunk.region) != ndim for chunk in chunks):
        raise BadFile(f"{folder}: the parts of {key!r} have different numbers of dimensions")
    shape = torch.Size(max(chunk.region[dim].stop for chunk in chunks) for dim in range(ndim))
    stored = sum(prod(part.stop - part.start for part in chunk.region) for chunk in chunks)
    if stored != shape.numel() or any(part.start < 0 for chunk in chunks for part in chunk.region):
        raise BadFile(f"{folder}: the parts of {key!r} do not make a whole tensor {list(shape)}")
    dtype = chunks[0].data[(slice(0, 0),) * ndim].dtype  # for a 0-d tensor this reads the number
    if like is None or like.shape != shape:
        return _copy_region(chunks, tuple(slice(0, size) for size in shape), torch.empty(shape, dtype=dtype))
    local = torch.empty(to_local(like).shape, dtype=dtype)
    return from_local(_copy_region(chunks, local_region(key, like), local), like)


def _copy_region(chunks: list[_Chunk], region: Region, into: Tensor) -> Tensor:
    """Fills `into`, which is a region of the whole tensor, from the chunks that overlap it."""
    for chunk in chunks:
        common = [
            slice(max(wanted.start, stored.start), min(wanted.stop, stored.stop))
            for wanted, stored in zip(region, chunk.region, strict=True)
        ]
        if all(part.start < part.stop for part in common):
            into[_shift(common, region)] = chunk.data[_shift(common, chunk.region)]
    return into


def _shift(common: list[slice], region: Region) -> Region:
    """The same slices, counted from the start of a region."""
    pairs = zip(common, region, strict=True)
    return tuple(slice(part.start - origin.start, part.stop - origin.start) for part, origin in pairs)
