"""Schedules: functions from the number of an update to a value, usually a learning rate.

>>> from stoker import schedule
>>> lr = schedule.cosine(1e-2, updates=80, warmup=8)
>>> lr(8)
0.01

A schedule is a pure function of the update number, counted from 0. It can be compared, saved, combined (`then`, `+`,
`-`, `*`, `/`) and drawn (`plot`). After its end it keeps its last value. Without `updates`, its length is that of the
fit: `schedule.cosine(1e-2, warmup=0.1)`. `schedule.torch` takes torch's own schedulers.
"""

from stoker.schedule._plot import plot
from stoker.schedule._schedule import (
    Schedule,
    ScheduleLike,
    as_schedule,
    constant,
    cosine,
    exponential,
    inverse_sqrt,
    linear,
    multistep,
    noam,
    one_cycle,
    polynomial,
    step,
    torch,
    warmup,
    warmup_stable_decay,
)

__all__ = [
    "Schedule",
    "ScheduleLike",
    "as_schedule",
    "constant",
    "cosine",
    "exponential",
    "inverse_sqrt",
    "linear",
    "multistep",
    "noam",
    "one_cycle",
    "plot",
    "polynomial",
    "step",
    "torch",
    "warmup",
    "warmup_stable_decay",
]
