"""Curves with axes, for a terminal: coloured lines of braille dots over round numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from stoker.errors import InvalidArgument
from stoker.view.console._axis import Axis
from stoker.view.console._grid import Grid

if TYPE_CHECKING:
    from rich.text import Text

_BITS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])  # of a braille letter, by row and column
_HUGE = 1e300  # beyond it, differences are no floats
_MARKS = "*o+x#@"  # of the lines, where there is no braille, or no colour to tell them apart by
LEAST = (16, 5)  # columns and rows that a chart needs


@dataclass(frozen=True, slots=True)
class Line:
    """A named line of points and the style (a colour, as `rich` writes it) that it is drawn in."""

    name: str
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    style: str = ""


def chart(
    lines: Sequence[Line],
    width: int,
    height: int,
    *,
    log: bool = False,
    times: bool = False,
    ascii_only: bool = False,
    colours: bool = True,
) -> list["Text"]:
    """Lines as `height` rows of at most `width` letters; two of the rows are the x axis.

    >>> x = np.arange(8.0)
    >>> for row in chart([Line("loss", x, 2.0**-x)], 24, 6):
    ...     print(row.plain.rstrip())
    1.0 ┤⠱⡀┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈
        │ ⠑⡄
    0.5 ┤┈┈⠈⠑⠤⢄⡀┈┈┈┈┈┈┈┈┈┈┈┈
        │      ⠈⠑⠒⠢⠤⠤⣀⣀⣀⣀⣀⣀⣀
        └┬────────────┬─────
         0            5

    Where lines cross, the last one's colour shows; one without a name lies behind and gives way to the others. NaN and
    the infinities break a line; `log` spaces the heights by ratio and leaves out what is not above 0; `times` reads x
    as seconds. Without `colours` all lines but the first are made of letters, which `legend` names. A line of very many
    points should come thinned.
    """
    check_room("chart", width, height)
    shown = [_drawable(line, log=log) for line in lines]
    none = np.empty(0)
    across = Axis.around(np.concatenate([none, *(line.x for line in shown)]), "clock" if times else "count")
    upward = Axis.around(np.concatenate([none, *(line.y for line in shown)]), "ratio" if log else "number")
    empty = not any(np.isfinite(line.x).any() for line in shown)
    marks = {} if empty else upward.marks(max(2, (height - 2) // 3))
    grid = Grid(width - 2 - max(map(len, marks.values()), default=0), height - 2)
    dots: dict[tuple[int, int], int] = {}
    for place, line in enumerate(shown):
        mark = mark_of(place, ascii_only=ascii_only, colours=colours)
        _draw(grid, across.share(line.x), 1 - upward.share(line.y), line.style, mark, dots if line.name else {})
    beside = {round((1 - float(upward.share(value))) * (grid.height - 1)): text for value, text in marks.items()}
    under = {} if empty else across.marks(max(3, grid.width // 10))
    below = {round(float(across.share(value)) * (grid.width - 1)): text for value, text in under.items()}
    return grid.framed(beside, below, ascii_only=ascii_only)


def legend(lines: Sequence[Line], *, ascii_only: bool = False, colours: bool = True) -> "Text":
    """The names of lines, each with its colour and mark.

    >>> legend([Line("train", np.empty(0), np.empty(0)), Line("valid", np.empty(0), np.empty(0))]).plain
    '━ train  ━ valid'
    >>> legend([Line("train", np.empty(0), np.empty(0)), Line("valid", np.empty(0), np.empty(0))], colours=False).plain
    '━ train  o valid'
    """
    from rich.text import Text

    marks = [mark_of(place, ascii_only=ascii_only, colours=colours) or "━" for place in range(len(lines))]
    named = [(mark, line) for mark, line in zip(marks, lines, strict=True) if line.name]
    return Text("  ").join(Text(f"{mark} {line.name}", style=line.style) for mark, line in named)


def mark_of(place: int, *, ascii_only: bool, colours: bool) -> str | None:
    """The letter that a line is made of; `None` where it is drawn with dots or blocks."""
    return _MARKS[place % len(_MARKS)] if ascii_only or (place and not colours) else None


def check_room(what: str, width: int, height: int) -> None:
    """An error where a chart would have no room."""
    if width < LEAST[0] or height < LEAST[1]:
        least = f"at least {LEAST[0]} and {LEAST[1]}"
        raise InvalidArgument(f"{what}: width and height are {width} and {height}; expected {least}")


def _drawable(line: Line, *, log: bool) -> Line:
    """The line with NaN in the place of every point that can't be drawn."""
    x, y = np.asarray(line.x, float), np.asarray(line.y, float)
    known = (np.abs(x) < _HUGE) & (np.abs(y) < _HUGE) & ((y > 1 / _HUGE) | (not log))  # NaN is less than nothing
    return Line(line.name, np.where(known, x, np.nan), np.where(known, y, np.nan), line.style)


def _draw(
    grid: Grid,
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    style: str,
    mark: str | None,
    dots: dict[tuple[int, int], int],
) -> None:
    """One line, its points given as shares of the width and, from the top, of the height; `dots` stay."""
    across, down = (1, 1) if mark else (2, 4)  # dots in a letter
    known = np.isfinite(x) & np.isfinite(y)
    columns = np.rint(np.where(known, x, 0) * (grid.width * across - 1)).astype(int)
    rows = np.rint(np.where(known, y, 0) * (grid.height * down - 1)).astype(int)
    joined = known[:-1] & known[1:]
    alone = known & ~np.r_[joined, False] & ~np.r_[False, joined]
    for column, row in _between(columns, rows, joined):
        at = (row // down, column // across)
        dots[at] = dots.get(at, 0) | int(_BITS[row % down, column % across])
        grid.put(*at, mark or chr(0x2800 + dots[at]), style)
    for column, row in zip(columns[alone].tolist(), rows[alone].tolist(), strict=True):
        grid.put(row // down, column // across, mark or "•", style)


def _between(columns: NDArray[np.int64], rows: NDArray[np.int64], joined: NDArray[np.bool_]) -> set[tuple[int, int]]:
    """The dots of the straight lines between neighbours that are joined."""
    start = np.flatnonzero(joined)
    if not start.size:
        return set()
    wide, tall = columns[start + 1] - columns[start], rows[start + 1] - rows[start]
    many = np.maximum(np.maximum(np.abs(wide), np.abs(tall)), 1)
    counts = many + 1
    which = np.repeat(np.arange(start.size), counts)
    part = (np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)) / many[which]
    x = np.rint(columns[start][which] + part * wide[which]).astype(int)
    y = np.rint(rows[start][which] + part * tall[which]).astype(int)
    return set(zip(x.tolist(), y.tolist(), strict=True))
