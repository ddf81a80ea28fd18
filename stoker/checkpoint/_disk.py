"""The operations on a disk that checkpoints need, one function each; no other module of this package touches it.

Tests replace these functions to count them, to let the n-th fail, and to kill the process in it.
"""

import os
import stat
from errno import ENOTDIR
from pathlib import Path

from stoker._files import open_descriptor, sync_descriptor, sync_directory

OPERATIONS = (
    *("make_folder", "check_folder", "names", "rename", "unlink", "remove_folder"),
    *("create", "open_file", "write", "read", "sync", "sync_folder", "close"),
)


def make_folder(path: Path) -> None:
    os.mkdir(path)


def check_folder(path: Path) -> None:
    """Raises unless there is a directory; a symbolic link to one is an error too."""
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        raise NotADirectoryError(ENOTDIR, os.strerror(ENOTDIR))


def names(folder: Path) -> list[str]:
    return os.listdir(folder)


def rename(old: Path, new: Path) -> None:
    os.rename(old, new)


def unlink(path: Path) -> None:
    os.unlink(path)


def remove_folder(path: Path) -> None:
    os.rmdir(path)


def create(path: Path) -> int:
    """Creates a file for writing; an existing one is an error."""
    return open_descriptor(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)


def open_file(path: Path) -> tuple[int, int]:
    """Opens a regular file and returns its size too; a link, directory, pipe or device is an error and never blocks."""
    flags = os.O_RDONLY if hasattr(os, "O_DIRECTORY") else os.O_RDWR  # Windows syncs only what is open for writing
    try:
        file = open_descriptor(path, flags)
    except PermissionError:
        if flags == os.O_RDONLY:
            raise
        file = open_descriptor(path, os.O_RDONLY)
    return file, os.fstat(file).st_size


def write(file: int, data: memoryview) -> int:
    """Writes the start of `data` and returns the number of bytes."""
    return os.write(file, data)


def read(file: int, memory: memoryview) -> int:
    """Reads into the start of `memory` and returns the number of bytes; 0 at the end."""
    if hasattr(os, "readv"):
        return os.readv(file, [memory])
    data = os.read(file, len(memory))  # Windows
    memory[: len(data)] = data
    return len(data)


def sync(file: int) -> None:
    """Returns when a file is on the disk as it is now."""
    sync_descriptor(file)


def sync_folder(path: Path) -> None:
    """Returns when the names in a directory are on the disk."""
    sync_directory(path)


def close(file: int) -> None:
    os.close(file)
