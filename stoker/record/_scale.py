"""The scale of a picture's axis: whether a logarithm helps, and where the ticks go."""

import math
from collections.abc import Iterable

_WIDE = 20.0  # times the lowest value: a straight scale would show the highest only


def wants_log(values: Iterable[float]) -> bool:
    """Whether numbers of which less is better are seen better on a logarithmic scale.

    >>> wants_log([2.3, 0.01]), wants_log([2.3, 0.5]), wants_log([2.3, 0.0])
    (True, False, False)
    """
    seen = [value for value in values if math.isfinite(value)]
    return bool(seen) and min(seen) > 0 and max(seen) / min(seen) > _WIDE


def ticks(low: float, high: float, most: int, *, log: bool = False) -> list[float]:
    """Some round numbers between two others; those two where there is no room for round ones.

    >>> ticks(0.13, 0.98, 5)
    [0.2, 0.4, 0.6, 0.8]
    >>> ticks(0.003, 2.3, 5, log=True)
    [0.01, 0.1, 1.0]
    """
    found = _decades(low, high, most) if log else _round(low, high, most)
    return found if len(found) > 1 else [low, high] if high > low else [low]


def _round(low: float, high: float, most: int) -> list[float]:
    rough = (high - low) / most
    if not math.isfinite(rough) or rough <= abs(high) * 1e-12 or rough < 1e-300:
        return []
    power = 10.0 ** math.floor(math.log10(rough))
    apart = next(power * each for each in (1, 2, 5, 10) if power * each >= rough * (1 - 1e-9))
    first, last = math.ceil(low / apart - 1e-9), math.floor(high / apart + 1e-9)
    return [float(f"{place * apart:.12g}") for place in range(first, last + 1)]


def _decades(low: float, high: float, most: int) -> list[float]:
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    every = max(1, -(-(last - first + 1) // most))
    found = [float(f"1e{power}") for power in range(first, last + 1, every)]
    return found if len(found) > 1 else sorted({low, *found, high})
