"""Reads untrusted files: exact reads, a bound on what gzip unpacks to, and `BadFile` for every kind of damage."""

import gzip
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from stoker.errors import BadFile, MissingFile, did_you_mean

_CHUNK = 1 << 20  # bytes


class Reader:
    """An open file, plain or gzipped. Allocates memory only for bytes that exist."""

    def __init__(self, name: str, file: IO[bytes], *, compressed: bool, size: int | None, limit: int):
        self.name = name
        self.compressed = compressed
        self.size = size  # bytes; None if compressed
        self.limit = limit  # bytes that a compressed file may unpack to
        self._file = file

    def tell(self) -> int:
        return self._file.tell()

    def seek(self, position: int) -> None:
        with self._convert_errors():
            self._file.seek(position)

    def read(self, count: int) -> bytes:
        """At most `count` bytes, possibly fewer; empty only at the end of the file."""
        with self._convert_errors():
            data = self._file.read(min(count, _CHUNK))
        self._check_limit()
        return data

    def read_exactly(self, count: int) -> bytes:
        pieces: list[bytes] = []
        while count:
            pieces.append(self.read(count) or self.raise_truncated())
            count -= len(pieces[-1])
        return b"".join(pieces)

    def read_rest(self) -> bytes:
        return b"".join(iter(lambda: self.read(_CHUNK), b""))

    def read_tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Reads the next bytes into a new tensor."""
        tensor = torch.empty(shape, dtype=dtype)
        memory = tensor_bytes(tensor)
        while memory:
            with self._convert_errors():
                count = self._file.readinto(memory[:_CHUNK])  # pyright: ignore[reportAttributeAccessIssue]
            self._check_limit()
            if not count:
                self.raise_truncated()
            memory = memory[count:]
        return tensor

    def skip(self, count: int) -> None:
        if self.compressed:
            while count:
                count -= len(self.read(count) or self.raise_truncated())
        else:
            self.seek(self.tell() + count)

    def check_end(self) -> None:
        """Raises unless everything was read; at the end of a gzipped file its checksum is compared."""
        if self.read(1):
            self.raise_trailing()

    def raise_truncated(self) -> bytes:
        raise BadFile(f"{self.name} ends too early: it is truncated, or still being written")

    def raise_trailing(self) -> None:
        raise BadFile(f"{self.name} has bytes after its last tensor; it is damaged, or several files in one")

    def _check_limit(self) -> None:
        if self.compressed and self.tell() > self.limit:
            raise BadFile(
                f"{self.name} unpacks to more than {self.limit:,} bytes, more than the model needs; "
                "if you trust the file, pass a larger limit="
            )

    @contextmanager
    def _convert_errors(self) -> Iterator[None]:
        try:
            yield
        except EOFError:
            self.raise_truncated()
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
        compressed = file.peek(2)[:2] == b"\x1f\x8b"  # gzip's magic number
        size = os.fstat(file.fileno()).st_size
        content = gzip.GzipFile(fileobj=file, mode="rb") if compressed else file
        yield Reader(str(path), content, compressed=compressed, size=None if compressed else size, limit=limit)  # pyright: ignore[reportArgumentType]


def tensor_bytes(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor in CPU memory, without a copy."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data
