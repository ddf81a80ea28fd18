"""Opens weights files of any format, which is recognised by content, and lists what is in them."""

import os
from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Protocol

from torch import Tensor

from stoker.errors import BadFile
from stoker.weights import _json, _msgpack, _safetensors
from stoker.weights._header import Header, Reader, open_reader
from stoker.weights._tensors import Entry, checksum, tensor_bytes

FORMATS: dict[str, ModuleType] = {"safetensors": _safetensors, "msgpack": _msgpack, "json": _json}


class Contents(Protocol):
    """A source of weights: a header, and tensors that can be read more than once."""

    header: Header

    def tensors(self, wanted: Container[str], /) -> Iterator[tuple[str, Tensor]]:
        """Yields the wanted tensors one at a time, in any order."""
        ...


@contextmanager
def open_weights(path: Path, limit: int) -> Iterator[tuple[Reader, str, Contents]]:
    """Opens a weights file and reads its header; yields the reader, the format's name and the contents."""
    with open_reader(path, limit) as reader:
        format = _detect_format(reader)
        yield reader, format, FORMATS[format].Contents(reader)


def read_checked(file: str, contents: Contents, wanted: Container[str]) -> Iterator[tuple[str, Tensor]]:
    """Yields the wanted tensors; raises `BadFile` if a checksum in the file does not match."""
    sums = contents.header.crc32  # empty in files of other programs
    for name, tensor in contents.tensors(wanted):
        if sums and checksum(tensor_bytes(tensor)) != sums[name]:
            raise BadFile(f"{file} is damaged: the checksum of {name!r} does not match")
        yield name, tensor


def _detect_format(reader: Reader) -> str:
    start = reader.read(64)
    if not start:
        raise BadFile(f"{reader.name} is empty")
    # First: the length of a header may begin with the bytes of a pickle. (No pickle or archive has a "{" there.)
    if len(start) >= 9 and start[8:9] == b"{" and start[5:8] == b"\0\0\0":
        return "safetensors"
    if start[:4] == b"PK\x03\x04" or (start[0] == 0x80 and start[1:2] in (b"\x01", b"\x02", b"\x03", b"\x04", b"\x05")):
        raise BadFile(
            f"{reader.name} was written by torch.save (a pickle, which can run code when it is read); "
            "read its tensors safely with stoker.load_torch and pass the result to load"
        )
    if start.startswith(b"version https://git-lfs"):
        raise BadFile(f"{reader.name} is a Git LFS pointer, not the weights; fetch them with git lfs pull")
    if start.lstrip()[:1] == b"{":
        return "json"
    if start[0] in (0x84, 0xDE, 0xDF):  # MessagePack: a map of four entries, or of a number that follows
        return "msgpack"
    raise BadFile(f"{reader.name} is not a weights file: it starts with {start[:16]!r}; expected {', '.join(FORMATS)}")


@dataclass(frozen=True, repr=False)
class Listing:
    """The names, dtypes, shapes and metadata of a weights file; its repr is a table."""

    path: Path
    format: str
    compressed: bool
    precision: str | None  # None if another program wrote the file
    tensors: dict[str, Entry]
    aliases: dict[str, str]  # other names of tied tensors -> the name in `tensors`
    metadata: dict[str, str]

    def __repr__(self) -> str:
        """One line for the file, then one per tensor."""
        numel = sum(entry.numel for entry in self.tensors.values())
        kind = f"{self.format}{', gzipped' if self.compressed else ''}"
        kind += f", {self.precision} precision" if self.precision else ""
        lines = [f"{self.path.name}: {kind}, {len(self.tensors)} tensors, {numel:,} numbers"]
        rows = [(name, repr(entry)) for name, entry in self.tensors.items()]
        rows += [(name, f"tied to {owner}") for name, owner in self.aliases.items()]
        width = max((len(name) for name, _ in rows), default=0)
        lines += [f"  {name:<{width}}  {text}" for name, text in rows]
        lines += [f"  {key}: {value}" for key, value in self.metadata.items()]
        return "\n".join(lines)


def inspect(path: str | os.PathLike[str], *, limit: int = 1 << 26) -> Listing:
    """Reads the names, dtypes, shapes and metadata of a weights file without its numbers.

    >>> import tempfile
    >>> from torch import nn
    >>> from stoker.weights import inspect, save
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     inspect(save(nn.Linear(3, 2), f"{folder}/model", metadata={"trained on": "digits"}))
    model.safetensors: safetensors, full precision, 2 tensors, 8 numbers
      weight  float32 [2, 3]
      bias    float32 [2]
      trained on: digits

    Damage among the numbers is found by `load` only. `limit` is the number of bytes that a gzipped file may unpack to,
    and that a JSON file, which is read as a whole, may have (64 MiB).
    """
    with open_weights(Path(path), limit) as (reader, format, contents):
        header, kind = contents.header, (Path(path), format, reader.is_compressed)
        return Listing(*kind, header.precision, header.tensors, header.aliases, header.metadata)
