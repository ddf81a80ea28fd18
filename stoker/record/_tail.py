"""A file that another process appends to, read as it grows; whatever happens to it meanwhile."""

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from stoker.record._plain import open_inside

_BLOCK = 1 << 20  # bytes that are read at once
_LONGEST = 1 << 24  # bytes of a line; what is longer is junk
_ANCHOR = 64  # bytes before the place of reading that must stay as they were


class Tail:
    """The whole lines of a growing file, in blocks, each line once; where a folder is given, of none outside of it."""

    def __init__(self, path: Path, *, inside: Path | None = None) -> None:
        self.path = path
        self.inside = inside
        self.offset = 0  # bytes that were read
        self.size = 0  # of the file, when it was last looked at
        self.torn = b""  # the line at its end that is not whole yet
        self._mark: tuple[int, ...] = ()
        self._anchor = b""

    def look(self) -> bool:
        """Whether the file has changed since the last look; an `OSError` where there is none."""
        found = self.path.stat()
        if not stat.S_ISREG(found.st_mode):  # to open a pipe would wait for its writer
            raise OSError("it is no file")
        mark = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
        changed, self._mark, self.size = mark != self._mark, mark, found.st_size
        return changed

    @property
    def unread(self) -> int:
        """How many bytes there were to read at the last look."""
        return max(0, self.size - self.offset - len(self.torn))

    def skip_to(self, offset: int) -> None:
        """Goes on reading at another place."""
        self.offset, self._anchor, self.torn = offset, b"", b""

    def blocks(self) -> Iterator[bytes | None]:
        """What is new, up to the last whole line; `None` first where nothing that was read before counts any more.

        That is so when the file was cut, rewritten, or replaced by another; a longer copy in its place is no other.
        """
        with open_inside(self.path, self.inside) as file:
            if not self._goes_on(file):
                self.skip_to(0)
                yield None
            size = _BLOCK
            while True:
                file.seek(self.offset)
                block = file.read(size)
                end = block.rfind(b"\n") + 1
                if end or size >= _LONGEST:
                    self._step(block[: end or len(block)])
                    yield block[:end]
                    size = _BLOCK
                elif len(block) < size:
                    self.torn = block
                    return
                else:
                    size *= 4

    def end_torn(self) -> None:
        """Counts the torn line as read: it was whole, but for its newline."""
        self._step(self.torn)

    def _goes_on(self, file: BinaryIO) -> bool:
        """Whether the file still holds what was read last, where it was; a shorter one has nothing there."""
        file.seek(self.offset - len(self._anchor))
        return file.read(len(self._anchor)) == self._anchor

    def _step(self, read: bytes) -> None:
        self.offset += len(read)
        self._anchor = (self._anchor + read)[-_ANCHOR:]
        self.torn = b""


def lines_between(path: Path, start: int, end: int, *, inside: Path | None = None) -> bytes:
    """The whole lines of a stretch of a file; of the first one only where the file begins there."""
    with open_inside(path, inside) as file:
        file.seek(start)
        block = file.read(end - start)
    first = block.find(b"\n") + 1 if start else 0
    return block[first : block.rfind(b"\n") + 1]


def next_line(path: Path, start: int, *, inside: Path | None = None) -> int:
    """Where the first line begins that begins after a place in a file."""
    with open_inside(path, inside) as file:
        file.seek(start)
        file.readline(_LONGEST)
        return file.tell()
