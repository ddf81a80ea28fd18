"""A static line chart as SVG for reports and notebooks: no script, nothing loaded from elsewhere."""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from stoker.record import LineStyle
from stoker.view._chart import Axis

_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 8, 22, 32  # margins in pixels
_CHARACTER = 6.2  # the width of a character in pixels, at most
_DASHES = ("", ' stroke-dasharray="6 3"', ' stroke-dasharray="2 3"')
_MAX_VALUE = 1e300  # differences of larger values overflow


class SvgLine(NamedTuple):
    """A line of a chart. Values that are not finite interrupt it."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    style: LineStyle
    best: tuple[float, float] | None = None  # a point that gets a marker
    faint: bool = False  # a background line without a label


def svg_chart(
    title: str, lines: Sequence[SvgLine], *, width: int, height: int, log: bool = False, x_label: str = ""
) -> str:
    """Draws lines with axes and a legend as an `<svg>` element.

    >>> line = SvgLine("valid/loss", [1, 2, 3], [0.5, 0.2, 0.3], LineStyle("#E69F00"), best=(2, 0.2))
    >>> svg_chart("loss", [line], width=260, height=130).startswith("<svg ")
    True
    """
    plot = _Plot(lines, width, height, log=log)
    background_first = sorted(lines, key=lambda line: not line.faint)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" font-family="sans-serif" font-size="10" fill="#888"><title>{escape(title)}</title>',
        f'<text x="{_LEFT}" y="13" font-weight="bold">{escape(title)}</text>',
        plot.draw_axes(x_label),
        *map(plot.draw_line, background_first),
        plot.draw_legend(title, [line for line in lines if not line.faint]),
        "</svg>",
    ]
    return escape_surrogates("".join(parts))


def escape_surrogates(text: str) -> str:
    r"""The text with lone surrogates, which can't be encoded as UTF-8, written as escapes.

    >>> escape_surrogates("a\ud800")
    'a\\ud800'
    """
    return text.encode("utf-8", "backslashreplace").decode()


class _Plot:
    """Maps values to pixels and draws the parts of a chart."""

    def __init__(self, lines: Sequence[SvgLine], width: int, height: int, *, log: bool) -> None:
        self.right, self.bottom, self.height, self.log = width - _RIGHT, height - _BOTTOM, height, log
        points = [point for line in lines for point in zip(line.x, line.y, strict=True) if self._is_drawable(point)]
        x, y = np.array(points, dtype=float).reshape(-1, 2).T
        self.x_axis = Axis.around([x], "count" if np.all(x == np.rint(x)) else "number")
        self.y_axis = Axis.around([y], "log" if log else "number")

    def _is_drawable(self, point: tuple[float, float]) -> bool:
        x, y = point
        return abs(x) < _MAX_VALUE and abs(y) < _MAX_VALUE and (y > 1 / _MAX_VALUE or not self.log)

    def _x(self, value: float) -> float:
        return round(_LEFT + float(self.x_axis.position(value)) * (self.right - _LEFT), 1)

    def _y(self, value: float) -> float:
        return round(self.bottom - float(self.y_axis.position(value)) * (self.bottom - _TOP), 1)

    def draw_axes(self, x_label: str) -> str:
        parts = [f'<path d="M{_LEFT} {_TOP}V{self.bottom}H{self.right}" fill="none" stroke="#888"/>']
        for value, label in self.y_axis.ticks(max(2, (self.bottom - _TOP) // 28)).items():
            y = self._y(value)
            parts.append(f'<path d="M{_LEFT} {y:g}H{self.right}" stroke="#888" stroke-opacity="0.2"/>')
            parts.append(f'<text x="{_LEFT - 4}" y="{y + 3:g}" text-anchor="end">{label}</text>')
        ticks = self.x_axis.ticks(max(2, (self.right - _LEFT) // 70))
        for value, label in ticks.items():
            text = f'<text x="{self._x(value):g}" y="{self.bottom + 13}" text-anchor="middle">{label}</text>'
            parts.append(text)
        if x_label:
            parts.append(f'<text x="{_LEFT - 4}" y="{self.bottom + 13}" text-anchor="end">{escape(x_label)}</text>')
        return "".join(parts)

    def draw_line(self, line: SvgLine) -> str:
        color = line.style.color
        stroke = f'stroke="{color}" stroke-width="1.5"{_DASHES[line.style.dash]}'
        if line.faint:
            stroke += ' stroke-opacity="0.35"'
        parts: list[str] = []
        for piece in self._pieces(line):
            if len(piece) == 1:
                parts.append(f'<circle cx="{piece[0][0]:g}" cy="{piece[0][1]:g}" r="2" fill="{color}"/>')
            else:
                path = " ".join(f"{x:g},{y:g}" for x, y in piece)
                parts.append(f'<polyline points="{path}" fill="none" {stroke}/>')
        if line.best is not None and self._is_drawable(line.best):
            x, y = self._x(line.best[0]), self._y(line.best[1])
            parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="3.5" fill="{color}"><title>best</title></circle>')
        return "".join(parts)

    def _pieces(self, line: SvgLine) -> list[list[tuple[float, float]]]:
        """The drawable stretches of a line, in pixels."""
        pieces: list[list[tuple[float, float]]] = [[]]
        for point in zip(line.x, line.y, strict=True):
            if self._is_drawable(point):
                pieces[-1].append((self._x(point[0]), self._y(point[1])))
            else:
                pieces.append([])
        return [piece for piece in pieces if piece]

    def draw_legend(self, title: str, lines: Sequence[SvgLine]) -> str:
        parts: list[str] = []
        x = float(_LEFT)
        room = max(60.0, (self.right - _LEFT) / max(len(lines), 1))
        for line in lines:
            label = _short_label(line.label, title)
            if len(label) * _CHARACTER > room:
                label = f"{label[: int(room / _CHARACTER) - 1]}…"
            parts.append(f'<text x="{x:.0f}" y="{self.height - 4}" fill="{line.style.color}">{escape(label)}</text>')
            x += len(label) * _CHARACTER + 10
        return "".join(parts)


def _short_label(name: str, title: str) -> str:
    """The part of a name that the chart's title does not say: "3" of "valid/recall/3" in the chart "recall"."""
    first, *rest = name.split("/")
    if not rest or rest[0] != title:
        return name
    return rest[-1] if len(rest) > 1 else first
