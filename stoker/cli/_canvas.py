"""Lines on a grid of braille dots: a plot for a terminal."""

import math
from collections.abc import Sequence
from itertools import pairwise

from rich.text import Text

from stoker.cli._screen import short

Points = Sequence[tuple[float, float]]

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of a braille letter, by row and column
_COLOURS = ("cyan", "yellow", "green", "magenta", "red", "blue")


def curves(lines: dict[str, Points], *, width: int, height: int, plain: bool = False) -> list[Text]:
    """Named lines of (x, y) as rows of text with numbers at the left, and the names below.

    >>> for row in curves({"loss": [(0, 4), (1, 2), (2, 1), (3, 1)]}, width=20, height=3):
    ...     print(row.plain.rstrip())
    4 ┤⠑⠢⣀
      │   ⠉⠢⢄⡀
    1 ┤      ⠈⠉⠒⠤⢄⣀⣀⣀⣀⣀⣀
      └─────────────────
       0               3
      ━ loss

    A column of dots that holds many points shows their range; NaN and the infinities are left out. `plain` is for
    screens without such letters: one mark a letter, another one for each line.
    """
    finite = {name: [(x, y) for x, y in line if math.isfinite(y)] for name, line in lines.items()}
    every = [point for line in finite.values() for point in line]
    if not every:
        return [Text("no numbers to draw")]
    left, right = min(x for x, _ in every), max(x for x, _ in every)
    low, high = min(y for _, y in every), max(y for _, y in every)
    length, span = (right - left) or 1, (high / 2 - low / 2) or 1.0  # halves: the whole may be infinite
    margin = max(len(short(low)), len(short(high)))
    across, down = (1, 1) if plain else (2, 4)  # dots in a letter
    columns, rows = (width - margin - 2) * across, height * down
    cells: dict[tuple[int, int], tuple[int, int]] = {}  # (row, column) of a letter: its dots, and the last line there
    for place, line in enumerate(finite.values()):
        dots = [
            (round((x - left) / length * (columns - 1)), round((high / 2 - y / 2) / span * (rows - 1)))
            for x, y in sorted(line)
        ]
        for x, y in _joined(dots):
            at = (y // down, x // across)
            cells[at] = (cells.get(at, (0, 0))[0] | _DOTS[y % down][x % across], place)
    grid = [_row(cells, row, columns // across, plain) for row in range(height)]
    labels = {0: short(high), height - 1: short(low)}
    bars = ("|", "+", "-", "+") if plain else ("│", "┤", "─", "└")
    framed = [
        Text(f"{labels.get(row, ''):>{margin}} {bars[row in labels]}").append_text(text)
        for row, text in enumerate(grid)
    ]
    under = Text(" " * margin + f" {bars[3]}" + bars[2] * (columns // across))
    ends = Text(" " * (margin + 2) + short(left) + f"{short(right):>{columns // across - len(short(left))}}")
    return [*framed, under, ends, _legend(list(lines), margin, plain)]


def _joined(dots: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The dots with straight lines of dots between them."""
    joined = list(dots[:1])
    for (x0, y0), (x1, y1) in pairwise(dots):
        length = max(abs(x1 - x0), abs(y1 - y0), 1)
        joined += [
            (round(x0 + (x1 - x0) * part / length), round(y0 + (y1 - y0) * part / length))
            for part in range(1, length + 1)
        ]
    return joined


def _row(cells: dict[tuple[int, int], tuple[int, int]], row: int, letters: int, plain: bool) -> Text:
    text = Text()
    for column in range(letters):
        if (row, column) in cells:
            dots, line = cells[row, column]
            mark = _mark(line) if plain else chr(0x2800 + dots)
            text.append(mark, style=_COLOURS[line % len(_COLOURS)])
        else:
            text.append(" ")
    return text


def _legend(names: list[str], margin: int, plain: bool) -> Text:
    text = Text(" " * (margin + 1))
    for place, name in enumerate(names):
        mark = _mark(place) if plain else "━"
        text.append(f"{mark} {name}  ", style=_COLOURS[place % len(_COLOURS)])
    return text


def _mark(line: int) -> str:
    return "*o+x#@"[line % 6]
