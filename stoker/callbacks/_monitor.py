"""Watching one number of the record: its value in this epoch, and whether that is better than another."""

import math

from stoker.callbacks._context import Context
from stoker.errors import InvalidArgument, NoSuchMetric, did_you_mean
from stoker.record import Direction


def fresh(ctx: Context, monitor: str, *, who: str) -> float | None:
    """The monitored number of this epoch; None where this epoch did not measure it. An unknown name is an error."""
    numbers = ctx.record.rows.get(ctx.epoch, {})
    if monitor in numbers:
        return numbers[monitor]
    known = ctx.record.columns
    judged = any("/" in name and not name.startswith(("train/", "lr/")) for name in known)
    if monitor in known or ctx.stopping is not None or (not judged and _validates(ctx)):
        return None
    advice = "; nothing was validated: give fit a valid=..." if monitor.startswith("valid/") and not judged else ""
    raise NoSuchMetric(
        f"{who} monitors {monitor!r}, and there is no such number{advice or did_you_mean(monitor, known)} "
        f"(there are: {', '.join(known) or 'none'})"
    )


def direction_of(ctx: Context, monitor: str, given: Direction | None, *, who: str) -> Direction:
    """What is better: what the user said, or what the metric says of itself."""
    direction = given or ctx.record.direction(monitor)
    if direction is None:
        raise InvalidArgument(
            f'{who} can\'t know what is better for {monitor!r}; say direction="min" or direction="max"'
        )
    return direction


def improved(value: float, best: float | None, *, direction: Direction, min_delta: float) -> bool:
    """Whether a value is better than the best so far, by more than `min_delta`; NaN never is.

    >>> improved(0.8, 0.9, direction="min", min_delta=0.05), improved(0.88, 0.9, direction="min", min_delta=0.05)
    (True, False)
    >>> improved(float("nan"), None, direction="min", min_delta=0.0)
    False
    """
    if direction == "min":
        return value < (math.inf if best is None else best) - min_delta
    return value > (-math.inf if best is None else best) + min_delta


def check_monitor(monitor: str, direction: Direction | None, min_delta: float) -> None:
    """Refuses settings that can't be meant."""
    if not isinstance(monitor, str) or not monitor:
        raise InvalidArgument(f'monitor is the name of a number, such as "valid/loss"; got {monitor!r}')
    if direction not in (None, "min", "max"):
        raise InvalidArgument(f'direction is "min", "max" or None (the metric\'s own); got {direction!r}')
    if not min_delta >= 0:
        raise InvalidArgument(f"min_delta is at least 0, got {min_delta!r}")


def check_count(name: str, value: int, *, least: int) -> None:
    """Refuses a count that is no whole number, or too small."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidArgument(f"{name} is a whole number of epochs, at least {least}; got {value!r}")


def _validates(ctx: Context) -> bool:
    """Whether the fit is going to validate, as its beginning says: every 1000 updates, say, in an epoch of 600."""
    begun = ctx.record.events_of("begin")
    planned = begun[-1].extra.get("monitor") if begun else None
    return planned is not None and not str(planned).startswith("train/")
