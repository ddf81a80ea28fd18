"""A checkpoint's files, read without trust: plain files of the expected size, summed on the way, or `BadFile`."""

import errno
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from stoker.checkpoint import _disk
from stoker.checkpoint._json import from_json
from stoker.checkpoint._manifest import LARGEST, Manifest, Sum, checksum, from_text, to_text
from stoker.checkpoint._names import MANIFEST, STATE, is_shards, part_of
from stoker.checkpoint._reshard import read_shards
from stoker.checkpoint._tree import joined, tensor_paths
from stoker.distributed import World
from stoker.distributed import is_dtensor as is_sharded
from stoker.distributed import shard_like as part_for
from stoker.errors import BadFile, MissingFile, StokerError
from stoker.weights import read_tensors

_PIECE = 1 << 20  # bytes that are read and summed at a time

# These tell of this process, not of the disk: no reason to go back to an older checkpoint.
_OWN = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR}
_WORDS = {
    errno.ELOOP: "it is a link, which is not followed",
    errno.ENOTDIR: "it is no folder, or a link to one",
    errno.ENXIO: "it is no plain file",
}


class OldFile:
    """A file that is being read from front to back, with the checksum of what was read so far."""

    def __init__(self, file: int, where: Path, size: int):
        self.where = where
        self.size = size  # bytes
        self._file = file
        self._at = 0
        self._crc32 = 0

    def readinto(self, memory: memoryview) -> int:
        """Fills some of `memory`, and says how much."""
        with refusing(self.where):
            count = _disk.read(self._file, memory[:_PIECE])
        self._crc32 = zlib.crc32(memory[:count], self._crc32)
        self._at += count
        return count

    def read(self, count: int) -> bytes:
        """At most `count` bytes; none at the end."""
        memory = bytearray(min(count, _PIECE))
        return bytes(memory[: self.readinto(memoryview(memory))])

    def seek(self, position: int) -> None:
        """Goes to where it already is: everything is read once, in order."""
        assert position == self._at

    def whole(self) -> bytearray:
        """Everything in it."""
        memory = bytearray(self.size)
        left = memoryview(memory)
        while left and (count := self.readinto(left)):
            left = left[count:]
        return memory

    def skim(self) -> None:
        """Reads everything and keeps nothing."""
        memory = memoryview(bytearray(_PIECE))
        while self.readinto(memory):
            pass

    def check(self, said: Sum) -> None:
        """An error unless what was read is the whole file, as it was written."""
        if Sum(self._at, checksum(self._crc32)) != said:
            raise BadFile(f"{self.where} is damaged: its bytes are not those that were written (checksum)")


def read_manifest(root: int, where: Path) -> Manifest:
    """The manifest of the checkpoint at `where`, which lies in the open folder `root`."""
    with refusing(where), _disk.folder(where.name, root) as folder, _old_file(folder, where / MANIFEST) as file:
        if file.size > LARGEST[MANIFEST]:
            raise BadFile(f"{file.where} has {file.size:,} bytes; a manifest has at most {LARGEST[MANIFEST]:,}")
        manifest = from_text(file.whole(), file.where)
    if manifest.saved.name != where.name:
        raise BadFile(f"{file.where} belongs to the checkpoint {manifest.saved.name}, not to {where.name}")
    return manifest


def read_state(root: int, where: Path, manifest: Manifest, like: Mapping[str, Tensor], world: World) -> dict[str, Any]:
    """The state, every byte of it compared with the manifest: of the shards, each rank reads its share to compare them.

    A tensor that stands under the name of one in `like`, and has its shape, is sharded as that is.
    """
    tensors: dict[str, dict[str, Tensor]] = {}
    with refusing(where), _disk.folder(where.name, root) as folder:
        with _named(folder, where / STATE, manifest.files[STATE]) as file:
            text = file.whole()
        plain = from_json(text, where / STATE)
        for name, said in manifest.files.items():
            if (part := part_of(name)) is not None:
                with _named(folder, where / name, said) as file:
                    tensors[part] = read_tensors(file, name=str(file.where), size=file.size)
        _check_shards(folder, where, manifest, world)
        targets = {key: like[name] for key, name in _names(plain, like)}
        for part, found in tensors.items():
            for name, tensor in found.items():
                target = targets.get(f"{part}/{name}")
                if target is not None and target.shape == tensor.shape:
                    found[name] = part_for(name, tensor, target)
        shards = read_shards(where, manifest.shards, targets) if manifest.shards else {}
        for key, tensor in shards.items():
            part, _, name = key.partition("/")
            tensors.setdefault(part, {})[name] = tensor
        return joined(plain, tensors, where=where / STATE)


def _check_shards(folder: int, where: Path, manifest: Manifest, world: World) -> None:
    """Every file is there in its size, and those that are this rank's to compare are as they were written."""
    for number, name in enumerate(manifest.shards):
        if number % world.size == world.rank:
            check_file(folder, where / name, manifest.files[name])
        else:
            with _sized(folder, where / name, manifest.files[name]):
                pass


def _names(plain: Any, like: Mapping[str, Tensor]) -> Iterator[tuple[str, str]]:
    """For tensors by "part/name" the name in `like` that they stand under: the innermost one, of a sharded tensor."""
    sharded = {name for name, tensor in like.items() if is_sharded(tensor)}
    if not sharded or not isinstance(plain, dict):
        return
    for part, value in plain.items():
        for key, path in tensor_paths(value):
            name = next((each for each in reversed(path) if each in sharded), None)
            if name is not None:
                yield f"{part}/{key}", name


def check_file(folder: int, where: Path, said: Sum) -> None:
    """Reads a file back; `BadFile` unless every byte on the disk is the one that was written."""
    with refusing(where), _named(folder, where, said) as file:
        file.skim()


def verify(root: int, where: Path, manifest: Manifest) -> None:
    """Reads a checkpoint back, as far as it is no shards: each rank has read its own back; `BadFile` as above."""
    if to_text(read_manifest(root, where)) != to_text(manifest):
        raise BadFile(f"{where / MANIFEST} doesn't say what was written")
    with refusing(where), _disk.folder(where.name, root) as folder:
        for name, said in manifest.files.items():
            if not is_shards(name):
                check_file(folder, where / name, said)


@contextmanager
def refusing(where: Path) -> Iterator[None]:
    """Whatever the disk can't give is a `BadFile`, and so is what is nested too deep to be looked at."""
    try:
        yield
    except RecursionError as error:
        raise BadFile(f"{where} can't be read: {error}") from error
    except OSError as error:
        if isinstance(error, StokerError) or error.errno in _OWN:
            raise
        if error.errno == errno.ENOENT:
            raise MissingFile(f"{where} is not there") from error
        why = _WORDS.get(error.errno or 0) or error.strerror or error
        raise BadFile(f"{where} can't be read: {why}") from error


@contextmanager
def _old_file(folder: int, where: Path) -> Iterator[OldFile]:
    with refusing(where):
        file, size = _disk.open_file(where.name, folder)
    with _disk.closing(file):
        yield OldFile(file, where, size)


@contextmanager
def _sized(folder: int, where: Path, said: Sum) -> Iterator[OldFile]:
    """A file that a manifest names, of the size that it says."""
    with _old_file(folder, where) as file:
        if file.size != said.bytes:
            raise BadFile(f"{where} has {file.size:,} bytes; {said.bytes:,} were written")
        yield file


@contextmanager
def _named(folder: int, where: Path, said: Sum) -> Iterator[OldFile]:
    """The same to be read; its checksum is compared afterwards."""
    with _sized(folder, where, said) as file:
        yield file
        file.check(said)
