"""Writing to a stream that may be slow, gone, or of an encoding that knows few characters."""

import os
import shutil
from typing import TextIO

_ASCII = str.maketrans({"━": "=", "╸": ">", "─": "-", "·": "|", "…": "...", "–": "-"})


class Writer:
    """A stream that never raises: what it can't encode it spells in ASCII, and once it is gone it is silent.

    >>> import sys
    >>> Writer(sys.stdout).line("epoch 1")
    epoch 1
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.unicode = _has_braille(stream)
        self.gone = False

    def line(self, text: str) -> None:
        """Writes a line, at once."""
        self.write(f"{text}\n")

    def write(self, text: str) -> None:
        """Writes a text in one piece, at once."""
        if self.gone:
            return
        try:
            self.stream.write(text if self.unicode else self._spell(text))
            self.stream.flush()
        except (OSError, ValueError):  # a broken pipe, a closed file: nobody reads, and training goes on
            self.gone = True

    def _spell(self, text: str) -> str:
        encoding = getattr(self.stream, "encoding", None) or "ascii"
        return text.translate(_ASCII).encode(encoding, "replace").decode(encoding)

    def size(self) -> tuple[int, int]:
        """Columns and lines, as they are now; 80 × 24 where nobody knows."""
        try:
            columns, lines = os.get_terminal_size(self.stream.fileno())
        except (OSError, ValueError, AttributeError):
            columns, lines = shutil.get_terminal_size((80, 24))
        return columns or 80, lines or 24


def _has_braille(stream: TextIO) -> bool:
    if os.environ.get("TERM") == "linux":  # the kernel's own console: its fonts have no braille
        return False
    try:
        "━⠿".encode(getattr(stream, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
