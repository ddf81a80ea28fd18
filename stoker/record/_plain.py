"""Files of a run opened without trust: what was checked is what is read, whoever swaps it meanwhile."""

import os
import stat
from pathlib import Path
from typing import BinaryIO

# No link is followed, and a pipe is not waited for; Windows has neither word.
_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


def open_plain(path: Path) -> BinaryIO:
    """Opens a file to read; an `OSError` where it is anything else: a link, a pipe, a folder."""
    return open(path, "rb", opener=_opened)


def open_inside(path: Path, folder: Path | None) -> BinaryIO:
    """Opens a file, or the one that a link means, to read; an `OSError` where that is not inside of the folder.

    `folder` is a real path, and `None` stands for anywhere.
    """
    real = Path(os.path.realpath(path))
    if folder is not None and not real.is_relative_to(folder):
        raise OSError("it lies elsewhere")
    return open_plain(real)


def _opened(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | _FLAGS)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError("it is no file")
