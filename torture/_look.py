"""What a kill has left of a run: how far back it goes on from, and what must not be there."""

from dataclasses import dataclass, field
from pathlib import Path

from stoker.checkpoint import Saved, Store
from stoker.errors import StokerError
from torture._digest import checkpoints_of
from torture._programs import EVERY, counted

_LEFT = (".part-", ".gone-")  # how a checkpoint is called while it is written or deleted
_MOST = 3  # checkpoints in the end: the last two, or the last and the best; and how it ended
# Updates between the last one and the newest whole checkpoint: of the two before it, one may be under way.
_FURTHEST = 2 * EVERY


@dataclass
class Left:
    """What was found in a run's folder."""

    resumes: bool = False  # there is a checkpoint to go on from
    lost: int = 0  # updates that have to be done again
    in_a_save: bool = False  # a checkpoint was being written or deleted
    faults: list[str] = field(default_factory=list)


def look(folder: Path) -> Left:
    """Reads all that there is; a killed process may have left anything but a fault."""
    if not (folder / "run.json").exists():  # it was killed while the run was created
        return Left()
    try:
        store = checkpoints_of(folder)
        names = [each.name for each in store.folder.iterdir()] if store.folder.exists() else []
        saved = store.saved()
        faults = _damaged(store, saved) + _strange(names, saved)
    except StokerError as error:
        return Left(faults=[f"the run can't be read: {error}"])
    whole = max((each.update for each in saved if each.resumable), default=0)
    lost = max(0, (counted(folder) or 0) - whole)
    if lost > _FURTHEST:
        faults.append(f"{lost} updates are lost, with a checkpoint every {EVERY}")
    return Left(bool(saved), lost, any(name.startswith(_LEFT) for name in names), faults)


def litter(folder: Path) -> list[str]:
    """What a run that has ended should not have left: a kill may leave more checkpoints than are kept, an end none."""
    known = [each.name for each in checkpoints_of(folder).saved()]
    there = {each.name for each in (folder / "checkpoints").iterdir()}
    return sorted(there - {*known[-_MOST:]})


def _damaged(store: Store, saved: list[Saved]) -> list[str]:
    """Each checkpoint is whole, and not only the newest: none is ever seen half written."""
    faults: list[str] = []
    for each in saved:
        try:
            store.read(each)
        except StokerError as error:
            faults.append(str(error))
    return faults


def _strange(names: list[str], saved: list[Saved]) -> list[str]:
    known = {each.name for each in saved}
    return [f"{name} is no checkpoint" for name in names if name not in known and not name.startswith(_LEFT)]
