"""What a user says about checkpoints: how often, how many, which one to keep for good, and by when."""

import math
from collections.abc import Mapping

from stoker.checkpoint._best import Directions
from stoker.checkpoint._policy import Rule, composed, every, keep_best, keep_last
from stoker.config import Config
from stoker.errors import InvalidArgument
from stoker.record import Direction


class Checkpoint(Config):
    """How often a fit is saved, and which checkpoints are kept.

    >>> Checkpoint(every="10 minutes", keep_best="valid/accuracy").replace(keep_last=3).to_dict()["keep_last"]
    3

    `every` is `"epoch"`, a number of updates, or minutes of training (`"10 minutes"`). The best by `keep_best`, in the
    metric's own `direction` where none is given, is kept beside the last `keep_last`. With `background` a thread writes
    what was copied between two updates. `deadline` is a time in seconds since 1970 before which the fit has to be
    saved; where none is given, it is the end of the cluster's job, where that says one (SLURM_JOB_END_TIME).
    """

    every: int | str = "epoch"
    keep_last: int = 2
    keep_best: str | None = None
    direction: Direction | None = None
    background: bool = True
    deadline: float | None = None

    def __post_init__(self) -> None:
        self.policy(lambda name: self.direction)  # whose parts check what they are given
        if self.deadline is not None and not math.isfinite(self.deadline):
            raise InvalidArgument(f"deadline={self.deadline!r}: expected seconds since 1970, as time.time() gives them")

    def policy(self, direction: Directions) -> Rule:
        """The policy that this describes; `direction` says what is better of a number, where `self.direction` doesn't.

        >>> from stoker.checkpoint._place import Moment
        >>> Checkpoint(every=5).policy(lambda name: None)(Moment(epoch=1, batch=10, update=10), [])
        [Save(reason='every 5 updates')]
        """
        keepers = [keep_last(self.keep_last)]
        if self.keep_best is not None:
            keepers.append(keep_best(self.keep_best, self.direction or direction))
        return composed([every(self.every)], keepers)


def deadline(checkpoint: Checkpoint, environ: Mapping[str, str]) -> float | None:
    """The time, in seconds since 1970, before which a fit has to be saved; None where there is none.

    >>> deadline(Checkpoint(), {"SLURM_JOB_END_TIME": "1700000000"})
    1700000000.0
    """
    if checkpoint.deadline is not None:
        return checkpoint.deadline
    try:
        ends = float(environ.get("SLURM_JOB_END_TIME", ""))
    except ValueError:  # not said, or not in a way that is known
        return None
    return ends if 0 < ends < math.inf else None
