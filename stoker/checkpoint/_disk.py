"""The operations on a disk that checkpoints need, one function each; no other module of this package touches it.

Files and directories are opened by name within an open directory, so that nothing can be moved or linked away in
between. Tests replace these functions to count them, to let the n-th fail, and to kill the process in it.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

OPERATIONS = (
    *("make_folder", "open_folder", "names", "rename", "unlink", "remove_folder"),
    *("create", "open_file", "write", "read", "sync", "close"),
)


def make_folder(name: str | Path, within: int | None = None) -> None:
    os.mkdir(name, dir_fd=within)


def open_folder(name: str | Path, within: int | None = None) -> int:
    """Opens a directory; within another one, a symbolic link is an error."""
    links = 0 if within is None else os.O_NOFOLLOW
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | links, dir_fd=within)


def names(folder: int) -> list[str]:
    return os.listdir(folder)


def rename(old: str, new: str, within: int) -> None:
    os.rename(old, new, src_dir_fd=within, dst_dir_fd=within)


def unlink(name: str, within: int) -> None:
    os.unlink(name, dir_fd=within)


def remove_folder(name: str, within: int) -> None:
    os.rmdir(name, dir_fd=within)


def create(name: str, within: int) -> int:
    """Creates a file for writing; an existing one is an error."""
    return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666, dir_fd=within)


def open_file(name: str, within: int) -> tuple[int, int]:
    """Opens a regular file and returns its size too; a link, directory, pipe or device is an error and never blocks."""
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=within)
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "it is not a regular file")
    return file, found.st_size


def write(file: int, data: memoryview) -> int:
    """Writes the start of `data` and returns the number of bytes."""
    return os.write(file, data)


def read(file: int, memory: memoryview) -> int:
    """Reads into the start of `memory` and returns the number of bytes; 0 at the end."""
    return os.readv(file, [memory])


def sync(file: int) -> None:
    """Returns when a file or directory is on the disk as it is now."""
    os.fsync(file)


def close(file: int) -> None:
    os.close(file)


@contextmanager
def folder(name: str | Path, within: int | None = None) -> Iterator[int]:
    """Opens a directory and closes it afterwards."""
    with closing(open_folder(name, within)) as opened:
        yield opened


@contextmanager
def closing(file: int) -> Iterator[int]:
    """Closes a descriptor that nothing was written to, so a failure does not matter."""
    try:
        yield file
    finally:
        with suppress(OSError):
            close(file)
