"""Schedules: takes the number of an update, gives a value (a learning rate, most often); the type is `Schedule`.

>>> from stoker import schedule
>>> lr = schedule.cosine(1e-2, steps=80, warmup=8)
>>> lr(8)
0.01

A schedule is a pure function of the update number, counted from 0, that can be compared, saved, combined (`then`, `+`,
`-`, `*`, `/`) and drawn (`plot`). Past its end it stays at its last value.
"""

from stoker.schedule._build import (
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
    warmup,
    warmup_stable_decay,
)
from stoker.schedule._plot import plot
from stoker.schedule._schedule import Schedule, ScheduleLike, as_schedule

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
    "warmup",
    "warmup_stable_decay",
]
