"""Reads checkpoints without trusting them: regular files of the expected size and checksum, or `BadFile`."""

import errno
import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stoker._files import parse_json
from stoker.checkpoint import _disk
from stoker.checkpoint._encoding import decode, tensor_paths
from stoker.checkpoint._manifest import (
    MANIFEST,
    MAX_SIZE,
    STATE,
    Checksum,
    Manifest,
    format_manifest,
    is_shard_file,
    parse_manifest,
    part_name,
)
from stoker.distributed import World, from_local, is_dtensor, local_region, shard_like, to_local
from stoker.errors import BadFile, MissingFile, StokerError
from stoker.weights import read_tensors

_CHUNK = 1 << 20  # bytes that are read and summed at a time

# Errors of this process, not of the disk: they are not a reason to fall back to an older checkpoint.
_PROCESS_ERRORS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR}
_EXPLANATIONS = {
    errno.ELOOP: "it is a symbolic link, which is not followed",
    errno.ENOTDIR: "it is not a directory, or a link to one",
    errno.ENXIO: "it is not a regular file",
}


class ChecksumReader:
    """A file that is read from start to end, with the checksum of what was read so far."""

    def __init__(self, file: int, where: Path, size: int):
        self.where = where
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
        with convert_errors(self.where):
            count = _disk.read(self._file, memory[:_CHUNK])
        self._crc32 = zlib.crc32(memory[:count], self._crc32)
        self._position += count
        return count

    def read(self, count: int) -> bytes:
        """At most `count` bytes; empty at the end."""
        memory = bytearray(min(count, _CHUNK))
        return bytes(memory[: self.readinto(memoryview(memory))])

    def read_all(self) -> bytearray:
        content = bytearray(self.size)
        rest = memoryview(content)
        while rest and (count := self.readinto(rest)):
            rest = rest[count:]
        return content

    def check(self, expected: Checksum) -> None:
        """Reads the rest, and raises unless the file is what was written."""
        memory = memoryview(bytearray(_CHUNK))
        while self.readinto(memory):
            pass
        if Checksum(self._position, f"{self._crc32:08x}") != expected:
            raise BadFile(f"{self.where} is damaged: its checksum does not match")


@contextmanager
def convert_errors(where: Path) -> Iterator[None]:
    """Turns errors of the disk, and values that are nested too deep, into `BadFile`."""
    try:
        yield
    except RecursionError as error:
        raise BadFile(f"{where} cannot be read: {error}") from error
    except OSError as error:
        if isinstance(error, StokerError) or error.errno in _PROCESS_ERRORS:
            raise
        if error.errno == errno.ENOENT:
            raise MissingFile(f"{where} does not exist") from error
        why = _EXPLANATIONS.get(error.errno or 0) or error.strerror or error
        raise BadFile(f"{where} cannot be read: {why}") from error


@contextmanager
def _open(folder: int, where: Path) -> Iterator[ChecksumReader]:
    with convert_errors(where):
        file, size = _disk.open_file(where.name, folder)
    with _disk.closing(file):
        yield ChecksumReader(file, where, size)


@contextmanager
def _open_sized(folder: int, where: Path, expected: Checksum) -> Iterator[ChecksumReader]:
    with _open(folder, where) as file:
        if file.size != expected.bytes:
            raise BadFile(f"{where} has {file.size:,} bytes; expected {expected.bytes:,}")
        yield file


def check_file(folder: int, where: Path, expected: Checksum) -> None:
    """Reads a file and raises `BadFile` unless it is what was written."""
    with convert_errors(where), _open_sized(folder, where, expected) as file:
        file.check(expected)


def read_manifest(root: int, where: Path) -> Manifest:
    """The manifest of the checkpoint at `where`, a directory within the open directory `root`."""
    with convert_errors(where), _disk.folder(where.name, root) as folder, _open(folder, where / MANIFEST) as file:
        if file.size > MAX_SIZE[MANIFEST]:
            raise BadFile(f"{file.where} has {file.size:,} bytes; a manifest has at most {MAX_SIZE[MANIFEST]:,}")
        manifest = parse_manifest(file.read_all(), file.where)
    if manifest.saved.name != where.name:
        raise BadFile(f"{file.where} belongs to the checkpoint {manifest.saved.name}, not to {where.name}")
    return manifest


def verify(root: int, where: Path, manifest: Manifest) -> None:
    """Reads a checkpoint back, without the shards, which each rank has read back already."""
    if format_manifest(read_manifest(root, where)) != format_manifest(manifest):
        raise BadFile(f"{where / MANIFEST} is not what was written")
    with convert_errors(where), _disk.folder(where.name, root) as folder:
        for name, expected in manifest.files.items():
            if not is_shard_file(name):
                check_file(folder, where / name, expected)


