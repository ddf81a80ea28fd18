"""What the formats have in common: reading untrusted bytes, and a header of names, dtypes, shapes and checksums."""

import gzip
import json
import math
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from stoker.errors import BadFile, MissingFile, did_you_mean
from stoker.weights._tensors import DTYPES, Entry, checksum, tensor_bytes

VERSION = 1
MAX_DIMENSIONS = 64  # torch indexes fewer; the bound keeps a forged list small

_CHUNK = 1 << 20  # bytes


class Reader:
    """An open file, plain or gzipped. Allocates memory only for bytes that exist; all damage raises `BadFile`."""

    def __init__(self, name: str, file: IO[bytes], *, size: int, limit: int | None = None):
        self.name = name
        self.is_compressed = limit is not None
        self._size = size  # bytes of the file
        self._limit = limit  # bytes that a gzipped file may unpack to
        self._file = file

    def seek(self, position: int) -> None:
        self._check_limit(position)
        with self._convert_errors():
            self._file.seek(position)

    def read(self, count: int) -> bytes:
        """At most `count` bytes, possibly fewer; empty only at the end of the file."""
        with self._convert_errors():
            data = self._file.read(min(count, _CHUNK))
        self._check_limit(self._file.tell())
        return data

    def read_exactly(self, count: int) -> bytes:
        pieces: list[bytes] = []
        while count:
            pieces.append(self.read(count) or self._raise_truncated())
            count -= len(pieces[-1])
        return b"".join(pieces)

    def read_rest(self) -> bytes:
        return b"".join(iter(lambda: self.read(_CHUNK), b""))

    def read_tensor(self, entry: Entry) -> Tensor:
        """Reads the next bytes into a new tensor."""
        tensor = torch.empty(entry.shape, dtype=entry.dtype)
        memory = tensor_bytes(tensor)
        while memory:
            with self._convert_errors():
                count = self._file.readinto(memory[:_CHUNK])  # pyright: ignore[reportAttributeAccessIssue]
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
                f"{self.name} unpacks to more than {self._limit:,} bytes, more than the model needs; "
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
    """Opens a file; gzip is recognised by content, not by name."""
    try:
        file = path.open("rb")
    except FileNotFoundError as error:
        siblings = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
        longer = [str(path.with_name(name)) for name in siblings if name.startswith(f"{path.name}.")]
        hint = f"; did you mean {longer[0]!r}?" if longer else did_you_mean(path.name, siblings)
        raise MissingFile(f"there is no file {str(path)!r}{hint}") from error
    except IsADirectoryError as error:
        raise BadFile(f"{str(path)!r} is a directory; expected the path of a weights file") from error
    with file:
        size = os.fstat(file.fileno()).st_size
        if file.peek(2)[:2] == b"\x1f\x8b":  # gzip's magic number
            yield Reader(str(path), gzip.GzipFile(fileobj=file, mode="rb"), size=size, limit=limit)  # pyright: ignore[reportArgumentType]
        else:
            yield Reader(str(path), file, size=size)


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


def parse_entry(file: str, name: str, dtypes: Mapping[str, torch.dtype], dtype: Any, shape: Any) -> Entry:
    """An entry with a known dtype and a valid shape; raises `BadFile` otherwise."""
    known = dtypes.get(dtype) if isinstance(dtype, str) else None
    if known is None:
        raise BadFile(f"{file}: the tensor {shorten(name)} has the unknown dtype {shorten(dtype)}")
    is_list = isinstance(shape, list) and len(shape) <= MAX_DIMENSIONS
    if not is_list or not all(type(size) is int and size >= 0 for size in shape):
        raise BadFile(
            f"{file}: the tensor {shorten(name)} has the shape {shorten(shape)}; expected integers of at least 0"
        )
    if math.prod(max(size, 1) for size in shape) >= 2**60:  # torch computes strides of empty tensors too
        raise BadFile(f"{file}: the tensor {shorten(name)} has the shape {shorten(shape)}, which is too large")
    return Entry(known, tuple(shape))


def parse_strings(file: str, what: str, found: Any) -> dict[str, str]:
    """Checks that `found` maps strings to strings."""
    if not isinstance(found, dict) or not all(type(each) is str for pair in found.items() for each in pair):
        raise BadFile(f"{file}: {what} is not a mapping of strings to strings")
    return found


def parse_info(file: str, tensors: dict[str, Entry], metadata: dict[str, str], found: Any) -> Header:
    """The header of a file of stoker, from the entry that `Header.to_info` made; raises `BadFile` for any change."""
    version = found.get("version") if isinstance(found, dict) else None
    if type(version) is int and version > VERSION:
        raise BadFile(
            f"{file} was written by a newer stoker (weights version {version}, this one reads {VERSION}); "
            "install a newer stoker to read it"
        )
    fields = {"version", "precision", "aliases", "dtypes", "crc32", "head"}
    if not isinstance(found, dict) or set(found) != fields or type(found["precision"]) is not str:
        raise BadFile(f"{file}: stoker's entry in the header is damaged")
    texts = {field: parse_strings(file, f"{field!r}", found[field]) for field in ("aliases", "dtypes", "crc32")}
    if texts["crc32"].keys() != tensors.keys() or not tensors.keys() >= set(texts["aliases"].values()):
        raise BadFile(f"{file}: the names of the checksums or tied tensors are not those of the tensors")
    for name, entry in tensors.items():
        original = DTYPES.get(texts["dtypes"].get(name, ""), entry.dtype)
        if original.is_complex and entry.dtype == torch.float64 and entry.shape[-1:] == (2,):  # pairs
            tensors[name] = Entry(torch.complex128, entry.shape[:-1])
    header = Header(tensors, metadata, found["precision"], **texts)
    if header.to_info() != found:
        raise BadFile(f"{file} is damaged: the checksum of its names, shapes and metadata does not match")
    return header


def parse_document(file: str, found: Mapping[str, Any], keys: tuple[str, ...]) -> Header:
    """The header of a MessagePack or JSON file: a map of `stoker`, `metadata` and `tensors`, each tensor with `keys`.

    Only `tensors` has to be there: a JSON file may be written by hand.
    """
    described = found["tensors"]
    if not isinstance(described, dict):
        raise BadFile(f"{file}: the list of tensors is {shorten(described)}; expected a mapping")
    tensors: dict[str, Entry] = {}
    for name, each in described.items():
        check_fields(file, name, each, keys)
        tensors[name] = parse_entry(file, name, DTYPES, each["dtype"], each["shape"])
    metadata = parse_strings(file, "the metadata", found.get("metadata", {}))
    return parse_info(file, tensors, metadata, found["stoker"]) if "stoker" in found else Header(tensors, metadata)


def check_fields(file: str, name: Any, found: Any, keys: tuple[str, ...]) -> None:
    """Raises `BadFile` unless a tensor is described by these keys."""
    if type(name) is not str or not isinstance(found, dict) or set(found) != set(keys):
        raise BadFile(
            f"{file}: the tensor {shorten(name)} is described by {shorten(found)}; expected {', '.join(keys)}"
        )


def shorten(thing: Any) -> str:
    """The repr of a value from a file, cut so that a damaged file cannot fill the screen."""
    try:
        text = repr(thing)
    except RecursionError:
        return "a deeply nested value"
    return text if len(text) <= 80 else f"{text[:77]}..."
