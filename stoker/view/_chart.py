"""Line and bar charts for terminals, drawn with braille dots, block characters or ASCII letters.

The live console, `stoker watch` and `stoker show` all draw with this module.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Literal

import numpy as np

from stoker._text import format_clock, format_count
from stoker.errors import InvalidArgument

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray  # importing it takes several milliseconds
    from rich.text import Text

MIN_WIDTH, MIN_HEIGHT = 16, 5  # the smallest chart, axes included
QUIET = "#767676"  # axes, labels and side notes: a contrast of 4.5 to black and to white
_GRID_LINE = f"dim {QUIET}"
_FRAME = {
    False: "│┤└─┬┈",
    True: "|++-+ ",
}  # by `ascii_only`: left axis, its tick, corner, bottom axis, its tick, grid line
_BRAILLE_BITS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])  # by row and column of a character
_EIGHTHS = " ▁▂▃▄▅▆▇█"
_LETTERS = "*o+x#@"  # draw the lines where braille or colors are missing
_MAX_BAR_WIDTH = 5
_MAX_VALUE = 1e300  # differences of larger values overflow
_TIME_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200)  # seconds
_DAY = 86_400


@dataclass(frozen=True, slots=True)
class Line:
    """Named points and the color (a `rich` style) to draw them in. NaN and infinities interrupt the line."""

    name: str
    x: "NDArray[np.float64]"
    y: "NDArray[np.float64]"
    style: str = ""


def chart(
    lines: Sequence[Line],
    width: int,
    height: int,
    *,
    log: bool = False,
    times: bool = False,
    ascii_only: bool = False,
    colors: bool = True,
) -> list["Text"]:
    """Draws lines as `height` rows of at most `width` characters; the last two rows are the x axis.

    >>> x = np.arange(8.0)
    >>> for row in chart([Line("loss", x, 2.0**-x)], 24, 6):
    ...     print(row.plain.rstrip())
    1.0 ┤⠱⡀┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈
        │ ⠑⡄
    0.5 ┤┈┈⠈⠑⠤⢄⡀┈┈┈┈┈┈┈┈┈┈┈┈
        │      ⠈⠑⠒⠢⠤⠤⣀⣀⣀⣀⣀⣀⣀
        └┬────────────┬─────
         0            5

    Later lines are drawn over earlier ones; a line without a name is a background that named lines replace. `log` uses
    a logarithmic y axis and leaves out values that are not positive; `times` reads x as seconds. A few values that are
    far from all others do not stretch the y axis: ▲ or ▼ at its end marks them. Without `colors`, every line but the
    first is drawn with a letter, which `legend` names.
    """
    _check_size("chart", width, height)
    points = [drawable_points(line.x, line.y, log=log) for line in lines]
    x_axis = Axis.around([x for x, _ in points], "time" if times else "count")
    y_axis = Axis.around([_without_outliers(y, log=log) for _, y in points], "log" if log else "number")
    is_empty = not any(np.isfinite(x).any() for x, _ in points)
    y_ticks = {} if is_empty else y_axis.ticks(max(2, (height - 2) // 3))
    canvas = _Canvas(width - 2 - max(map(len, y_ticks.values()), default=0), height - 2)
    x_ticks = {} if is_empty else x_axis.ticks(max(3, canvas.width // 10))
    dots: dict[tuple[int, int], int] = {}
    for number, (line, (x, y)) in enumerate(zip(lines, points, strict=True)):
        letter = _letter(number, ascii_only=ascii_only, colors=colors)
        x, y = x_axis.position(x), 1 - y_axis.position(y)
        inside = (y > -1e-9) & (y < 1 + 1e-9)
        _draw_line(canvas, x, np.where(inside, y, np.nan), line.style, letter, dots if line.name else {})
        for column, above in zip(x[~inside & np.isfinite(y)], y[~inside & np.isfinite(y)] < 0, strict=True):
            mark = ("^" if above else "v") if ascii_only else "▲" if above else "▼"
            canvas.cells[0 if above else -1][round(column * (canvas.width - 1))] = (mark, line.style)
    rows = {round((1 - float(y_axis.position(value))) * (canvas.height - 1)): text for value, text in y_ticks.items()}
    columns = {round(float(x_axis.position(value)) * (canvas.width - 1)): text for value, text in x_ticks.items()}
    return canvas.render(rows, columns, ascii_only=ascii_only)


def bars(
    lines: Sequence[Line], width: int, height: int, *, ascii_only: bool = False, colors: bool = True
) -> list["Text"]:
    """Draws lines over epochs as groups of bars; if not all epochs fit, the latest.

    >>> for row in bars([Line("loss", np.array([1.0, 2, 3]), np.array([1.0, 0.5, 0.25]))], 20, 6):
    ...     print(row.plain.rstrip())
    1 ┤████┈┈┈┈┈┈┈┈┈┈┈┈┈
      │████
      │████ ████
    0 ┤████┈████┈████┈┈┈
      └──┬────┬────┬────
         1    2    3

    The bars start at 0, or just below the lowest value if all values are far from 0.
    """
    _check_size("bars", width, height)
    points = [np.transpose(drawable_points(line.x, line.y, log=False)).tolist() for line in lines]
    tables = [{int(x): y for x, y in pairs if not math.isnan(y)} for pairs in points]
    epochs = sorted({epoch for table in tables for epoch in table})
    axis = Axis.around([np.array([value for table in tables for value in table.values()])])
    starts_at_zero = 0 <= axis.low <= 0.7 * axis.high
    axis = Axis(0.0 if starts_at_zero else axis.low - 0.15 * (axis.high - axis.low), axis.high)
    ticks = axis.ticks(max(2, (height - 2) // 3)) if epochs else {}
    canvas = _Canvas(width - 2 - max(map(len, ticks.values()), default=0), height - 2)
    epochs = epochs[-max(1, canvas.width // (len(lines) + 1)) :]
    group = min(canvas.width // max(1, len(epochs)), _MAX_BAR_WIDTH * max(1, len(lines)) + 2)  # columns per epoch
    bar = max(1, (group - 1) // max(1, len(lines)))
    columns: dict[int, str] = {}
    for left, epoch in zip(range(0, group * len(epochs), group), epochs, strict=False):
        columns[min(left + bar * len(lines) // 2, canvas.width - 1)] = str(epoch)
        for number, (table, line) in enumerate(zip(tables, lines, strict=True)):
            if epoch in table:
                letter = _letter(number, ascii_only=ascii_only, colors=colors)
                _draw_bar(canvas, left + number * bar, bar, float(axis.position(table[epoch])), line.style, letter)
    top = canvas.height  # a tick label is beside the top of a bar of that height
    rows = {min(top - 1, top - round(float(axis.position(value)) * top)): text for value, text in ticks.items()}
    return canvas.render(rows, columns, ascii_only=ascii_only)


def legend(lines: Sequence[Line], *, ascii_only: bool = False, colors: bool = True) -> "Text":
    """The names of the lines in their colors, each after the character that it is drawn with.

    >>> lines = [Line("train", np.empty(0), np.empty(0)), Line("valid", np.empty(0), np.empty(0))]
    >>> legend(lines).plain, legend(lines, colors=False).plain
    ('━ train  ━ valid', '━ train  o valid')
    """
    from rich.text import Text

    letters = [_letter(number, ascii_only=ascii_only, colors=colors) or "━" for number in range(len(lines))]
    named = [(letter, line) for letter, line in zip(letters, lines, strict=True) if line.name]
    return Text("  ").join(Text(f"{letter} {line.name}", style=line.style) for letter, line in named)


@dataclass(frozen=True, slots=True)
class Axis:
    """A range of values and its scale: numbers, numbers on a log scale, whole counts, or times in seconds.

    >>> Axis(0.0, 0.93).ticks(4)
    {0.0: '0.0', 0.5: '0.5'}
    >>> Axis(0.02, 3.0, "log").ticks(8)
    {0.02: '0.02', 0.05: '0.05', 0.1: '0.1', 0.2: '0.2', 0.5: '0.5', 1.0: '1', 2.0: '2'}
    >>> Axis(1, 30_000, "count").ticks(4), Axis(0, 200, "time").ticks(5)
    ({10000.0: '10k', 20000.0: '20k', 30000.0: '30k'}, {0.0: '0:00', 60.0: '1:00', 120.0: '2:00', 180.0: '3:00'})
    """

    low: float
    high: float
    scale: Literal["number", "log", "count", "time"] = "number"

    @classmethod
    def around(
        cls, arrays: "Sequence[NDArray[np.float64]]", scale: Literal["number", "log", "count", "time"] = "number"
    ) -> "Axis":
        """The axis that includes all finite values (on a log scale: all positive ones that are not subnormal)."""
        values = np.concatenate([np.empty(0), *arrays])
        values = values[np.isfinite(values) & ((values > np.finfo(float).tiny) | (scale != "log"))]
        if not values.size:
            return cls(0.1 if scale == "log" else 0.0, 1.0, scale)
        low, high = float(values.min()), float(values.max())
        if scale == "log":
            return cls(low / 2, high * 2, scale) if high <= low * 1.000001 else cls(low, high, scale)
        if high - low <= max(
            1e-12 * max(abs(low), abs(high)), 1 / _MAX_VALUE
        ):  # one value: centred, or left of an x axis
            margin = abs(low) / 2 if abs(low) > 1 / _MAX_VALUE else 1.0
            margin = max(1.0, 1e-9 * margin) if scale in ("count", "time") else margin
            return cls(low - (scale == "number") * margin, high + margin, scale)
        return cls(low, high, scale)

    def position(self, values: "ArrayLike") -> "NDArray[np.float64]":
        """Where the values are on the axis: 0 at the low end, 1 at the high end."""
        if self.scale == "log":
            low, high = math.log(self.low), math.log(self.high)
            return (np.log(np.asarray(values, float)) - low) / (high - low)
        return (np.asarray(values, float) - self.low) / (self.high - self.low)

    def ticks(self, most: int) -> dict[float, str]:
        """About `most` round values on the axis, at most, with their labels."""
        most = max(most, 1)
        if self.scale == "time":
            days = max(1.0, (self.high - self.low) / _DAY)
            steps = [*_TIME_STEPS, *(_DAY * math.ceil(days * part / most) for part in (0.25, 1, 2))]
            return {value: format_clock(value) for value in self._multiples(steps, most)}
        values = self._log_ticks(most) if self.scale == "log" else self._linear_ticks(most)
        return dict(zip(values, _tick_labels(values), strict=True))

    def _linear_ticks(self, most: int) -> list[float]:
        power = 10.0 ** math.floor(math.log10((self.high - self.low) / most))
        steps = [power * factor for factor in (1, 2, 5, 10, 20)]
        return self._multiples([max(1.0, step) for step in steps] if self.scale == "count" else steps, most)

    def _multiples(self, steps: Sequence[float], most: int) -> list[float]:
        """The multiples of the first step with few enough of them; at most one more, if there would be only one."""
        values: list[float] = []
        for step in steps:
            first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
            finer, many = values, last - first + 1
            values = [float(multiple * step) for multiple in range(first, last + 1)] if many <= most + 1 else []
            if many <= most:
                return values if many > 1 else finer or values
        return values

    def _log_ticks(self, most: int) -> list[float]:
        """Powers of ten, with 2 and 5 (or 3) times them if there is room; linear ticks within one power of ten."""
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        values: list[float] = []
        for factors in ((1, 2, 5), (1, 3), (1,)):
            candidates = [float(f"{factor}e{power}") for power in powers for factor in factors]
            values = [value for value in candidates if self.low * (1 - 1e-9) <= value <= self.high * (1 + 1e-9)]
            if len(values) <= most:
                break
        values = values[:: -(-len(values) // most) or 1]
        return values if len(values) > 1 or self.high > 100 * self.low else self._linear_ticks(most)


def _tick_labels(values: Sequence[float]) -> list[str]:
    """Evenly spaced values with as many decimals as their spacing needs, others as short as possible."""
    gaps = [right - left for left, right in pairwise(values)]
    if max(map(abs, values), default=0.0) >= 10_000:
        return [_trim_zeros(format_count(value)) for value in values]
    if min(gaps, default=0.0) < 1e-4 or max(gaps) > 1.5 * min(gaps):
        return [f"{value:.3g}" for value in values]
    decimals = max(0, -math.floor(math.log10(min(gaps)) + 1e-9))
    return [f"{value:.{decimals}f}" for value in values]


def _trim_zeros(count: str) -> str:
    """`20.0k` becomes `20k`."""
    number, unit = (count[:-1], count[-1]) if count[-1:].isalpha() else (count, "")
    return (number.rstrip("0").rstrip(".") if "." in number else number) + unit


class _Canvas:
    """A grid of styled characters, with tick labels to its left and below it."""

    def __init__(self, width: int, height: int) -> None:
        self.width = width
        self.height = height
        self.cells: list[list[tuple[str, str]]] = [[(" ", "")] * width for _ in range(height)]

    def render(self, rows: Mapping[int, str], columns: Mapping[int, str], *, ascii_only: bool) -> list["Text"]:
        """The grid with its axes; `rows` and `columns` are the tick labels by their place."""
        from rich.text import Text

        axis, tick, corner, rule, foot, faint = _FRAME[ascii_only]
        margin = max(map(len, rows.values()), default=0)
        lines: list[Text] = []
        for row, cells in enumerate(self.cells):
            line = Text(f"{rows.get(row, ''):>{margin}} {tick if row in rows else axis}", style=QUIET)
            ruled = [
                (faint, _GRID_LINE) if row in rows and letter == " " else (letter, style) for letter, style in cells
            ]
            for style, run in groupby(ruled, lambda cell: cell[1]):
                line.append("".join(letter for letter, _ in run), style=style)
            lines.append(line)
        edge = "".join(foot if column in columns else rule for column in range(self.width))
        indent = " " * (margin + 1)
        lines.append(Text(f"{indent}{corner}{edge}", style=QUIET))
        lines.append(Text(f"{indent} {_place_labels(columns, self.width)}", style=QUIET))
        return lines


def _place_labels(labels: Mapping[int, str], width: int) -> str:
    """The labels in one row, centred on their columns; those that do not fit are left out."""
    line = ""
    for column, text in sorted(labels.items()):
        start = min(max(0, column - (len(text) - 1) // 2), width - len(text))
        if start >= len(line) + bool(line):
            line += " " * (start - len(line)) + text
    return line


def _check_size(what: str, width: int, height: int) -> None:
    if width < MIN_WIDTH or height < MIN_HEIGHT:
        least = f"at least {MIN_WIDTH} and {MIN_HEIGHT}"
        raise InvalidArgument(f"{what}: width and height are {width} and {height}; expected {least}")


def _without_outliers(values: "NDArray[np.float64]", *, log: bool) -> "NDArray[np.float64]":
    """The values (with NaN) that are not further from the middle 96 % than their range is wide."""
    known = values[np.isfinite(values)]
    if not known.size:
        return known
    scaled = np.log(known) if log else known
    low, high = np.quantile(scaled, [0.02, 0.98])
    return known[(scaled >= 2 * low - high) & (scaled <= 2 * high - low)]


def _letter(number: int, *, ascii_only: bool, colors: bool) -> str | None:
    """The letter that the line of this number is drawn with; `None` for braille dots or blocks."""
    return _LETTERS[number % len(_LETTERS)] if ascii_only or (number and not colors) else None


def drawable_points(x: "ArrayLike", y: "ArrayLike", *, log: bool) -> "tuple[NDArray[np.float64], NDArray[np.float64]]":
    """Points as arrays, with NaN for every point that can't be drawn; on a log scale that includes y ≤ 0."""
    x, y = np.asarray(x, float), np.asarray(y, float)
    drawable = (np.abs(x) < _MAX_VALUE) & (np.abs(y) < _MAX_VALUE) & ((y > 1 / _MAX_VALUE) | (not log))
    return np.where(drawable, x, np.nan), np.where(drawable, y, np.nan)


