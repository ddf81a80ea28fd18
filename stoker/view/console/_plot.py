"""Curves out of braille dots, two by four in a character; ASCII where a terminal has no braille."""

import math
from collections.abc import Sequence

from stoker.errors import InvalidArgument

# The bit of each dot of a braille character, from the top: left column, right column.
_BITS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_BLANK = 0x2800


def plot_text(
    values: Sequence[float], width: int, height: int, *, log: bool = False, ascii_only: bool = False
) -> list[str]:
    r"""A curve as `height` lines of `width` characters, without axes.

    >>> print("\n".join(plot_text([8, 4, 2, 1, 1, 1, 2, 4], 4, 2)))
    ⢱⠀⠀⠀
    ⠈⢆⣀⠜

    Values are spread over the width; where a column holds several, it shows all from their least to their greatest.
    NaN and infinite values leave a gap. `log` spaces the heights by ratio; it needs values above 0.
    """
    if width < 1 or height < 1:
        raise InvalidArgument(f"plot_text: width and height are {width} and {height}; expected at least 1 each")
    finite = [value for value in values if math.isfinite(value)]
    if log and finite and min(finite) <= 0:
        raise InvalidArgument(f"plot_text: log needs values above 0; the least is {min(finite)}")
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    cells = dots(values, width, height, low=low, high=high, log=log)
    return [as_text(row, ascii_only=ascii_only) for row in cells]


def dots(
    values: Sequence[float], width: int, height: int, *, low: float, high: float, log: bool = False
) -> list[list[int]]:
    """The braille bits of each cell, row by row, from `low` at the bottom to `high` at the top; curves can be or-ed."""
    cells = [[0] * width for _ in range(height)]
    rows = 4 * height - 1
    scale = math.log if log else _quarter
    bottom, span = scale(low), scale(high) - scale(low)
    before: int | None = None
    for column, (least, most) in enumerate(_columns(values, 2 * width)):
        if most < least:  # nothing to draw here
            before = None
            continue
        top, foot = (
            rows - round(rows * ((scale(each) - bottom) / span)) if span else rows // 2 for each in (most, least)
        )
        start, stop = top, foot
        if before is not None:  # the line goes up or down from its neighbour without a hole
            start, stop = min(top, before + 1), max(foot, before - 1)
        for row in range(max(start, 0), min(stop, rows) + 1):
            cells[row // 4][column // 2] |= _BITS[row % 4][column % 2]
        before = (top + foot) // 2
    return cells


def _quarter(value: float) -> float:
    return value / 4  # so that the span of any two floats is a float


def _columns(values: Sequence[float], count: int) -> list[tuple[float, float]]:
    """The least and the greatest value of each column; (1, 0) where there is none to show."""
    many = len(values)
    found: list[tuple[float, float]] = []
    for column in range(count):
        if many >= count:
            part = [x for x in values[column * many // count : (column + 1) * many // count] if math.isfinite(x)]
            found.append((min(part), max(part)) if part else (1.0, 0.0))
            continue
        # Fewer values than columns: a straight line between neighbours, with the first and the last at the edges.
        place = column * (many - 1) / max(count - 1, 1)
        left = math.floor(place)
        around = values[left : left + 2] if place > left else values[left : left + 1]
        if not around or not all(map(math.isfinite, around)):
            found.append((1.0, 0.0))
        else:
            value = (1 - place + left) * around[0] + (place - left) * around[-1]
            found.append((value, value))
    return found


def as_text(row: Sequence[int], *, ascii_only: bool = False) -> str:
    """A row of cells as characters."""
    if ascii_only:
        return "".join(_ascii(bits) for bits in row)
    return "".join(chr(_BLANK + bits) for bits in row)


def _ascii(bits: int) -> str:
    """One of four marks, by where in the cell the curve runs."""
    if not bits:
        return " "
    top, bottom = bits & 0x1B, bits & 0xE4  # the upper and the lower two rows
    return "|" if top and bottom else "'" if top else "."
