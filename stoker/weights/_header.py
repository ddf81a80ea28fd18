"""What the formats have in common: reading untrusted bytes, and a header of names, dtypes, shapes and checksums."""

import gzip
import json
import math
import os
import reprlib
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from stoker._files import explain_errors, missing_file, open_regular_file
from stoker.errors import BadFile, MissingFile
from stoker.weights._tensors import DTYPES, Entry, checksum, tensor_bytes

VERSION = 1
MAX_TENSORS = 100_000
MAX_DIMENSIONS = 64  # torch indexes fewer; the bound keeps a forged list small

_CHUNK = 1 << 20  # bytes


class Reader:
    """An open file, plain or gzipped. Allocates memory only for bytes that exist; all damage raises `BadFile`."""

    def __init__(self, name: str, file: IO[bytes], *, size: int, limit: int | None = None, is_compressed: bool = False):
        self.name = name
        self.is_compressed = is_compressed
        self._size = size  # bytes of the file
        self._limit = limit  # bytes that a gzipped file may unpack to, and that are read as a whole
        self._file = file

    def seek(self, position: int) -> None:
        if self.is_compressed:
            self._check_limit(position)
        with self._convert_errors():
            self._file.seek(position)

    def read(self, count: int) -> bytes:
        """At most `count` bytes, possibly fewer; empty only at the end of the file."""
        with self._convert_errors():
            data = self._file.read(min(count, _CHUNK))
        if self.is_compressed:
            self._check_limit(self._file.tell())
        return data

    def read_exactly(self, count: int) -> bytes:
        pieces: list[bytes] = []
        while count:
            pieces.append(self.read(count) or self._raise_truncated())
            count -= len(pieces[-1])
        return b"".join(pieces)

    def read_rest(self) -> bytes:
        self._check_limit(self._size)
        return b"".join(iter(lambda: self.read(_CHUNK), b""))

    def read_tensor(self, entry: Entry) -> Tensor:
        """Reads the next bytes into a new tensor."""
        tensor = torch.empty(entry.shape, dtype=entry.dtype)
        memory = tensor_bytes(tensor)
        while memory:
            with self._convert_errors():
                count = self._file.readinto(memory[:_CHUNK])  # pyright: ignore[reportAttributeAccessIssue]
            if self.is_compressed:
                self._check_limit(self._file.tell())
            if not count:
                self._raise_truncated()
            memory = memory[count:]
        return tensor

    def skip(self, count: int) -> None:
        if count:
            self.seek(self._file.tell() + count - 1)
            self.read_exactly(1)

    def check_size(self, expected: int) -> None:
        """Raises unless a plain file has this many bytes; that of a gzipped file is known at its end."""
        if not self.is_compressed and self._size < expected:
            self._raise_truncated()
        if not self.is_compressed and self._size > expected:
            self._raise_trailing()

    def check_end(self) -> None:
        """Raises unless everything was read; at the end of a gzipped file its checksum is compared."""
        if self.read(1):
            self._raise_trailing()

    def _raise_truncated(self) -> bytes:
        raise BadFile(f"{self.name} ends too early: it is truncated, or still being written")

    def _raise_trailing(self) -> None:
        raise BadFile(f"{self.name} has bytes after its last tensor; it is damaged, or several files in one")

    def _check_limit(self, position: int) -> None:
        if self._limit is not None and position > self._limit:
            raise BadFile(
                f"{self.name} {'unpacks to' if self.is_compressed else 'is JSON of'} more than {self._limit:,} bytes, "
                "more than the model needs; "
                "if you trust the file, pass a larger limit="
            )

    @contextmanager
    def _convert_errors(self) -> Iterator[None]:
        try:
            yield
        except EOFError:
            self._raise_truncated()
        except (gzip.BadGzipFile, zlib.error) as error:
            raise BadFile(f"{self.name} is damaged gzip: {error}") from error


@contextmanager
def open_reader(path: Path, limit: int) -> Iterator[Reader]:
    """Opens a regular file; gzip is recognised by content, not by name."""
    try:
        with explain_errors(path, expected="a weights file"):
            file = open_regular_file(path)
    except MissingFile as error:
        raise missing_file(path) from error
    with file:
        size = os.fstat(file.fileno()).st_size
        start: bytes = file.peek(9)[:9]  # pyright: ignore[reportAttributeAccessIssue]
        if start[:2] == b"\x1f\x8b" and start[8:] != b"{":  # gzip, and not a safetensors header of such a length
            unpacked: Any = gzip.GzipFile(fileobj=file, mode="rb")
            yield Reader(str(path), unpacked, size=size, limit=limit, is_compressed=True)
        else:
            yield Reader(str(path), file, size=size, limit=limit)


