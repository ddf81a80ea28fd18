"""Writing to a terminal: a stream that never raises, a block that is redrawn in place, and how often to draw."""

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

_ASCII = str.maketrans({"━": "=", "╸": ">", "─": "-", "·": "|", "…": "...", "–": "-"})
_ERASE_REST, _ERASE_NEXT = "\x1b[K", "\x1b[B\x1b[2K"  # the rest of this line; the line below
_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"  # synchronised update; terminals that don't know it ignore it


class Writer:
    """A stream that never raises: it replaces characters that it can't encode, and is silent once it is closed.

    >>> Writer(sys.stdout).line("epoch 1")
    epoch 1
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.unicode = _has_braille(stream)
        self._closed = False

    def line(self, text: str) -> None:
        """Writes and flushes a line."""
        self.write(f"{text}\n")

    def write(self, text: str) -> None:
        """Writes text in one call and flushes it."""
        if self._closed:
            return
        if not self.unicode:
            encoding = getattr(self.stream, "encoding", None) or "ascii"
            text = text.translate(_ASCII).encode(encoding, "replace").decode(encoding)
        try:
            self.stream.write(text)
            self.stream.flush()
        except (OSError, ValueError):  # a broken pipe or a closed file must not stop training
            self._closed = True

    def size(self) -> tuple[int, int]:
        """The current columns and lines; 80 × 24 if unknown."""
        try:
            columns, lines = os.get_terminal_size(self.stream.fileno())
        except (OSError, ValueError, AttributeError):
            columns, lines = shutil.get_terminal_size((80, 24))
        return columns or 80, lines or 24


def _has_braille(stream: TextIO) -> bool:
    if os.environ.get("TERM") == "linux":  # the kernel's console fonts have no braille
        return False
    try:
        "━⠿".encode(getattr(stream, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


class Block:
    """Lines at the bottom of a terminal, redrawn in place; between `open` and `close`, prints appear above them.

    Between drawings the cursor waits at the top left corner of the block, on a blank line. Output that bypasses Python
    (a C library, a worker process, the echo of Ctrl-C) therefore overwrites the block and stays above its next drawing,
    a resized terminal loses nothing, and a killed process leaves a working terminal: no mode of it was changed.

    Lines are erased one by one. tmux and others answer "erase to the end of the screen" in the top row by saving the
    whole screen in the scrollback, once per drawing.
    """

    def __init__(self, stream: TextIO) -> None:
        self.writer = Writer(stream)
        self._lines: list[str] = []
        self._shown = False
        self._count, self._size = 0, (0, 0)  # lines of the block that is shown, and the terminal's size at that time
        self._unfinished = False  # a print without a newline occupies the block's place
        self._foreign_bar = False  # … and it is a progress bar that returns to the line's start, so don't draw over it
        self._proxies: dict[str, _StreamAbove] = {}

    def open(self) -> None:
        """Redirects `sys.stdout` and `sys.stderr`, if they are this terminal, to print above the block."""
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if stream is None or isinstance(stream, _StreamAbove) or not _same_terminal(stream, self.writer.stream):
                continue
            self._proxies[name] = _StreamAbove(stream, self)
            setattr(sys, name, self._proxies[name])

    def draw(self, lines: list[str]) -> None:
        """Replaces the block by these lines; the first must be blank."""
        self._lines = lines
        if not self._foreign_bar:
            self._show()

    def close(self, lines: list[str]) -> None:
        """Replaces the block by these lines for good and restores the streams."""
        for name, proxy in self._proxies.items():
            proxy.block = None
            if getattr(sys, name) is proxy:  # otherwise the user has redirected it meanwhile
                setattr(sys, name, proxy.stream)
        self._proxies = {}
        if lines:
            self.writer.write(self._start() + "".join(f"{line}{_ERASE_REST}\n" for line in lines))
        self._lines, self._shown, self._unfinished = [], False, False

    def print_above(self, text: str) -> None:
        """Prints a line of the console itself above the block."""
        self.writer.write(f"{_BEGIN}{self._start()}{text}\n{_END}")
        self._unfinished = self._foreign_bar = self._shown = False
        self._show()

    def forward(self, stream: TextIO, text: str) -> int:
        """Prints text that the program wrote to one of the redirected streams."""
        if self._shown:
            stream.write(self._start())
            self._shown = False
        written = stream.write(text)
        if text:
            self._unfinished = not text.endswith(("\n", "\r"))
            self._foreign_bar = self._unfinished and (self._foreign_bar or "\r" in text)
        if not self._unfinished:
            stream.flush()  # the block may reach the same terminal through another stream
            self._show()
        return written

    def _start(self) -> str:
        """Moves the cursor to the start of a clean line; the lines below it are clean too."""
        if self._unfinished and not self._shown:
            return "\n"
        height = self.writer.size()[1]
        return "\r\x1b7\x1b[2K" + _ERASE_NEXT * (height - 1) + "\x1b8"

    def _show(self) -> None:
        if not self._lines:
            return
        size, count = self.writer.size(), len(self._lines)
        start, below = self._start(), ""
        if self._shown and size == self._size:  # overwrites the block, which flickers less than erasing it first
            start, below = "\r", "\x1b7" + _ERASE_NEXT * (self._count - count) + "\x1b8"
        lines = f"{_ERASE_REST}\n".join(self._lines) + _ERASE_REST
        up = f"\x1b[{count - 1}A" if count > 1 else ""
        self.writer.write(f"{_BEGIN}{start}{lines}{below}\r{up}{_END}")
        self._shown, self._unfinished, self._count, self._size = True, False, count, size


class _StreamAbove:
    """Replaces `sys.stdout` or `sys.stderr`: the same stream, but text goes above the block."""

    def __init__(self, stream: TextIO, block: Block) -> None:
        self.stream = stream
        self.block: Block | None = block

    def write(self, text: str) -> int:
        return self.stream.write(text) if self.block is None else self.block.forward(self.stream, text)

    def writelines(self, lines: Any) -> None:
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def has_block(stream: TextIO) -> bool:
    """Whether another fit already shows its block on this stream."""
    proxy = cast(object, stream)
    return isinstance(proxy, _StreamAbove) and proxy.block is not None


def _same_terminal(stream: TextIO, other: TextIO) -> bool:
    if stream is other:
        return True
    try:
        both = stream.isatty() and other.isatty()
        return both and os.fstat(stream.fileno()).st_rdev == os.fstat(other.fileno()).st_rdev
    except (OSError, ValueError, AttributeError):
        return False


class Pace:
    """Limits drawing to once per `interval` seconds and to a `share` of the time.

    >>> pace = Pace(60.0)
    >>> with pace.measure():
    ...     pass
    >>> pace.is_due()
    False

    After a drawing that took `cost` seconds the next is due in `cost / share` seconds, or `interval`, whichever is
    longer: a slow terminal is drawn less often instead of delaying the training.
    With an interval of 0 every drawing is due.
    """

    def __init__(self, interval: float, *, share: float = 0.01, clock: Callable[[], float] = time.perf_counter) -> None:
        self.interval = interval
        self.share = share
        self.clock = clock
        self._next = clock()

    def is_due(self) -> bool:
        """Whether it is time to draw."""
        return not self.interval or self.clock() >= self._next

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Measures the drawing inside the `with` block and sets when the next one is due."""
        start = self.clock()
        try:
            yield
        finally:
            now = self.clock()
            self._next = now + max(self.interval, (now - start) / self.share)
