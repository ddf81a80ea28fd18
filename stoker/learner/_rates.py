"""The learning rates of a fit: schedules that get their length from it, checks, and what the plan says about them."""

import bisect
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from torch import nn

from stoker._select import assign, describe, named_parameters
from stoker.errors import InvalidArgument
from stoker.schedule import Schedule, as_schedule

_MAX_POINTS = 2000  # values that are looked at to describe a schedule
_MAX_LINES = 4


class Planned(NamedTuple):
    """How many updates a fit will apply, as far as that is known."""

    updates: int | None  # the smaller of its limits
    per_epoch: int | None

    @classmethod
    def of(cls, *, epochs: int | None, updates: int | None, batches: int | None, accumulate: int) -> "Planned":
        """The plan of a fit with these limits, whose epochs have so many batches."""
        per_epoch = None if batches is None else math.ceil(batches / accumulate)
        limits = [] if updates is None else [updates]
        if epochs is not None and per_epoch is not None:
            limits.append(epochs * per_epoch)
        return cls(min(limits, default=None), per_epoch)


def check_rates(lr: Any) -> None:
    """Raises for what is not a learning rate, a schedule, or a mapping of selectors to these."""
    for rate in _by_selector(lr).values():
        if isinstance(rate, int | float) and not 0 <= rate < math.inf:
            raise InvalidArgument(f"a learning rate is at least 0 and finite, got lr={lr!r}")
        as_schedule(rate)


def complete_rates(lr: Any, planned: Planned) -> Any:
    """Gives schedules without a length that of the fit; raises if that is not known, or if a value is not a rate."""
    completed = {selector: _complete(rate, planned) for selector, rate in _by_selector(lr).items()}
    for selector, rate in completed.items():
        if not isinstance(rate, int | float):
            _check_values(rate, planned, "" if selector is None else f" of {describe(selector)}")
    return completed if isinstance(lr, Mapping) else completed[None]


def _by_selector(lr: Any) -> Mapping[Any, Any]:
    return lr if isinstance(lr, Mapping) else {None: lr}


def _complete(rate: Any, planned: Planned) -> Any:
    if not isinstance(rate, Schedule):
        return rate
    completed = rate.with_updates(planned.updates, per_epoch=planned.per_epoch)
    if not completed.needs_length:
        return completed
    if planned.per_epoch is None:
        why, advice = "its training data is a stream without a length", "give fit updates=..."
    else:
        why, advice = "only minutes= limits it", "give fit epochs=... or updates=... as well"
    if planned.per_epoch is None and "every='epoch'" in repr(rate):
        advice = "count updates: every='update'"
    raise InvalidArgument(
        f"lr={rate!r} takes its length from the fit, and this fit does not know it: {why}; {advice}, or give the "
        "schedule a length: updates=..."
    )


def _check_values(rate: Any, planned: Planned, which: str) -> None:
    """Raises for a value at the beginning, in the middle or at the end that is not a learning rate."""
    schedule, last = as_schedule(rate), (planned.updates or 1) - 1
    for update in sorted({0, min(1, last), last // 2, last}):
        try:
            value = schedule(update)
        except Exception as error:
            error.add_note(f"in the learning rate{which} of update {update}")
            raise
        if value < 0:
            raise InvalidArgument(f"the learning rate{which} is {value:g} at update {update}; expected at least 0")


def make_learning_rates(lr: Any, model: nn.Module) -> Callable[[int, float], Any]:
    """Returns a function (update, scale) → the learning rate of that update, or one for each selector."""
    if not isinstance(lr, Mapping):
        schedule = as_schedule(lr)
        if isinstance(lr, int | float):
            return lambda update, scale: lr if scale == 1.0 else lr * scale
        return lambda update, scale: schedule(update) * scale
    assign(lr, named_parameters(model), model)  # a selector that matches nothing raises now, not at the first step
    schedules = {selector: as_schedule(rate) for selector, rate in lr.items()}
    return lambda update, scale: {selector: rate(update) * scale for selector, rate in schedules.items()}


def is_constant(lr: Any) -> bool:
    """Whether every learning rate is a number."""
    return all(isinstance(rate, int | float) for rate in _by_selector(lr).values())


def describe_rates(lr: Any, planned: Planned) -> list[str]:
    """A line for every schedule: its first, its highest and its last value, with the number of the update."""
    lines: list[str] = []
    for selector, rate in _by_selector(lr).items():
        if isinstance(rate, int | float):
            continue
        schedule = as_schedule(rate)
        name = "" if selector is None else f"{describe(selector)}: "
        values = f"{schedule(0):.4g} at first"
        if planned.updates is not None:
            updates = range(planned.updates)
            sampled = updates[:: max(1, len(updates) // _MAX_POINTS)]
            highest = max(sampled, key=schedule)
            about = "" if len(sampled) == len(updates) else "about "
            values += f", at most {schedule(highest):.4g} ({about}update {highest + 1})"
            values += f", {schedule(updates[-1]):.4g} at the end (update {len(updates)})"
        lines.append(f"lr         {name}{schedule!r}: {values}")
    more = len(lines) - _MAX_LINES
    return lines if more <= 0 else [*lines[:_MAX_LINES], f"lr         and {more} more schedules"]


def find_early_ends(lr: Any, planned: Planned) -> Iterator[str]:
    """Warnings about learning rates that become 0 long before the fit ends."""
    if planned.updates is None:
        return
    updates = range(planned.updates)
    sampled = [updates[number * (len(updates) - 1) // 64] for number in range(65)]
    for selector, rate in _by_selector(lr).items():
        schedule = as_schedule(rate)
        nonzero = [update for update in sampled if schedule(update) != 0]
        if not nonzero or nonzero[-1] >= 0.9 * updates[-1]:  # a rate that is always 0 is meant to be
            continue
        end = bisect.bisect(updates, False, lo=nonzero[-1], key=lambda update, rate=schedule: rate(update) == 0)
        which = "" if selector is None else f" of {describe(selector)}"
        yield (
            f"the learning rate{which} is 0 from update {end + 1} of {len(updates)} on, and the weights do not change "
            f"any more: give the schedule updates={len(updates)}, or none, so that it is as long as the fit, or a "
            "value to end at"
        )