@dataclass(frozen=True)
class Header:
    """What a file says about its tensors; files of other programs have only the first two fields."""

    tensors: dict[str, Entry]
    metadata: dict[str, str] = field(default_factory=dict)
    precision: str | None = None
    aliases: dict[str, str] = field(default_factory=dict)  # other names of tied tensors -> the stored name
    dtypes: dict[str, str] = field(default_factory=dict)  # in the model, for tensors that are stored in another one
    crc32: dict[str, str] = field(default_factory=dict)  # of each tensor's bytes, as eight hexadecimal digits

    def to_info(self) -> dict[str, Any]:
        """The entry that stoker adds to a file, with a checksum of the whole header."""
        info = {name: getattr(self, name) for name in ("precision", "aliases", "dtypes", "crc32")}
        tensors = {name: repr(entry) for name, entry in self.tensors.items()}
        content = json.dumps([VERSION, tensors, self.metadata, info], sort_keys=True)
        return {"version": VERSION, **info, "head": checksum(content.encode())}


def parse_header(
    file: str, tensors: Any, metadata: Any, info: Any, *, dtypes: Mapping[str, torch.dtype], keys: tuple[str, ...]
) -> Header:
    """Checks what a file says about its tensors, each of which is described by `keys`; raises `BadFile`.

    `info` is the entry that `Header.to_info` made, or `None` in files of other programs.
    """
    if not isinstance(tensors, dict):
        raise BadFile(f"{file}: the list of tensors is {shorten(tensors)}; expected a mapping")
    entries = {name: _parse_entry(file, name, described, dtypes, keys) for name, described in tensors.items()}
    header = Header(entries, _parse_strings(file, "the metadata", metadata))
    return header if info is None else _parse_info(file, header, info)


def _parse_entry(
    file: str, name: Any, described: Any, dtypes: Mapping[str, torch.dtype], keys: tuple[str, ...]
) -> Entry:
    if type(name) is not str or not isinstance(described, dict) or set(described) != set(keys):
        raise BadFile(
            f"{file}: the tensor {shorten(name)} is described by {shorten(described)}; expected {', '.join(keys)}"
        )
    dtype, shape = described["dtype"], described["shape"]
    if not isinstance(dtype, str) or dtype not in dtypes:
        raise BadFile(f"{file}: the tensor {shorten(name)} has the unknown dtype {shorten(dtype)}")
    is_list = isinstance(shape, list) and len(shape) <= MAX_DIMENSIONS
    if not is_list or not all(type(size) is int and size >= 0 for size in shape):
        raise BadFile(
            f"{file}: the tensor {shorten(name)} has the shape {shorten(shape)}; expected integers of at least 0"
        )
    if math.prod(max(size, 1) for size in shape) >= 2**60:  # torch computes strides of empty tensors too
        raise BadFile(f"{file}: the tensor {shorten(name)} has the shape {shorten(shape)}, which is too large")
    return Entry(dtypes[dtype], tuple(shape))


def _parse_strings(file: str, what: str, value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(type(text) is str for pair in value.items() for text in pair):
        raise BadFile(f"{file}: {what} is not a mapping of strings to strings")
    return value


def _parse_info(file: str, header: Header, info: Any) -> Header:
    version = info.get("version") if isinstance(info, dict) else None
    if type(version) is int and version > VERSION:
        raise BadFile(
            f"{file} was written by a newer stoker (weights version {str(version)[:9]}, this one reads {VERSION}); "
            "install a newer stoker to read it"
        )
    names = {"version", "precision", "aliases", "dtypes", "crc32", "head"}
    if not isinstance(info, dict) or set(info) != names or type(info["precision"]) is not str:
        raise BadFile(f"{file}: stoker's entry in the header is damaged")
    texts = {name: _parse_strings(file, f"{name!r}", info[name]) for name in ("aliases", "dtypes", "crc32")}
    tensors = header.tensors
    if texts["crc32"].keys() != tensors.keys() or not tensors.keys() >= set(texts["aliases"].values()):
        raise BadFile(f"{file}: the names of the checksums or tied tensors are not those of the tensors")
    for name, entry in tensors.items():
        original = DTYPES.get(texts["dtypes"].get(name, ""), entry.dtype)
        if original.is_complex and entry.dtype == torch.float64 and entry.shape[-1:] == (2,):  # pairs
            tensors[name] = Entry(torch.complex128, entry.shape[:-1])
    header = Header(tensors, header.metadata, info["precision"], **texts)
    if header.to_info() != info:
        raise BadFile(f"{file} is damaged: the checksum of its names, shapes and metadata does not match")
    return header


def shorten(thing: Any) -> str:
    """The repr of a value from a file, cut so that a damaged file cannot fill the screen."""
    try:
        text = reprlib.repr(thing)
    except Exception:
        return "a deeply nested value"
    return text if len(text) <= 80 else f"{text[:77]}..."
