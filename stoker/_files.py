"""Files: opened without trusting what is at the path, written atomically, and strict JSON.

Opening never waits for a pipe and never reads a device. A process that is killed, a full disk or a power cut leaves
either the old file or the new one, never a part of it.
"""

import errno
import functools
import io
import json
import operator
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO, NoReturn

from stoker.errors import BadFile, MissingFile, StokerError, did_you_mean

MAX_JSON = 1 << 28  # bytes of a JSON file that is read as a whole
_REPLACE_ATTEMPTS = 50  # 10 ms apart

# Errors of this process, not of the file: too many open files, no memory.
_PROCESS_ERRORS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR}


# --- Opening


def open_regular_file(path: Path, *, inside: Path | None = None, follow: bool = True) -> BinaryIO:
    """Opens a file for reading; raises `OSError` for a pipe, device or directory, or (with `inside`) a file elsewhere.

    Others can change the directory meanwhile, so the check and the opening must concern the same file: after symbolic
    links are resolved once, none is followed any more. `inside` is a resolved path. With `follow=False`, a symbolic
    link is an error.
    """
    target = Path(os.path.realpath(path)) if follow else path
    if inside is not None and not target.is_relative_to(inside):
        raise OSError("the file is outside the directory")
    return open(target, "rb", opener=open_descriptor)


def open_to_append(path: Path) -> io.FileIO:
    """Opens or creates a file to read it and append to it; a symbolic link, pipe, device or directory is an error.

    A run writes only to files in its own directory, and a link could lead anywhere.
    """
    with explain_errors(path):
        return io.FileIO(path, "a+", opener=open_descriptor)


def open_descriptor(path: str | Path, flags: int) -> int:
    """Opens a regular file as `os.open` does; a symbolic link, pipe, device or directory raises `OSError`."""
    if not hasattr(os, "O_NOFOLLOW") and os.path.islink(path):  # Windows
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    # O_NONBLOCK: opening a pipe would wait for its writer. O_BINARY: Windows would change line ends.
    extra = (getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))
    descriptor = os.open(path, functools.reduce(operator.or_, extra, flags), 0o666)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "it is a directory")
    raise OSError(errno.EINVAL, "it is not a regular file")


@contextmanager
def explain_errors(path: object, *, expected: str = "a file") -> Iterator[None]:
    """Raises an `OSError` of the disk as `BadFile`, or `MissingFile`, whose text says what was `expected`."""
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        code = getattr(error, "errno", None)
        if isinstance(error, StokerError) or code in _PROCESS_ERRORS:
            raise
        if code == errno.ENOENT:
            raise MissingFile(f"{path} does not exist") from error
        if code == errno.EISDIR:
            raise BadFile(f"{path} is a directory; expected the path of {expected}") from error
        reason = "it is a symbolic link" if code == errno.ELOOP else getattr(error, "strerror", None) or error
        raise BadFile(f"{path} cannot be read: {reason}") from error


def read_file(path: Path, *, expected: str = "a file", limit: int = MAX_JSON) -> bytes:
    """Reads a regular file of at most `limit` bytes; raises `BadFile` or `MissingFile`."""
    with explain_errors(path, expected=expected), open_regular_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise BadFile(f"{path} has {size:,} bytes; at most {limit:,} are read")
        return file.read(limit)


# --- Writing


def write_atomically(path: Path, write: Callable[[IO[bytes]], object], *, follow: bool = True) -> None:
    """Calls `write` with a new file, then puts that file in the place of `path`, synced to disk.

    After an exception the old file is unchanged and no other file is left behind. A process that has the old file
    open or mapped keeps the old content. If `path` is a symbolic link, the file that it points to is replaced; with
    `follow=False`, the link is.
    """
    path = Path(os.path.realpath(path)) if follow else path
    temporary = path.with_name(f".{os.urandom(8).hex()}.part")
    try:
        with temporary.open("xb") as file:
            write(file)
            file.flush()
            sync_descriptor(file.fileno())
        _replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def _replace(temporary: Path, path: Path) -> None:
    """Renames a file over another one; on Windows that fails while a viewer reads it, so it is tried again."""
    for _ in range(_REPLACE_ATTEMPTS):
        try:
            return os.replace(temporary, path)
        except PermissionError:
            if hasattr(os, "O_DIRECTORY"):
                raise
            time.sleep(0.01)
    return os.replace(temporary, path)


