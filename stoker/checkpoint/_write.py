"""New files in an open folder, summed while they are written and on the disk when they are closed."""

import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from torch import Tensor

from stoker.checkpoint import _disk
from stoker.checkpoint._json import to_json
from stoker.checkpoint._manifest import LARGEST, Sum, checksum
from stoker.checkpoint._names import STATE, tensors_file
from stoker.errors import InvalidArgument
from stoker.weights import write_tensors

_PIECE = 1 << 22  # bytes that are summed and written at a time, while they are in the processor's cache


class NewFile:
    """A file that is being written, with the size and checksum of what is in it so far."""

    def __init__(self, file: int):
        self._file = file
        self._bytes = 0
        self._crc32 = 0

    def write(self, data: bytes | memoryview) -> None:
        """Writes all of `data`."""
        for start in range(0, len(data), _PIECE):
            piece = memoryview(data)[start : start + _PIECE]
            self._crc32 = zlib.crc32(piece, self._crc32)
            self._bytes += len(piece)
            while piece:
                piece = piece[_disk.write(self._file, piece) :]

    def sum(self) -> Sum:
        return Sum(self._bytes, checksum(self._crc32))


@contextmanager
def new_file(name: str, within: int) -> Iterator[NewFile]:
    """A new file, which is synced and closed at the end; after an exception it is only closed."""
    file = _disk.create(name, within)
    try:
        yield NewFile(file)
        _disk.sync(file)
    except BaseException:
        with suppress(OSError):
            _disk.close(file)
        raise
    _disk.close(file)


def write_state(plain: Any, tensors: Mapping[str, Mapping[str, Tensor]], within: int) -> dict[str, Sum]:
    """Writes both halves of a state, and gives the sums of the files."""
    text = to_json(plain)
    if len(text) > LARGEST[STATE]:
        raise InvalidArgument(
            f"the plain part of the state has {len(text):,} bytes as text, at most {LARGEST[STATE]:,} are saved; "
            "keep long lists of numbers as tensors"
        )
    sums: dict[str, Sum] = {}
    with new_file(STATE, within) as file:
        file.write(text)
        sums[STATE] = file.sum()
    for part, named in tensors.items():
        with new_file(tensors_file(part), within) as file:
            write_tensors(file, named)
            sums[tensors_file(part)] = file.sum()
    return sums
