"""Settings of curves that can't be used, refused in the words of the builder that they were given to."""

import dataclasses
import math
import re
from typing import Any

from stoker.config import Config
from stoker.errors import InvalidArgument


def name_of(curve: Config) -> str:
    """The builder's name of a curve: `warmup_stable_decay` of `WarmupStableDecay`."""
    return re.sub("(?<=[a-z])(?=[A-Z])", "_", type(curve).__name__).lower()


def check(curve: Config, **at_least: float) -> None:
    """Refuses numbers that are not finite, and settings under their least value."""
    for field in dataclasses.fields(curve):
        value = getattr(curve, field.name)
        if isinstance(value, float) and not math.isfinite(value):
            refuse(curve, field.name, "a finite number")
    for name, least in at_least.items():
        if getattr(curve, name) < least:
            refuse(curve, name, f"at least {least}")


def refuse(curve: Config, name: str, expected: str) -> None:
    raise InvalidArgument(f"schedule.{name_of(curve)}: {name} is {getattr(curve, name)}; expected {expected}")


def check_warmup(curve: Any) -> None:
    check(curve, steps=1, warmup=0)
    if curve.warmup > curve.steps:
        refuse(curve, "warmup", f"at most steps, which is {curve.steps}")
