"""The builders: one function for each shape that people use.

In all of them `steps` is the number of updates from the beginning to the end, warm-up included, and update `steps` is
the first one at the last value. A warm-up of n updates gives `peak * (update + 1) / (n + 1)` to the updates 0 … n - 1,
so that none is wasted at zero, and the peak itself to update n.
"""

from collections.abc import Sequence
from typing import Literal

from stoker.schedule import _curves as curves
from stoker.schedule._compose import Warmup
from stoker.schedule._schedule import Schedule, ScheduleLike, as_schedule


def constant(value: float) -> Schedule:
    """The same value at every update.

    >>> constant(0.1)(1000)
    0.1
    """
    return Schedule(curves.Constant(value))


def linear(start: float, end: float, steps: int) -> Schedule:
    """A straight way from start to end.

    >>> down = linear(1.0, 0.0, steps=4)
    >>> [down(update) for update in range(6)]
    [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    """
    return Schedule(curves.Linear(start, end, steps))


def cosine(
    peak: float, *, steps: int, warmup: int = 0, end: float = 0.0, restarts: int = 0, growth: float = 1.0
) -> Schedule:
    """Half a cosine from the peak down to `end`, after a linear warm-up.

    >>> warm = cosine(1e-2, steps=80, warmup=8)
    >>> warm(0) < warm(8) == 1e-2 > warm(79) > warm(80) == 0.0
    True
    >>> cycles = cosine(1.0, steps=70, restarts=2, growth=2)  # cycles of 10, 20 and 40 updates
    >>> cycles(0), cycles(10), cycles(30), cycles(70)
    (1.0, 1.0, 1.0, 0.0)

    After each of `restarts` it begins at the peak again; each cycle is `growth` times as long as the one before it, in
    whole updates, and all of them fill the steps. Past the end it does not come up again.
    """
    return Schedule(curves.Cosine(peak, steps=steps, warmup=warmup, end=end, restarts=restarts, growth=growth))


def exponential(start: float, *, gamma: float, end: float | None = None) -> Schedule:
    """The value times gamma after every update, on and on or until `end`.

    >>> half = exponential(1.0, gamma=0.5, end=0.1)
    >>> [half(update) for update in range(5)]
    [1.0, 0.5, 0.25, 0.125, 0.1]
    """
    return Schedule(curves.Exponential(start, gamma=gamma, end=end))


def step(start: float, *, every: int, gamma: float = 0.1) -> Schedule:
    """The value times gamma after every so many updates.

    >>> stairs = step(1.0, every=2, gamma=0.5)
    >>> [stairs(update) for update in range(5)]
    [1.0, 1.0, 0.5, 0.5, 0.25]
    """
    return Schedule(curves.Step(start, every=every, gamma=gamma))


def multistep(start: float, *, milestones: Sequence[int], gamma: float = 0.1) -> Schedule:
    """The value times gamma from each milestone on.

    >>> stairs = multistep(1.0, milestones=[1, 4], gamma=0.5)
    >>> [stairs(update) for update in range(5)]
    [1.0, 0.5, 0.5, 0.5, 0.25]
    """
    return Schedule(curves.Multistep(start, milestones=tuple(milestones), gamma=gamma))


def polynomial(start: float, *, steps: int, end: float = 0.0, power: float = 1.0) -> Schedule:
    """From start to end as a power of the part that is left.

    >>> square = polynomial(1.0, steps=4, power=2)
    >>> [square(update) for update in range(5)]
    [1.0, 0.5625, 0.25, 0.0625, 0.0]
    """
    return Schedule(curves.Polynomial(start, steps=steps, end=end, power=power))


def one_cycle(
    peak: float,
    *,
    steps: int,
    rise: float = 0.3,
    start: float | None = None,
    end: float | None = None,
    shape: Literal["cosine", "linear"] = "cosine",
) -> Schedule:
    """Up to the peak in a fraction `rise` of the updates, and down to almost nothing in the others.

    >>> cycle = one_cycle(1.0, steps=11, rise=0.5, shape="linear", start=0.0, end=0.0)
    >>> cycle(0), cycle(10), cycle(11)
    (0.0, 0.0, 0.0)

    As torch's `OneCycleLR`: `start` is `peak / 25` and `end` is `start / 10_000` where they are not given, and it is
    the last of the steps, not the one after it, that has the value `end`.
    """
    return Schedule(curves.OneCycle(peak, steps=steps, rise=rise, start=start, end=end, shape=shape))


def inverse_sqrt(peak: float, *, warmup: int) -> Schedule:
    """A linear warm-up to the peak at update `warmup`, then down with the square root of the updates, without an end.

    >>> slow = inverse_sqrt(1.0, warmup=3)
    >>> slow(0), slow(3), slow(15)
    (0.25, 1.0, 0.5)
    """
    return Schedule(curves.InverseSqrt(peak, warmup=warmup))


def noam(width: int, *, warmup: int, scale: float = 1.0) -> Schedule:
    """The schedule of the first transformer, for a model of a width, counting updates from 1 as its paper does.

    >>> first = noam(64, warmup=4)
    >>> first(3)  # the highest: 64 ** -0.5 * 4 ** -0.5
    0.0625

    Here the highest value comes at update `warmup - 1`.
    """
    return Schedule(curves.Noam(width, warmup=warmup, scale=scale))


def warmup_stable_decay(
    peak: float,
    *,
    steps: int,
    warmup: int,
    decay: int,
    end: float = 0.0,
    shape: Literal["linear", "cosine", "sqrt"] = "linear",
) -> Schedule:
    """A linear warm-up, then the peak, then down to `end` in the last `decay` updates.

    >>> trapezoid = warmup_stable_decay(1.0, steps=10, warmup=3, decay=4)
    >>> [trapezoid(update) for update in range(11)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]

    The way down is straight, a cosine, or (`"sqrt"`) steep at first, with the square root of the part that is gone.
    """
    return Schedule(
        curves.WarmupStableDecay(peak, steps=steps, warmup=warmup, decay=decay, end=end, shape=shape),
    )


def warmup(schedule: ScheduleLike, *, steps: int) -> Schedule:
    """A linear warm-up to where a schedule begins, and then that schedule, which counts from its own 0.

    >>> warm = warmup(step(1.0, every=2, gamma=0.5), steps=3)
    >>> [warm(update) for update in range(6)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 0.5]
    """
    return Schedule(Warmup(as_schedule(schedule).curve, steps))