def _draw_line(
    canvas: _Canvas,
    x: "NDArray[np.float64]",
    y: "NDArray[np.float64]",
    style: str,
    letter: str | None,
    dots: dict[tuple[int, int], int],
) -> None:
    """Draws points given as parts of the width and, from the top, of the height; `dots` collects the braille bits."""
    across, down = (1, 1) if letter else (2, 4)  # dots in a character
    known = np.isfinite(x) & np.isfinite(y)
    columns = np.rint(np.where(known, x, 0) * (canvas.width * across - 1)).astype(int)
    rows = np.rint(np.where(known, y, 0) * (canvas.height * down - 1)).astype(int)
    joined = known[:-1] & known[1:]
    for column, row in _connect(columns, rows, joined):
        cell = (row // down, column // across)
        dots[cell] = dots.get(cell, 0) | int(_BRAILLE_BITS[row % down, column % across])
        canvas.cells[cell[0]][cell[1]] = (letter or chr(0x2800 + dots[cell]), style)
    alone = known & ~np.r_[joined, False] & ~np.r_[False, joined]
    for column, row in zip(columns[alone].tolist(), rows[alone].tolist(), strict=True):
        canvas.cells[row // down][column // across] = (letter or "•", style)


def _connect(
    columns: "NDArray[np.int64]", rows: "NDArray[np.int64]", joined: "NDArray[np.bool_]"
) -> set[tuple[int, int]]:
    """The dots of the straight lines between neighbouring points, where `joined`."""
    start = np.flatnonzero(joined)
    if not start.size:
        return set()
    wide, tall = columns[start + 1] - columns[start], rows[start + 1] - rows[start]
    steps = np.maximum(np.maximum(np.abs(wide), np.abs(tall)), 1)
    counts = steps + 1
    segment = np.repeat(np.arange(start.size), counts)
    part = (np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)) / steps[segment]
    x = np.rint(columns[start][segment] + part * wide[segment]).astype(int)
    y = np.rint(rows[start][segment] + part * tall[segment]).astype(int)
    return set(zip(x.tolist(), y.tolist(), strict=True))


def _draw_bar(canvas: _Canvas, left: int, width: int, part: float, style: str, letter: str | None) -> None:
    """Draws a bar over `part` of the height; even the lowest is visible."""
    eighths = max(1, round(part * canvas.height * 8))
    for row in range(canvas.height):
        filled = min(8, eighths - 8 * (canvas.height - 1 - row))
        if filled <= 0 or (letter and filled < min(4, eighths)):
            continue
        for column in range(left, min(left + width, canvas.width)):
            canvas.cells[row][column] = (letter or _EIGHTHS[filled], style)
