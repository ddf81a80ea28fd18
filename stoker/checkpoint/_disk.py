"""The few things that are done to a disk here, one function each; no other file of this room touches it.

Everything is named within an open folder, so that nothing can be moved or linked away underneath. Tests count these
functions, let the n-th one fail, and kill the process in it.
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
    """A folder to work in; within another, a link to one is refused."""
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
    """A new file to write to; one that is there already is an error."""
    return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666, dir_fd=within)


def open_file(name: str, within: int) -> tuple[int, int]:
    """A plain file to read, and its bytes; a link, a folder, a pipe or a device is an error, without a wait."""
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=within)
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "it is no plain file")
    return file, found.st_size


def write(file: int, data: memoryview) -> int:
    """Writes some of `data`, and says how many bytes."""
    return os.write(file, data)


def read(file: int, memory: memoryview) -> int:
    """Reads the next bytes into `memory`, and says how many; 0 at the end."""
    return os.readv(file, [memory])


def sync(file: int) -> None:
    """Returns when a file or a folder is on the disk as it is now."""
    os.fsync(file)


def close(file: int) -> None:
    os.close(file)


@contextmanager
def folder(name: str | Path, within: int | None = None) -> Iterator[int]:
    """An open folder that is closed again."""
    with closing(open_folder(name, within)) as opened:
        yield opened


@contextmanager
def closing(file: int) -> Iterator[int]:
    """Closes what nothing was written to; whether the disk minds is no matter then."""
    try:
        yield file
    finally:
        with suppress(OSError):
            close(file)
