"""A file is there whole, or it is not there: written beside its place, synced, then renamed into it."""

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import IO

from stoker.errors import InvalidArgument


def write_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Lets `write` fill a new file, and puts that in the place of `path`.

    Whatever goes wrong on the way, the file that was there before is still there, and nothing else is.
    Who has the old file open (or mapped) keeps the old content.
    """
    path = Path(os.path.realpath(path))  # a link stays a link, and what it points to is written
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise InvalidArgument(f"can't write {str(path)!r}: a part of {str(path.parent)!r} is a file") from error
    if path.is_dir():
        raise InvalidArgument(f"can't write {str(path)!r}: there is a folder of that name")
    beside = path.with_name(f".{secrets.token_hex(8)}.part")
    try:
        with beside.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # Windows opens no folders, and syncs a rename by itself
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
