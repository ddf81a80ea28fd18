"""Files that are written atomically, and strict JSON.

A process that is killed, a full disk or a power cut leaves either the old file or the new one, never a part of it.
"""

import json
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NoReturn

from stoker.errors import BadFile, MissingFile, did_you_mean


def write_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Calls `write` with a new file, then puts that file in the place of `path`, synced to disk.

    After an exception the old file is unchanged and no other file is left behind. A process that has the old file
    open or mapped keeps the old content. If `path` is a symbolic link, the file that it points to is replaced.
    """
    path = Path(os.path.realpath(path))
    temporary = path.with_name(f".{secrets.token_hex(8)}.part")
    try:
        with temporary.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Syncs the names in a directory: a new or renamed file survives a power cut only after this."""
    if os.name == "nt":  # Windows cannot open directories, and does not need this
        return
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def write_json(path: Path, data: Any) -> None:
    """Writes `data` as indented JSON, atomically; raises `ValueError` for NaN and infinities."""
    # A lone surrogate (in a file name that is not UTF-8) becomes its JSON escape.
    content = (_format_json(data) + "\n").encode("utf-8", "backslashreplace")
    write_atomically(path, lambda file: file.write(content))


def read_json(path: Path, *, expected: str = "JSON", missing_ok: bool = False) -> Any:
    """Reads a JSON file strictly; raises `MissingFile` or `BadFile`, whose text says what was `expected`.

    With `missing_ok`, returns `None` if there is no such file.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        if missing_ok:
            return None
        siblings = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
        raise MissingFile(f"there is no file {str(path)!r}{did_you_mean(path.name, siblings)}") from error
    except IsADirectoryError as error:
        raise BadFile(f"{str(path)!r} is a directory; expected the path of a file with {expected}") from error
    return parse_json(content, path, expected=expected)


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
        keys = [key for key, _ in pairs]
        duplicate = next(key for key in keys if keys.count(key) > 1)
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
