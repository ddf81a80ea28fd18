"""When to save and which checkpoints to keep: the user's settings, and the decisions that follow from them."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, get_args

from stoker._text import format_number
from stoker.checkpoint._frozen import Frozen
from stoker.checkpoint._manifest import Moment, Saved
from stoker.config import Config
from stoker.errors import InvalidArgument, NoSuchMetric, did_you_mean
from stoker.record import Direction

Directions: TypeAlias = Callable[[str], Direction | None]  # whether a low or a high value of a metric is better


class Checkpoint(Config):
    """How often a fit is saved, and which checkpoints are kept.

    >>> Checkpoint(every="10 minutes", keep_best="valid/accuracy").replace(keep_last=3).to_dict()["keep_last"]
    3

    `every` is `"epoch"`, a number of updates, or minutes of training (`"10 minutes"`). The checkpoint with the best
    value of the metric `keep_best` (True: the one that `fit` monitors) is kept in addition to the last `keep_last`;
    `direction` is the metric's own unless it is given. With `background`, a thread writes a copy that is taken between
    two updates. `deadline` is a time in seconds since 1970 before which the fit has to be saved; the default is the end
    of the cluster's job, if known (SLURM_JOB_END_TIME).

    `frozen` says what happens to parameters that do not require gradients (a pretrained model under LoRA adapters):
    with "fingerprint" a checkpoint leaves them out and identifies them by a fingerprint, so that the run can only be
    resumed and loaded with a model that has the same frozen weights; with "save" they are in every checkpoint. "auto"
    leaves them out if they have 64 MiB or more together. One that changes nevertheless, or is unfrozen, is saved from
    then on.
    """

    every: int | str = "epoch"
    keep_last: int = 2
    keep_best: str | bool | None = None
    direction: Direction | None = None
    background: bool = True
    deadline: float | None = None
    frozen: Frozen = "auto"

    def __post_init__(self) -> None:
        self.policy()  # checks the arguments
        if self.deadline is not None and not math.isfinite(self.deadline):
            raise InvalidArgument(f"deadline={self.deadline!r}: expected seconds since 1970, as time.time() returns")
        if self.frozen not in get_args(Frozen):
            raise InvalidArgument(f'frozen={self.frozen!r}: expected "auto", "fingerprint" or "save"')

    def policy(self, direction: Directions = lambda name: None, monitor: str | None = None) -> "Policy":
        """The policy of these settings; `direction` is called for metrics if `self.direction` is not set.

        `monitor` is the metric that `keep_best=True` means.

        >>> from stoker.checkpoint import Moment
        >>> Checkpoint(every=5).policy().save_reason(Moment(epoch=1, batch=10, update=10), [])
        'every 5 updates'
        """
        known, keep_best = self.direction, self.keep_best
        name = keep_best if isinstance(keep_best, str) else monitor if keep_best else None
        return Policy(self.every, self.keep_last, name, direction if known is None else lambda name: known)

    def find_deadline(self, environ: Mapping[str, str]) -> float | None:
        """The deadline in seconds since 1970: the given one, or the end of the SLURM job.

        >>> Checkpoint().find_deadline({"SLURM_JOB_END_TIME": "1700000000"})
        1700000000.0
        """
        if self.deadline is not None:
            return self.deadline
        try:
            end = float(environ.get("SLURM_JOB_END_TIME", ""))
        except ValueError:
            return None
        return end if 0 < end < math.inf else None


class Policy:
    """Decides when to save and what to delete, as a pure function of the moment and the existing checkpoints.

    The newest checkpoint, and the newest that the run can resume from, are never deleted.
    """

    def __init__(self, every: int | str, keep_last: int, keep_best: str | None, direction: Directions) -> None:
        minutes = re.fullmatch(r"(\d+(?:\.\d+)?) minutes?", every) if isinstance(every, str) else None
        self._minutes = float(minutes[1]) if minutes else None
        self._updates = every if type(every) is int else None
        if not (every == "epoch" or (self._updates or 0) >= 1 or 0 < (self._minutes or 0) < math.inf):
            raise InvalidArgument(
                f'every={every!r}: expected "epoch", a number of updates of at least 1, or a time such as "10 minutes"'
            )
        if keep_last < 1:
            raise InvalidArgument(f"keep_last={keep_last!r}: expected a number of checkpoints of at least 1")
        if keep_best == "":
            raise InvalidArgument(f'keep_best={keep_best!r}: expected the name of a metric, such as "valid/loss"')
        self._keep_last, self._keep_best, self._direction = keep_last, keep_best, direction

    @property
    def uses_clock(self) -> bool:
        """Whether it depends on the time, so that ranks may disagree about when to save."""
        return self._minutes is not None

    def may_save_at(self, update: int) -> bool:
        """Whether `save_reason` can return a reason here if no epoch ended and nothing was validated."""
        return self._minutes is not None or (self._updates is not None and update % self._updates == 0)

    def count_updates_until_due(self, update: int) -> float:
        """After how many more updates saving is due; infinite if updates do not decide."""
        return math.inf if self._updates is None else self._updates - update % self._updates

    def save_reason(self, here: Moment, saved: Sequence[Saved]) -> str | None:
        """Why to save now, or `None`."""
        reasons = [reason for reason in (self._interval_reason(here, saved), self._best_reason(here, saved)) if reason]
        return "; ".join(reasons) or None

    def _interval_reason(self, here: Moment, saved: Sequence[Saved]) -> str | None:
        resumable = [each for each in saved if each.resumable]
        if self._updates is not None:
            # All batches of an accumulation window are at the same update: only the first one is a reason.
            is_new = here.update > 0 and all(each.update != here.update for each in resumable)
            is_due = is_new and here.update % self._updates == 0
            reason = "every update" if self._updates == 1 else f"every {self._updates} updates"
        elif self._minutes is not None:
            is_due = here.minutes - (resumable[-1].minutes if resumable else 0.0) >= self._minutes
            reason = "every minute" if self._minutes == 1 else f"every {self._minutes:g} minutes"
        else:
            is_due, reason = here.epoch_ended, "every epoch"
        return reason if is_due else None

    def _best_reason(self, here: Moment, saved: Sequence[Saved]) -> str | None:
        name = self._keep_best
        if name is None or not here.values:
            return None
        # At a validation within an epoch, those of the training are not known yet.
        if here.epoch_ended and name not in here.values and not any(name in each.values for each in saved):
            raise NoSuchMetric(
                f"keep_best={name!r}: there is no such metric{did_you_mean(name, here.values)} "
                f"(there are: {', '.join(here.values)})"
            )
        value, best = here.values.get(name, math.nan), self._best(saved)
        if math.isnan(value) or not self._is_better(name, value, None if best is None else best.values[name]):
            return None
        return f"best {name} so far: {format_number(value)}"

    def names_to_delete(self, saved: Sequence[Saved]) -> list[str]:
        """The checkpoints that are neither among the last ones nor the best."""
        newest = {each.update: each.name for each in saved if each.resumable}  # the last one of each update
        kept = {*list(newest.values())[-self._keep_last :], *(each.name for each in saved[-1:])}
        if (best := self._best(saved)) is not None:
            kept.add(best.name)
        return [each.name for each in saved if each.name not in kept]

    def _best(self, saved: Sequence[Saved]) -> Saved | None:
        """The checkpoint with the best value: the first of equal ones, and never NaN."""
        name, best = self._keep_best, None
        if name is None:
            return None
        for each in saved:
            value = each.values.get(name, math.nan)
            if not math.isnan(value) and self._is_better(name, value, None if best is None else best.values[name]):
                best = each
        return best

    def _is_better(self, name: str, value: float, best: float | None) -> bool:
        direction = self._direction(name)
        if direction is None:
            raise InvalidArgument(
                f"it is not known whether a low or a high {name!r} is better; "
                f'pass Checkpoint(keep_best={name!r}, direction="min") or direction="max"'
            )
        if best is None:
            return True
        return value < best if direction == "min" else value > best