def read_state(root: int, where: Path, manifest: Manifest, like: Mapping[str, Tensor], world: World) -> dict[str, Any]:
    """The state; every byte is compared with the manifest, the shards being divided among the ranks for this.

    A tensor that is stored under the name of a sharded tensor in `like`, with its shape, is sharded like that one.
    """
    tensors: dict[str, dict[str, Tensor]] = {}
    with convert_errors(where), _disk.folder(where.name, root) as folder:
        with _open_sized(folder, where / STATE, manifest.files[STATE]) as file:
            text = file.read_all()
            file.check(manifest.files[STATE])
        plain = parse_json(text, where / STATE)
        for name, expected in manifest.files.items():
            if (part := part_name(name)) is not None:
                with _open_sized(folder, where / name, expected) as file:
                    tensors[part] = read_tensors(file, name=str(file.where), size=file.size)  # pyright: ignore[reportArgumentType]
                    file.check(expected)
        for number, name in enumerate(manifest.shards):
            with _open_sized(folder, where / name, manifest.files[name]) as file:
                if number % world.size == world.rank:
                    file.check(manifest.files[name])
        targets = {key: like[name] for key, name in _match_names(plain, like)}
        for part, found in tensors.items():
            for name, tensor in found.items():
                target = targets.get(f"{part}/{name}")
                if target is not None and target.shape == tensor.shape:
                    found[name] = shard_like(name, tensor, target)
        for key, tensor in _read_shards(where, manifest.shards, targets).items():
            part, _, name = key.partition("/")
            tensors.setdefault(part, {})[name] = tensor
        return decode(plain, tensors, where=where / STATE)


def _match_names(plain: Any, like: Mapping[str, Tensor]) -> Iterator[tuple[str, str]]:
    """For stored tensors by "part/name" the innermost key above them that names a sharded tensor in `like`."""
    sharded = {name for name, tensor in like.items() if is_dtensor(tensor)}
    if not sharded or not isinstance(plain, dict):
        return
    for part, value in plain.items():
        for key, path in tensor_paths(value):
            name = next((each for each in reversed(path) if each in sharded), None)
            if name is not None:
                yield f"{part}/{key}", name


# --- Shards, which may have been written by another number of ranks

Region = tuple[slice, ...]


class _Chunk(NamedTuple):
    """A stored region of a tensor."""

    region: Region
    data: Any  # a slice of safetensors, which reads what it is indexed with

    @property
    def numel(self) -> int:
        return prod(each.stop - each.start for each in self.region)


def _read_shards(folder: Path, files: list[str], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of shard files by "part/name", in CPU memory, each sharded like the tensor in `like`.

    Of these only this rank's region is read. A tensor without a match of the same shape is read as a whole.
    """
    if not files:
        return {}
    from safetensors import SafetensorError, safe_open

    chunks: dict[str, dict[str, _Chunk]] = {}
    with ExitStack() as stack:
        try:
            for file in files:
                opened = stack.enter_context(safe_open(folder / file, framework="pt"))
                for key, chunk in _list_chunks(folder / file, opened):
                    chunks.setdefault(key, {})[repr(chunk.region)] = chunk  # replicas of a region count once
            return {key: _assemble(folder, key, list(own.values()), like.get(key)) for key, own in chunks.items()}
        except SafetensorError as error:
            raise BadFile(f"{folder} cannot be read: {error}") from error


def _list_chunks(where: Path, opened: Any) -> Iterator[tuple[str, _Chunk]]:
    try:
        offsets = json.loads(opened.metadata()["DCP_SHARDING_INFO"])
        for key in opened.keys():  # noqa: SIM118  not a mapping
            data, start = opened.get_slice(key), offsets[key]["saved_offsets"]
            region = [slice(int(at), int(at) + size) for at, size in zip(start, data.get_shape(), strict=True)]
            yield key, _Chunk(tuple(region), data)
    except (KeyError, TypeError, ValueError) as error:
        raise BadFile(f"{where} does not say where its tensors belong: {error!r}") from error


def _assemble(folder: Path, key: str, chunks: list[_Chunk], like: Tensor | None) -> Tensor:
    ndim = len(chunks[0].region)
    if any(len(chunk.region) != ndim for chunk in chunks):
        raise BadFile(f"{folder}: the parts of {key!r} have different numbers of dimensions")
    shape = torch.Size(max(chunk.region[each].stop for chunk in chunks) for each in range(ndim))
    if sum(chunk.numel for chunk in chunks) != shape.numel():
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
            slice(max(own.start, other.start), min(own.stop, other.stop))
            for own, other in zip(region, chunk.region, strict=True)
        ]
        if all(each.start < each.stop for each in common):
            into[_relative(common, region)] = chunk.data[_relative(common, chunk.region)]
    return into


def _relative(places: list[slice], region: Region) -> Region:
    """The same places, counted from the start of a region."""
    return tuple(slice(each.start - own.start, each.stop - own.start) for each, own in zip(places, region, strict=True))