def sync_descriptor(descriptor: int) -> None:
    """Syncs an open file; on macOS out of the disk's own cache too, in which `fsync` leaves it there."""
    try:
        import fcntl

        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    except (ImportError, AttributeError, OSError):  # Windows, Linux, and file systems that do not support it
        os.fsync(descriptor)


def sync_directory(path: Path) -> None:
    """Syncs the names in a directory: a new or renamed file survives a power cut only after this."""
    if not hasattr(os, "O_DIRECTORY"):  # Windows cannot open directories, and does not need this
        return
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sync_descriptor(directory)
    finally:
        os.close(directory)


# --- JSON


def write_json(path: Path, data: Any, *, follow: bool = True) -> None:
    """Writes `data` as indented JSON, atomically; raises `ValueError` for NaN and infinities.

    With `follow=False`, a symbolic link at `path` is replaced by the file.
    """
    # A lone surrogate (in a file name that is not UTF-8) becomes its JSON escape.
    content = (_format_json(data) + "\n").encode("utf-8", "backslashreplace")
    write_atomically(path, lambda file: file.write(content), follow=follow)


def read_json(path: Path, *, expected: str = "JSON", missing_ok: bool = False) -> Any:
    """Reads a JSON file strictly; raises `MissingFile` or `BadFile`, whose text says what was `expected`.

    With `missing_ok`, returns `None` if there is no such file.
    """
    try:
        content = read_file(path, expected=f"a file with {expected}")
    except MissingFile as error:
        if missing_ok:
            return None
        raise missing_file(path) from error
    return parse_json(content, path, expected=expected)


def missing_file(path: Path) -> MissingFile:
    """The error for a path without a file, with a suggestion if there is one of a similar name."""
    siblings = [sibling.name for sibling in path.parent.iterdir()] if path.parent.is_dir() else []
    longer = [str(path.with_name(name)) for name in siblings if name.startswith(f"{path.name}.")]
    hint = f"; did you mean {longer[0]!r}?" if longer else did_you_mean(path.name, siblings)
    return MissingFile(f"there is no file {str(path)!r}{hint}")


def parse_json(content: bytes | bytearray, where: object, *, expected: str = "JSON") -> Any:
    """Parses JSON strictly: duplicate keys, NaN and infinities raise `BadFile`, which names `where`."""
    try:
        return json.loads(
            content.decode("utf-8-sig"), object_pairs_hook=reject_duplicates, parse_constant=_reject_constant
        )
    except (ValueError, RecursionError) as error:
        raise BadFile(f"{where}: expected {expected}, but: {error}") from error


def reject_duplicates(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """A dict of the pairs; raises `ValueError` if a key appears twice (an `object_pairs_hook` of json and msgpack)."""
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        seen: set[Any] = set()
        duplicate = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise ValueError(f"the key {str(duplicate)[:80]!r} appears twice")
    return mapping


def _reject_constant(word: str) -> NoReturn:
    raise ValueError(f'{word} is not valid JSON; write the string "{word}"')


def _format_json(data: Any, margin: str = "") -> str:
    """JSON with one line per entry, and short lists of plain values on one line."""
    flat = json.dumps(data, ensure_ascii=False, allow_nan=False)
    if not data or not isinstance(data, dict | list | tuple):
        return flat
    if not isinstance(data, dict) and len(margin) + len(flat) <= 100 and "{" not in flat:
        return flat
    inner = margin + "  "
    if isinstance(data, dict):
        lines = [
            f"{json.dumps(str(key), ensure_ascii=False)}: {_format_json(item, inner)}" for key, item in data.items()
        ]
        return "{\n" + ",\n".join(inner + line for line in lines) + f"\n{margin}}}"
    return "[\n" + ",\n".join(inner + _format_json(value, inner) for value in data) + f"\n{margin}]"
