"""Bars with axes, for a terminal: a group of coloured bars for each epoch."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from stoker.view.console._axis import Axis
from stoker.view.console._chart import Line, check_room, mark_of
from stoker.view.console._grid import Grid

if TYPE_CHECKING:
    from rich.text import Text

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_WIDEST = 5  # letters of a bar


def bars(
    lines: Sequence[Line], width: int, height: int, *, ascii_only: bool = False, colours: bool = True
) -> list["Text"]:
    """Lines whose x are epochs, as `height` rows of bars; where there is no room for all epochs, the latest.

    >>> for row in bars([Line("loss", np.array([1.0, 2, 3]), np.array([1.0, 0.5, 0.25]))], 20, 6):
    ...     print(row.plain.rstrip())
    1 ┤████┈┈┈┈┈┈┈┈┈┈┈┈┈
      │████
      │████ ████
    0 ┤████┈████┈████┈┈┈
      └──┬────┬────┬────
         1    2    3

    The bars stand on 0, or on a number near the lowest where all are far from 0: the axis says which.
    """
    check_room("bars", width, height)
    tables = [{int(x): float(y) for x, y in zip(line.x, line.y, strict=True) if np.isfinite(y)} for line in lines]
    epochs = sorted({epoch for table in tables for epoch in table})
    upward = _upward([value for table in tables for value in table.values()])
    marks = upward.marks(max(2, (height - 2) // 3)) if epochs else {}
    grid = Grid(width - 2 - max(map(len, marks.values()), default=0), height - 2)
    shown = epochs[-max(1, grid.width // (len(lines) + 1)) :]
    many = max(1, len(lines))
    pitch = min(grid.width // max(1, len(shown)), _WIDEST * many + 2)  # letters from a group to the next
    wide = max(1, (pitch - 1) // many)
    below: dict[int, str] = {}
    for group, epoch in enumerate(shown):
        left = group * pitch
        below[min(left + wide * len(lines) // 2, grid.width - 1)] = str(epoch)
        for place, (table, line) in enumerate(zip(tables, lines, strict=True)):
            if epoch in table:
                share = float(upward.share(table[epoch]))
                mark = mark_of(place, ascii_only=ascii_only, colours=colours)
                _stand(grid, left + place * wide, wide, share, line.style, mark)
    top = grid.height  # a number stands beside the top of a bar that is so high
    beside = {min(top - 1, top - round(float(upward.share(value)) * top)): text for value, text in marks.items()}
    return grid.framed(beside, below, ascii_only=ascii_only)


def _upward(values: list[float]) -> Axis:
    axis = Axis.around(np.array(values))
    if axis.low >= 0 and axis.low <= 0.7 * axis.high:
        return Axis(0.0, axis.high)
    return Axis(axis.low - 0.15 * (axis.high - axis.low), axis.high)


def _stand(grid: Grid, left: int, wide: int, share: float, style: str, mark: str | None) -> None:
    """One bar; also the lowest has something to be seen."""
    eighths = max(1, round(share * grid.height * 8))
    for row in range(grid.height):
        filled = min(8, eighths - 8 * (grid.height - 1 - row))
        if filled <= 0 or (mark and filled < min(4, eighths)):
            continue
        for column in range(left, min(left + wide, grid.width)):
            grid.put(row, column, mark or _EIGHTHS[filled], style)
