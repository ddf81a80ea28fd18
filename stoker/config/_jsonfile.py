"""Files of JSON: written whole and readable, read by the letter."""

import json
import os
import secrets
from pathlib import Path
from typing import Any, NoReturn

from stoker.errors import BadFile, MissingFile, did_you_mean


def write_json(path: Path, data: Any) -> Path:
    """Writes the data, all of it or nothing, and returns the path."""
    # A lone surrogate, as in the name of a file that isn't UTF-8, becomes its escape in JSON.
    _write_whole(path, (_pretty(data) + "\n").encode("utf-8", "backslashreplace"))
    return path


def _pretty(data: Any, margin: str = "") -> str:
    """JSON with a line for each field, and lists of plain values on one line where they fit."""
    flat = json.dumps(data, ensure_ascii=False, allow_nan=False)
    if not data or not isinstance(data, dict | list):
        return flat
    if isinstance(data, list) and len(margin) + len(flat) <= 100 and "{" not in flat:
        return flat
    inner = margin + "  "
    if isinstance(data, dict):
        lines = [f"{json.dumps(key, ensure_ascii=False)}: {_pretty(value, inner)}" for key, value in data.items()]
        return "{\n" + ",\n".join(inner + line for line in lines) + f"\n{margin}}}"
    return "[\n" + ",\n".join(inner + _pretty(value, inner) for value in data) + f"\n{margin}]"


def _write_whole(path: Path, data: bytes) -> None:
    """Puts a file there in one go: whoever reads the path sees the old file or the new one, also after a crash."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with draft.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    if os.name == "posix":  # the new name is on disk only once its directory is
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def read_json(path: Path) -> Any:
    """What a file of JSON holds, by the letter of JSON: no duplicate keys and no NaN."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise ValueError(f"{json.dumps(twice)} stands there twice")
        return found

    def refuse(word: str) -> NoReturn:
        raise ValueError(f'{word} is no number in JSON; write "{word}"')

    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        there = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
        raise MissingFile(f"there is no file {str(path)!r}{did_you_mean(path.name, there)}") from error
    except IsADirectoryError as error:
        raise BadFile(f"{str(path)!r} is a folder; expected a config in it, by name") from error
    try:
        return json.loads(content.decode("utf-8-sig"), object_pairs_hook=once, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise BadFile(f"{path}: expected a config in JSON, as `save` writes it, but: {error}") from error
