"""Small files of JSON that are the old ones or the new ones at any moment, also after a power cut."""

import json
import os
from pathlib import Path
from typing import Any

from stoker.errors import BadFile


def write_json(path: Path, data: object) -> None:
    """Puts a file there in one go, and on the disk before it returns."""
    draft = path.with_name(f".{path.name}.part")
    with draft.open("w", encoding="utf-8") as file:
        file.write(json.dumps(data, indent=2, allow_nan=False) + "\n")
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    sync_folder(path.parent)


def read_json(path: Path) -> Any:
    """What a file of JSON holds; `None` where there is no file."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise BadFile(f"{path}: expected JSON, but: {error}") from error


def sync_folder(path: Path) -> None:
    """Brings the names in a folder onto the disk; a new file is there after a power cut only once its name is."""
    if os.name != "posix":
        return
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
