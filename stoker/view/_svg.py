"""Lines as an SVG picture: for notebooks and pages, without a script and with nothing from outside."""

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from stoker._text import format_number
from stoker.record import LineStyle

_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 8, 22, 32  # pixels of margin: numbers, title, ticks and legend
_LETTER = 6.2  # pixels of a letter in the legend, at most
_DASHES = ("", ' stroke-dasharray="6 3"', ' stroke-dasharray="2 3"')


class Line(NamedTuple):
    """A line of a picture: numbers over others, and how it is drawn. What is not finite breaks it."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    look: LineStyle
    best: tuple[float, float] | None = None  # a point of it that is marked
    faint: bool = False  # stands behind the others, and has no label


def chart(
    title: str, lines: Sequence[Line], *, width: int = 260, height: int = 130, log: bool = False, axis: str = "epoch"
) -> str:
    """The lines in one picture, with round numbers at its sides.

    >>> line = Line("valid/loss", [1, 2, 3], [0.5, 0.2, 0.3], LineStyle("#E69F00"), best=(2, 0.2))
    >>> chart("loss", [line]).startswith("<svg ")
    True
    """
    area = _Area(lines, width, height, log)
    drawn = [_line(area, line) for line in sorted(lines, key=lambda line: not line.faint)]
    whole = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" font-family="sans-serif" font-size="10" fill="#888"><title>{escape(title)}</title>'
        f"{_frame(area, title, axis)}{''.join(drawn)}{_legend(area, title, lines)}</svg>"
    )
    return writable(whole)


def writable(html: str) -> str:
    r"""The same without half letters, which no file and no notebook takes.

    >>> writable("a\ud800")
    'a\\ud800'
    """
    return html.encode("utf-8", "backslashreplace").decode()


class _Area:
    """Where numbers stand in the picture."""

    def __init__(self, lines: Sequence[Line], width: int, height: int, log: bool) -> None:
        self.right, self.bottom, self.height, self.log = width - _RIGHT, height - _BOTTOM, height, log
        self.low, self.high = _ends([value for line in lines for value in line.y])
        self.first, self.last = _ends([place for line in lines for place in line.x])

    def x(self, place: float) -> float:
        return round(_LEFT + _share(place, self.first, self.last) * (self.right - _LEFT), 1)

    def y(self, value: float) -> float:
        scale = math.log if self.log else float
        return round(self.bottom - _share(scale(value), scale(self.low), scale(self.high)) * (self.bottom - _TOP), 1)


def _ends(values: Sequence[float]) -> tuple[float, float]:
    seen = [float(value) for value in values if math.isfinite(value)]
    return (min(seen), max(seen)) if seen else (0.0, 1.0)


def _share(value: float, low: float, high: float) -> float:
    span = high / 2 - low / 2  # halves: the whole may be infinite
    return (value / 2 - low / 2) / span if span else 0.0


def _line(area: _Area, line: Line) -> str:
    parts: list[str] = []
    stroke = f'stroke="{line.look.color}" stroke-width="1.5"{_DASHES[line.look.dash]}'
    if line.faint:
        stroke += ' stroke-opacity="0.35"'
    for piece in _pieces(line):
        points = [(area.x(x), area.y(y)) for x, y in piece]
        if len(points) == 1:
            parts.append(f'<circle cx="{points[0][0]:g}" cy="{points[0][1]:g}" r="2" fill="{line.look.color}"/>')
        else:
            path = " ".join(f"{x:g},{y:g}" for x, y in points)
            parts.append(f'<polyline points="{path}" fill="none" {stroke}/>')
    if line.best is not None and all(map(math.isfinite, line.best)):
        x, y = area.x(line.best[0]), area.y(line.best[1])
        parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="3.5" fill="{line.look.color}"><title>best</title></circle>')
    return "".join(parts)


def _pieces(line: Line) -> list[list[tuple[float, float]]]:
    """The points between those that are not finite."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for x, y in zip(line.x, line.y, strict=True):
        if math.isfinite(y):
            pieces[-1].append((x, y))
        elif pieces[-1]:
            pieces.append([])
    return [piece for piece in pieces if piece]


def _frame(area: _Area, title: str, axis: str) -> str:
    parts = [f'<text x="{_LEFT}" y="13" font-weight="bold">{escape(title)}</text>']
    for value in ticks(area.low, area.high, max(2, (area.bottom - _TOP) // 28), log=area.log):
        y = area.y(value)
        parts.append(f'<path d="M{_LEFT} {y:g}H{area.right}" stroke="#888" stroke-opacity="0.2"/>')
        parts.append(f'<text x="{_LEFT - 4}" y="{y + 3:g}" text-anchor="end">{_tick(value)}</text>')
    places = [area.first, area.last] if area.last > area.first else [area.first]
    for place, anchor in zip(places, ("start", "end"), strict=False):
        told = f"{place:,.0f}" if place.is_integer() and abs(place) < 1e12 else _tick(place)
        text = f"{axis} {told}" if anchor == "start" else told
        parts.append(f'<text x="{area.x(place):g}" y="{area.bottom + 13}" text-anchor="{anchor}">{escape(text)}</text>')
    return "".join(parts) + f'<path d="M{_LEFT} {_TOP}V{area.bottom}H{area.right}" fill="none" stroke="#888"/>'


def _tick(value: float) -> str:
    """A number beside an axis: short, as it is mostly a round one."""
    short = f"{value:.12g}"
    return short if len(short.lstrip("-")) <= 5 else format_number(value)


def _legend(area: _Area, title: str, lines: Sequence[Line]) -> str:
    parts: list[str] = []
    x = float(_LEFT)
    shown = [line for line in lines if not line.faint]
    room = (area.right - _LEFT) / max(len(shown), 1)
    for line in shown:
        label = _short(line.label, title)
        label = label if len(label) * _LETTER <= max(room, 60) else f"{label[: int(max(room, 60) / _LETTER) - 1]}…"
        parts.append(f'<text x="{x:.0f}" y="{area.height - 4}" fill="{line.look.color}">{escape(label)}</text>')
        x += len(label) * _LETTER + 10
    return "".join(parts)


def _short(name: str, title: str) -> str:
    """What tells a line from the others in a picture that has a title: of "valid/recall/3" the "3"."""
    first, *rest = name.split("/")
    return rest[-1] if len(rest) > 1 and rest[0] == title else first if rest and rest[0] == title else name


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
