"""Reading a run directory: a digest of everything that a training produced, and what a kill left behind."""

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor

import stoker
from stoker.checkpoint import Found, Saved, Store
from stoker.errors import StokerError
from stoker.record import Run

EVERY = 3  # updates between two checkpoints, in all programs
CLOCKS = ("seconds", "epoch_seconds", "events")  # in the state's "progress": they differ between any two runs


def checkpoints_of(folder: Path) -> Store:
    """The checkpoints of a run."""
    return Store(folder / "checkpoints", run=Run.open(folder).id)


def digest(fitted: stoker.Fitted, folder: Path) -> str:
    """A hash of the returned model, the history, the best value, and the state of the last checkpoint."""
    found = checkpoints_of(folder).newest()
    numbers = {name: fitted.record.all(name) for name in fitted.record.columns}
    everything = [
        *(fitted.model.state_dict(), numbers, fitted.best, fitted.stopped, fitted.epochs, _without_clocks(found))
    ]
    hashed = hashlib.sha256()
    for piece in _bytes_of(everything):
        hashed.update(piece)
    return hashed.hexdigest()


def _without_clocks(found: Found) -> dict[str, Any]:
    progress = {name: value for name, value in found.state["progress"].items() if name not in CLOCKS}
    return {**found.state, "progress": progress}


def _bytes_of(value: Any) -> Iterator[bytes]:
    """Yields a nested structure as bytes, with the kind and size of each part."""
    if isinstance(value, Tensor):
        full = value.full_tensor() if isinstance(value, DTensor) else value
        yield f"{full.dtype} {list(full.shape)} ".encode()
        yield full.detach().contiguous().numpy().tobytes()
    elif isinstance(value, Mapping):
        yield f"mapping of {len(value)} ".encode()
        for key, item in value.items():
            yield repr(key).encode()
            yield from _bytes_of(item)
    elif isinstance(value, list | tuple):
        yield f"list of {len(value)} ".encode()
        for item in value:
            yield from _bytes_of(item)
    else:
        yield repr(value).encode()


# --- the number of updates, written beside the run


class UpdateCounter(stoker.Callback):
    """Writes the number of updates to a file beside the run, where a kill can't undo it."""

    transient = True

    def __init__(self, folder: Path) -> None:
        self._file = os.open(counter_path(folder), os.O_WRONLY | os.O_CREAT)

    def on_fit_begin(self, ctx: stoker.callbacks.Context) -> None:
        self._write(ctx.update)

    def on_update(self, ctx: stoker.callbacks.Context) -> None:
        self._write(ctx.update)

    def _write(self, update: int) -> None:
        if stoker.world().is_first:
            os.pwrite(self._file, update.to_bytes(8, "big"), 0)


def counter_path(folder: Path) -> Path:
    return folder.with_suffix(".updates")


def updates_done(folder: Path) -> int | None:
    """The updates of the training so far, as its newest process counted them; `None` before its fit has begun."""
    path = counter_path(folder)
    written = path.read_bytes() if path.exists() else b""
    return int.from_bytes(written, "big") if written else None


# --- after a kill

_TEMPORARY = (".part-", ".gone-")  # prefixes of a checkpoint that is being written or deleted
_MOST_CHECKPOINTS = 3  # at the end: the last two, or the last and the best; and the outcome
_MOST_LOST = 2 * EVERY  # updates: of the two newest checkpoints, one may still have been in flight


@dataclass
class Findings:
    """What was found in a run directory."""

    resumes: bool = False  # there is a checkpoint to resume from
    lost: int = 0  # updates since the newest complete checkpoint
    in_a_save: bool = False  # a checkpoint was being written or deleted
    faults: list[str] = field(default_factory=list)


def inspect_run(folder: Path) -> Findings:
    """Reads the run and all of its checkpoints; a kill at any moment leaves no fault."""
    if not (folder / "run.json").exists():  # killed while the run was created
        return Findings()
    try:
        store = checkpoints_of(folder)
        names = [each.name for each in store.folder.iterdir()] if store.folder.exists() else []
        saved = store.saved()
        faults = _damaged(store, saved) + _unknown(names, saved)
    except StokerError as error:
        return Findings(faults=[f"the run can't be read: {error}"])
    newest = max((each.update for each in saved if each.resumable), default=0)
    lost = max(0, (updates_done(folder) or 0) - newest)
    if lost > _MOST_LOST:
        faults.append(f"{lost} updates are lost, with a checkpoint every {EVERY}")
    return Findings(bool(saved), lost, any(name.startswith(_TEMPORARY) for name in names), faults)


def leftovers(folder: Path) -> list[str]:
    """Files that a finished run should have removed: temporary ones, and checkpoints above the limit."""
    known = [each.name for each in checkpoints_of(folder).saved()]
    there = {each.name for each in (folder / "checkpoints").iterdir()}
    return sorted(there - {*known[-_MOST_CHECKPOINTS:]})


def _damaged(store: Store, saved: list[Saved]) -> list[str]:
    """Every checkpoint is complete, not only the newest."""
    faults: list[str] = []
    for each in saved:
        try:
            store.read(each)
        except StokerError as error:
            faults.append(str(error))
    return faults


def _unknown(names: list[str], saved: list[Saved]) -> list[str]:
    known = {each.name for each in saved}
    return [f"{name} is not a checkpoint" for name in names if name not in known and not name.startswith(_TEMPORARY)]
