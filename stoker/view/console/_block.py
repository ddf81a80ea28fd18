"""One block of lines at the foot of a terminal, drawn over and over in its place.

Between drawings the cursor waits at the top left corner of the block, on a blank line. So whatever reaches the terminal
by another way (a C library, a logging handler made long ago, a worker process, Ctrl-C's echo) stands above the block
after the next drawing, a terminal that changes its width loses nothing, and a process that is killed leaves a terminal
that works: no cursor was hidden, no mode was set.
"""

import os
import sys
from typing import Any, TextIO, cast

from stoker.view.console._stream import Writer

_CLEAR = "\r\x1b[J"  # from the start of this line to the end of the screen
_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"  # one picture, not the strokes of it; unknown to a terminal, ignored


class Block:
    """The block; between `open` and `close`, what Python prints goes above it."""

    def __init__(self, stream: TextIO) -> None:
        self.writer = Writer(stream)
        self.lines: list[str] = []
        self.shown = False
        self.partial = False  # somebody's unfinished line stands where the block would be
        self.lent = False  # … and it is a bar that comes back to its start: the place is lent to it
        self.proxies: dict[str, _Above] = {}

    def open(self) -> None:
        """From now on, what is printed to this terminal goes above the block."""
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if stream is not None and not isinstance(stream, _Above) and _same_terminal(stream, self.writer.stream):
                self.proxies[name] = _Above(stream, self)
                setattr(sys, name, self.proxies[name])

    def draw(self, lines: list[str]) -> None:
        """Shows these lines, the first of them blank, in place of the last ones."""
        self.lines = lines
        if not self.lent:
            self._show()

    def close(self, lines: list[str] | None = None) -> None:
        """Leaves these lines (or the last ones) standing, the cursor below them, and the streams as they were."""
        lines = self.lines if lines is None else lines
        for name, proxy in self.proxies.items():
            proxy.block = None
            if getattr(sys, name) is proxy:  # somebody's redirection may stand over it
                setattr(sys, name, proxy.stream)
        self.proxies = {}
        if lines:
            self.writer.write(self._start() + "\n".join(lines) + "\n")
        self.lines, self.shown, self.partial = [], False, False

    def above(self, text: str) -> None:
        """A line of our own, above the block."""
        self.writer.write(f"{_BEGIN}{self._start()}{text}\n{_END}")
        self.partial = self.lent = self.shown = False
        self._show()

    def print(self, stream: TextIO, text: str) -> int:
        """Somebody's text, as it is, to the stream that it was meant for."""
        if self.shown:
            stream.write(_CLEAR)
            self.shown = False
        written = stream.write(text)
        if text:
            self.partial = not text.endswith(("\n", "\r"))
            self.lent = self.partial and (self.lent or "\r" in text)
        if not self.partial:
            stream.flush()  # before the block, which may go another way to the same terminal
            self._show()
        return written

    def _start(self) -> str:
        """What brings the cursor to a clean start of a line."""
        return "\n" if self.partial and not self.shown else _CLEAR

    def _show(self) -> None:
        if not self.lines:
            return
        back = f"\x1b[{len(self.lines) - 1}A" if len(self.lines) > 1 else ""
        self.writer.write(f"{_BEGIN}{self._start()}{chr(10).join(self.lines)}\r{back}{_END}")
        self.shown, self.partial = True, False


class _Above:
    """Stands in for `sys.stdout` or `sys.stderr`: the same stream, whose text goes above the block."""

    def __init__(self, stream: TextIO, block: Block) -> None:
        self.stream = stream
        self.block: Block | None = block

    def write(self, text: str) -> int:
        return self.stream.write(text) if self.block is None else self.block.print(self.stream, text)

    def writelines(self, lines: Any) -> None:
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def holds_a_block(stream: TextIO) -> bool:
    """Whether a block stands on this stream already: that of a fit around this one."""
    above = cast(object, stream)
    return isinstance(above, _Above) and above.block is not None


def _same_terminal(stream: TextIO, other: TextIO) -> bool:
    if stream is other:
        return True
    try:
        both = stream.isatty() and other.isatty()
        return both and os.fstat(stream.fileno()).st_rdev == os.fstat(other.fileno()).st_rdev
    except (OSError, ValueError, AttributeError):
        return False
