"""A curve as the code that makes it."""

import dataclasses

from stoker.config import Config
from stoker.schedule._check import name_of
from stoker.schedule._compose import Arithmetic, Curve, Then, Warmup
from stoker.schedule._curves import Constant, Function


def code(curve: Curve) -> str:
    """The call, or the expression, that makes a schedule of this curve.

    >>> from stoker.schedule import _curves
    >>> code(_curves.Cosine(0.01, steps=80, warmup=8))
    'schedule.cosine(0.01, steps=80, warmup=8)'
    """
    if isinstance(curve, Arithmetic):
        bare = not isinstance(curve.right, Constant)  # of two numbers one must be spelled out, or Python would add them
        return f"{_operand(curve.left, bare=bare)} {curve.operator} {_operand(curve.right, bare=True)}"
    if isinstance(curve, Then):
        first = f"({code(curve.first)})" if isinstance(curve.first, Arithmetic) else code(curve.first)
        return f"{first}.then({code(curve.second)}, at={curve.at})"
    if isinstance(curve, Warmup):
        return f"schedule.warmup({code(curve.after)}, steps={curve.steps})"
    if isinstance(curve, Function):
        return f"schedule.as_schedule({getattr(curve.call, '__qualname__', repr(curve.call))})"
    return f"schedule.{name_of(curve)}({', '.join(_settings(curve))})"


def _operand(curve: Curve, *, bare: bool) -> str:
    """One side of an operator; a constant may be a bare number."""
    if isinstance(curve, Constant) and bare:
        return repr(curve.value)
    return f"({code(curve)})" if isinstance(curve, Arithmetic) else code(curve)


def _settings(curve: Config) -> list[str]:
    shown = []
    for field in dataclasses.fields(curve):
        value = getattr(curve, field.name)
        if not field.kw_only:
            shown.append(repr(value))
        elif value != field.default:
            shown.append(f"{field.name}={value!r}")
    return shown
