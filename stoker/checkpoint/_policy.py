"""When to save and what to delete: pure functions of where the training stands and which checkpoints there are."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

from stoker._text import format_number as number
from stoker.checkpoint._best import Directions, Measure
from stoker.checkpoint._place import Moment, Saved
from stoker.errors import InvalidArgument
from stoker.record import Direction


@dataclass(frozen=True)
class Save:
    """Save here, for a reason."""

    reason: str


@dataclass(frozen=True)
class Delete:
    """Delete the checkpoint of this name."""

    name: str


Action: TypeAlias = Save | Delete
Policy: TypeAlias = Callable[[Moment, Sequence[Saved]], list[Action]]


def _nothing(here: Moment, saved: Sequence[Saved]) -> list[Action]:
    """No action: the half that a policy doesn't have."""
    return []


@dataclass(frozen=True)
class Rule:
    """A policy in two halves: who asks after every batch whether to save need not pay for what to delete.

    `pace` says when `saves` can want anything: at the end of an epoch, after a validation, and at multiples of so many
    updates (0: at those two only; None: after any batch).
    """

    saves: Policy = _nothing
    deletes: Policy = _nothing
    pace: int | None = None

    def __call__(self, here: Moment, saved: Sequence[Saved]) -> list[Action]:
        """Both halves' actions."""
        return self.saves(here, saved) + self.deletes(here, saved)


def every(interval: str | int | timedelta) -> Rule:
    """Saves at the end of every `"epoch"`, every so many updates, or after so much training (`"10 minutes"`).

    >>> every(100)(Moment(epoch=1, batch=300, update=300), [])
    [Save(reason='every 100 updates')]
    """
    if interval == "epoch":
        return Rule(saves=_save_epochs, pace=0)
    if type(interval) is int and interval >= 1:
        return Rule(saves=_save_updates(interval), pace=interval)
    if isinstance(interval, timedelta):
        minutes = interval / timedelta(minutes=1)
    else:
        found = re.fullmatch(r"(\d+(?:\.\d+)?) minutes?", interval) if isinstance(interval, str) else None
        minutes = float(found[1]) if found else 0.0
    if not 0 < minutes < math.inf:
        raise InvalidArgument(
            f'every={interval!r}: expected "epoch", a number of updates of at least 1, or a time such as "10 minutes"'
        )
    return Rule(saves=_save_minutes(minutes))


def keep_last(count: int) -> Rule:
    """Deletes all but the last `count` that a run can go on from; an outcome that it can't stays while it is newest.

    >>> earlier = [Saved(name=f"{n:08}", epoch=n, batch=9, update=n, run="", time=0.0, bytes=1) for n in (1, 2, 3)]
    >>> keep_last(2)(Moment(epoch=3, batch=9, update=3), earlier)
    [Delete(name='00000001')]
    """
    if type(count) is not int or count < 1:
        raise InvalidArgument(f"keep_last={count!r}: expected a number of checkpoints of at least 1")

    def deletes(here: Moment, saved: Sequence[Saved]) -> list[Action]:
        newest = {each.update: each.name for each in saved if each.resumable}  # of each update the last
        kept = set(list(newest.values())[-count:])
        return [Delete(each.name) for each in saved[:-1] if each.name not in kept]

    return Rule(deletes=deletes)


def keep_best(name: str, direction: Direction | Directions) -> Rule:
    """Saves where a number is better than with any checkpoint, and deletes all but the best; of equals the first stays.

    >>> best = keep_best("valid/loss", "min")
    >>> best(Moment(epoch=1, batch=9, update=9, values={"valid/loss": 0.25}), [])
    [Save(reason='best valid/loss so far: 0.2500')]

    NaN is never best. The direction may be a function of the name; it is asked once the number is there.
    """
    measure = Measure(name, direction)

    def saves(here: Moment, saved: Sequence[Saved]) -> list[Action]:
        if not here.values:  # not validated here
            return []
        measure.check(here.values, saved)
        if not measure.is_better(here.values, measure.best(saved)):
            return []
        return [Save(f"best {name} so far: {number(here.values[name])}")]

    def deletes(here: Moment, saved: Sequence[Saved]) -> list[Action]:
        best = measure.best(saved)
        return [Delete(each.name) for each in saved if each is not best]

    return Rule(saves, deletes, pace=0)


def composed(saving: Sequence[Policy], keeping: Sequence[Policy]) -> Rule:
    """Saves where any policy wants to, with all their reasons, and deletes what all of `keeping` agree on.

    >>> policy = composed([every("epoch")], [keep_last(2), keep_best("valid/loss", "min")])
    >>> policy(Moment(epoch=1, batch=9, update=9, epoch_ended=True, values={"valid/loss": 0.25}), [])
    [Save(reason='every epoch; best valid/loss so far: 0.2500')]

    The newest checkpoint and the newest that a run can go on from are never deleted, whatever the policies say.
    """
    rules = [as_rule(each) for each in (*saving, *keeping)]
    savers = [each for each in rules if each.saves is not _nothing]
    keepers = [each.deletes for each in rules[len(saving) :]]

    def saves(here: Moment, saved: Sequence[Saved]) -> list[Action]:
        wanted = [action for saver in savers for action in saver.saves(here, saved)]
        if not wanted:
            return []
        reasons = dict.fromkeys(action.reason for action in wanted if isinstance(action, Save))
        return [Save("; ".join(reasons))]

    def deletes(here: Moment, saved: Sequence[Saved]) -> list[Action]:
        doomed = [{each.name for each in keeper(here, saved) if isinstance(each, Delete)} for keeper in keepers]
        agreed = set.intersection(*doomed) if doomed else set()
        agreed -= {each.name for each in (*saved[-1:], *[each for each in saved if each.resumable][-1:])}
        return [Delete(each.name) for each in saved if each.name in agreed]

    paces = [each.pace for each in savers if each.pace is not None]
    return Rule(saves, deletes, pace=math.gcd(*paces) if len(paces) == len(savers) else None)


def as_rule(policy: Policy) -> Rule:
    """Any policy in its two halves; one that is a plain function is asked as a whole for each."""
    if isinstance(policy, Rule):
        return policy
    return Rule(
        lambda here, saved: [each for each in policy(here, saved) if isinstance(each, Save)],
        lambda here, saved: [each for each in policy(here, saved) if isinstance(each, Delete)],
    )


def _save_epochs(here: Moment, saved: Sequence[Saved]) -> list[Action]:
    return [Save("every epoch")] if here.epoch_ended else []


def _save_updates(count: int) -> Policy:
    reason = "every update" if count == 1 else f"every {count} updates"

    def saves(here: Moment, saved: Sequence[Saved]) -> list[Action]:
        if here.update % count or not here.update or any(_same_update(here, each) for each in saved):
            return []
        return [Save(reason)]

    return saves


def _same_update(here: Moment, saved: Saved) -> bool:
    """The other batches of an accumulation window stand at the same update."""
    return saved.update == here.update and saved.resumable


def _save_minutes(minutes: float) -> Policy:
    reason = "every minute" if minutes == 1 else f"every {minutes:g} minutes"

    def saves(here: Moment, saved: Sequence[Saved]) -> list[Action]:
        last = next((each.minutes for each in reversed(saved) if each.resumable), 0.0)
        return [Save(reason)] if here.minutes - last >= minutes else []

    return saves
