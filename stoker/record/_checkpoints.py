"""The checkpoints of a run, as their manifests say; only that, for what reads them whole needs torch."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from stoker.errors import BadFile
from stoker.record._plain import open_plain

_LARGEST = 1 << 20  # bytes of a manifest


class Kept(NamedTuple):
    """A checkpoint in a few words; `values` are the numbers that the training had when it was taken."""

    name: str
    update: int
    epoch: int
    reason: str
    bytes: int
    time: float  # in seconds since 1970
    values: Mapping[str, float]


def checkpoints(path: Path, facts: Mapping[str, Any]) -> list[Kept]:
    """The checkpoints in a run's directory, oldest first; what is not whole or of another run is left out.

    >>> checkpoints(Path("runs/nowhere"), {})
    []

    `facts` are what the run's `run.json` says. `BadFile` where the folder can't be read.
    """
    folder = path / "checkpoints"
    try:
        with os.scandir(folder) as found:
            folders = [each.path for each in found if each.is_dir(follow_symlinks=False) and each.name[0] != "."]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise BadFile(f"{folder} can't be read: {error.strerror or error}") from error
    manifests = [_manifest(Path(each)) for each in folders]
    mine = [_kept(each) for each in manifests if each.get("run") == facts.get("id", "")]
    return sorted((each for each in mine if each is not None), key=lambda kept: (kept.update, kept.time))


def _manifest(folder: Path) -> dict[str, Any]:
    """What a manifest says; nothing where it is no plain file of a fair size."""
    try:
        with open_plain(folder / "manifest.json") as file:
            text = file.read(_LARGEST + 1)
        found = json.loads(text) if len(text) <= _LARGEST else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _kept(manifest: Mapping[str, Any]) -> Kept | None:
    found: dict[str, Any] = {name: manifest.get(name) for name in Kept._fields}
    kinds: dict[str, type] = {"name": str, "update": int, "epoch": int, "reason": str, "bytes": int, "time": float}
    if not all(isinstance(found[name], kind) for name, kind in kinds.items()):
        return None
    try:
        found["values"] = {str(name): float(value) for name, value in manifest["values"].items()}  # "nan" is a text
    except (KeyError, AttributeError, TypeError, ValueError):
        return None
    return Kept(**found)
