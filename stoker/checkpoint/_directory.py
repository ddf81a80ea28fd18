"""The directory of one checkpoint: written so that it is complete or absent, and read without trusting it.

Rank 0 creates a temporary directory next to the final place, every rank writes its shards into it, and rank 0 adds
the rest, renames it and reads it back. Reading accepts regular files of the expected size and checksum only, and
raises `BadFile` for everything else.
"""

import errno
import json
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stoker._files import parse_json
from stoker.checkpoint import _disk
from stoker.checkpoint._encoding import Parts, State, decode, encode, tensor_paths
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
    is_shard_file,
    parse_manifest,
    part_name,
    shard_file,
    sort_key,
    temporary_name,
    tensors_file,
    to_json,
)
from stoker.distributed import World, from_local, is_dtensor, local_region, shard_like, to_local
from stoker.errors import BadFile, InvalidArgument, MissingFile, StokerError
from stoker.weights import read_tensors, write_tensors

_READ_CHUNK = 1 << 20  # bytes that are read and summed at a time
_WRITE_CHUNK = 1 << 22  # bytes that are summed and written at a time, while they are in the processor's cache

# Errors of this process, not of the disk: they are not a reason to fall back to an older checkpoint.
_PROCESS_ERRORS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR}

# --- Writing

Checksums = Mapping[str, tuple[int, str]]  # by file: plain tuples, which ranks can send each other


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
        _check_file(within, folder / temporary / name, checksum)
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
            _verify(root, folder / name, manifest)
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
        for start in range(0, len(data), _WRITE_CHUNK):
            piece = memoryview(data)[start : start + _WRITE_CHUNK]
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


# --- Reading


class _ChecksumReader:
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
        raise BadFile(f"{where} cannot be read: {error.strerror or error}") from error


@contextmanager
def _open(folder: int, where: Path, expected: Checksum | None = None) -> Iterator[_ChecksumReader]:
    """Opens a file, which has to be of the expected size."""
    with convert_errors(where):
        file, size = _disk.open_file(where.name, folder)
    with _disk.closing(file):
        if expected is not None and size != expected.bytes:
            raise BadFile(f"{where} has {size:,} bytes; expected {expected.bytes:,}")
        yield _ChecksumReader(file, where, size)


def _check_file(folder: int, where: Path, expected: Checksum) -> None:
    """Reads a file and raises `BadFile` unless it is what was written."""
    with convert_errors(where), _open(folder, where, expected) as file:
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


def _verify(root: int, where: Path, manifest: Manifest) -> None:
    """Reads a checkpoint back, without the shards, which each rank has read back already."""
    if format_manifest(read_manifest(root, where)) != format_manifest(manifest):
        raise BadFile(f"{where / MANIFEST} is not what was written")
    with convert_errors(where), _disk.folder(where.name, root) as folder:
        for name, expected in manifest.files.items():
            if not is_shard_file(name):
                _check_file(folder, where / name, expected)


def read_state(root: int, where: Path, manifest: Manifest, like: Mapping[str, Tensor], world: World) -> dict[str, Any]:
    """The state; every byte is compared with the manifest, the shards being divided among the ranks for this.

    A tensor that is stored under the name of a sharded tensor in `like`, with its shape, is sharded like that one.
    """
    tensors: dict[str, dict[str, Tensor]] = {}
    with convert_errors(where), _disk.folder(where.name, root) as folder:
        with _open(folder, where / STATE, manifest.files[STATE]) as file:
            text = file.read_all()
            file.check(manifest.files[STATE])
        plain = parse_json(text, where / STATE)
        for name, expected in manifest.files.items():
            if (part := part_name(name)) is not None:
                with _open(folder, where / name, expected) as file:
                    tensors[part] = read_tensors(file, name=str(file.where), size=file.size)  # pyright: ignore[reportArgumentType]
                    file.check(expected)
        for number, name in enumerate(manifest.shards):
            with _open(folder, where / name, manifest.files[name]) as file:
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
