"""What a fit would find in its run's directory, and how it would be saved there, in words."""

from pathlib import Path

from stoker.checkpoint import Checkpoint
from stoker.engine import Fit, upgrade_state
from stoker.learner._identity import changes
from stoker.learner._resume import earlier, is_over, store_of
from stoker.learner._wish import Wish

_LOST = "has no whole checkpoint, and begins anew"


def outlook(fit: Fit, wish: Wish) -> list[str]:
    """Whether the run begins, goes on or is over, and how it is saved; nothing is written."""
    assert wish.run is not None
    return [f"{Path(wish.run)}: {_standing(fit, wish)}", f"saved {_saving(wish.checkpoints)}"]


def _standing(fit: Fit, wish: Wish) -> str:
    run = earlier(wish)
    if run is None:
        taken = (Path(str(wish.run)) / "run.json").exists() and not wish.resumes
        return "holds a run already, and fit refuses that; resume=True goes on with it" if taken else "is new"
    store = store_of(run)
    found = store.newest()
    if found.saved is None:
        return _LOST
    lines = changes(found.state["identity"]["fixed"], fit.state.identity["fixed"])
    if lines and wish.resumes != "force":
        return f"is of another training ({'; '.join(lines)}), and fit refuses that"
    if is_over(fit, found):
        return f"is over ({found.saved.ended}): fit gives back what came out, and trains nothing"
    place = found.saved if found.saved.resumable else store.newest(lambda saved: saved.resumable).saved
    if place is None:
        return _LOST
    return f"goes on from checkpoint {place.name}: epoch {place.epoch}, batch {place.batch}, update {place.update}"


def _saving(checkpoint: Checkpoint | None) -> str:
    if checkpoint is None:
        return "never (checkpoint=False): where it stops, it can't be gone on with"
    every = f"{checkpoint.every} updates" if isinstance(checkpoint.every, int) else checkpoint.every
    kept = f"the last {checkpoint.keep_last}" if checkpoint.keep_last > 1 else "the last one"
    best = "" if checkpoint.keep_best is None else f" and the best by {checkpoint.keep_best}"
    thread = ", by a thread" if checkpoint.background else ""
    return f"every {every} and when it ends{thread}; {kept}{best} stay"
