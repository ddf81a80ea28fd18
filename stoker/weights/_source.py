"""Reading a file that can't be trusted: exact reads, a bound on what gzip unpacks to, and one kind of error."""

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


class Source:
    """An open file, plain or gzipped, that gives exactly the bytes it is asked for or raises `BadFile`."""

    def __init__(self, name: str, file: IO[bytes], *, compressed: bool, size: int | None, limit: int):
        self.name = name
        self.compressed = compressed
        self.size = size  # bytes; not known before the end where the file is compressed
        self.limit = limit
        self._file = file

    def tell(self) -> int:
        return self._file.tell()

    def seek(self, position: int) -> None:
        with self._refusing():
            self._file.seek(position)

    def read(self, count: int) -> bytes:
        """Some of the next `count` bytes: at least one, except at the end, and never more memory than there is file."""
        with self._refusing():
            data = self._file.read(min(count, _CHUNK))
        self._stay_within()
        return data

    def exactly(self, count: int) -> bytes:
        """The next `count` bytes."""
        pieces: list[bytes] = []
        while count:
            pieces.append(self.read(count) or self.ends_early())
            count -= len(pieces[-1])
        return b"".join(pieces)

    def rest(self) -> bytes:
        """Everything from here to the end."""
        return b"".join(iter(lambda: self.read(_CHUNK), b""))

    def fill(self, memory: memoryview) -> None:
        """Fills `memory` with the next bytes."""
        while memory:
            with self._refusing():
                count = self._file.readinto(memory[:_CHUNK])  # pyright: ignore[reportAttributeAccessIssue]
            self._stay_within()
            if not count:
                self.ends_early()
            memory = memory[count:]

    def skip(self, count: int) -> None:
        if self.compressed:
            while count:
                count -= len(self.read(count) or self.ends_early())
        else:
            self.seek(self.tell() + count)

    def ends_early(self) -> bytes:
        raise BadFile(f"{self.name} ends too early: it was cut short, or is still being written")

    def finish(self) -> None:
        """Makes sure that nothing is left over; for gzip, this also checks its own checksum."""
        if self.read(1):
            raise BadFile(f"{self.name} goes on after its last tensor; it is damaged, or more than one file in one")

    def _stay_within(self) -> None:
        if self.compressed and self.tell() > self.limit:
            raise BadFile(
                f"{self.name} unpacks to more than {self.limit:,} bytes, which is more than it should need; "
                "if you trust it, pass a larger limit="
            )

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except EOFError:
            self.ends_early()
        except (gzip.BadGzipFile, zlib.error) as error:
            raise BadFile(f"{self.name} is damaged gzip: {error}") from error


@contextmanager
def open_source(path: Path, limit: int) -> Iterator[Source]:
    """Opens a file, unpacking it where its content (not its name) says gzip."""
    try:
        file = path.open("rb")
    except FileNotFoundError as error:
        there = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
        longer = [str(path.with_name(name)) for name in there if name.startswith(f"{path.name}.")]
        near = f"; did you mean {longer[0]!r}?" if longer else did_you_mean(path.name, there)
        raise MissingFile(f"there is no file {str(path)!r}{near}") from error
    except IsADirectoryError as error:
        raise BadFile(f"{str(path)!r} is a folder; expected a weights file in it, by name") from error
    with file:
        packed = file.peek(2)[:2] == b"\x1f\x8b"  # gzip's own first two bytes
        size = os.fstat(file.fileno()).st_size
        content = gzip.GzipFile(fileobj=file, mode="rb") if packed else file
        yield Source(str(path), content, compressed=packed, size=None if packed else size, limit=limit)  # pyright: ignore[reportArgumentType]


def blank(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, memoryview]:
    """A new tensor, and its bytes to be filled."""
    tensor = torch.empty(shape, dtype=dtype)
    return tensor, raw(tensor)


def raw(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor in CPU memory, shared with it."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data
