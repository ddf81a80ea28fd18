"""A static line chart as SVG for reports and notebooks: no script, nothing loaded from elsewhere."""

import math
from collections.abc import Sequence
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stoker._text import escape_surrogates, shorten
from stoker.record import LineStyle
from stoker.view._chart import Axis, drawable_points

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 8, 22, 32  # margins in pixels
_CHARACTER = 6.2  # the width of a character in pixels, at most
_DASHES = ("", ' stroke-dasharray="6 3"', ' stroke-dasharray="2 3"')


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
    points = [drawable_points(line.x, line.y, log=log) for line in lines]
    is_count = all(np.all(x[np.isfinite(x)] % 1 == 0) for x, _ in points)
    x_axis = Axis.around([x for x, _ in points], "count" if is_count else "number")
    y_axis = Axis.around([y for _, y in points], "log" if log else "number")
    right, bottom = width - _RIGHT, height - _BOTTOM

    def x_pixels(values: "ArrayLike") -> list[float]:
        return np.round(_LEFT + x_axis.position(values) * (right - _LEFT), 1).tolist()

    def y_pixels(values: "ArrayLike") -> list[float]:
        return np.round(bottom - y_axis.position(values) * (bottom - _TOP), 1).tolist()

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" font-family="sans-serif" font-size="10" fill="#888"><title>{escape(title)}</title>',
        f'<text x="{_LEFT}" y="13" font-weight="bold">{escape(title)}</text>',
        f'<path d="M{_LEFT} {_TOP}V{bottom}H{right}" fill="none" stroke="#888"/>',
    ]
    y_ticks = y_axis.ticks(max(2, (bottom - _TOP) // 28))
    for y, label in zip(y_pixels(list(y_ticks)), y_ticks.values(), strict=True):
        parts.append(f'<path d="M{_LEFT} {y:g}H{right}" stroke="#888" stroke-opacity="0.2"/>')
        parts.append(f'<text x="{_LEFT - 4}" y="{y + 3:g}" text-anchor="end">{label}</text>')
    x_ticks = x_axis.ticks(max(2, (right - _LEFT) // 70))
    for x, label in zip(x_pixels(list(x_ticks)), x_ticks.values(), strict=True):
        middle = min(x, width - len(label) * _CHARACTER / 2)  # a label at the right end must not be cut
        parts.append(f'<text x="{middle:g}" y="{bottom + 13}" text-anchor="middle">{label}</text>')
    if x_label:  # left of the first tick's label
        parts.append(f'<text x="0" y="{bottom + 13}">{escape(x_label)}</text>')
    drawn = [(line, x_pixels(x), y_pixels(y)) for line, (x, y) in zip(lines, points, strict=True)]
    for line, x, y in sorted(drawn, key=lambda item: not item[0].faint):  # the background first
        parts += _draw_line(line, x, y)
        best = drawable_points([line.best[0]], [line.best[1]], log=log) if line.best is not None else None
        if best is not None and np.isfinite(best).all():
            center = f'cx="{x_pixels(best[0])[0]:g}" cy="{y_pixels(best[1])[0]:g}"'
            parts.append(f'<circle {center} r="3.5" fill="{line.style.color}"><title>best</title></circle>')
    parts += _draw_legend(title, [line for line in lines if not line.faint], right, height)
    return escape_surrogates("".join([*parts, "</svg>"]))


def _draw_line(line: SvgLine, x: list[float], y: list[float]) -> list[str]:
    """The pieces of a line between its gaps; a single point is a small circle."""
    opacity = ' stroke-opacity="0.35"' if line.faint else ""
    stroke = f'stroke="{line.style.color}" stroke-width="1.5"{_DASHES[line.style.dash]}{opacity}'
    parts: list[str] = []
    for known, piece in groupby(zip(x, y, strict=True), lambda point: not math.isnan(point[0])):
        points = list(piece) if known else []
        if len(points) == 1:
            parts.append(f'<circle cx="{points[0][0]:g}" cy="{points[0][1]:g}" r="2" fill="{line.style.color}"/>')
        elif points:
            path = " ".join(f"{x:g},{y:g}" for x, y in points)
            parts.append(f'<polyline points="{path}" fill="none" {stroke}/>')
    return parts


def _draw_legend(title: str, lines: Sequence[SvgLine], right: int, height: int) -> list[str]:
    parts: list[str] = []
    x = float(_LEFT)
    room = max(60.0, (right - _LEFT) / max(len(lines), 1))
    for line in lines:
        label = shorten(_short_label(line.label, title), int(room / _CHARACTER))
        parts.append(f'<text x="{x:.0f}" y="{height - 4}" fill="{line.style.color}">{escape(label)}</text>')
        x += len(label) * _CHARACTER + 10
    return parts


def _short_label(name: str, title: str) -> str:
    """The part of a name that the chart's title does not say: "3" of "valid/recall/3" in the chart "recall"."""
    first, *rest = name.split("/")
    if not rest or rest[0] != title:
        return name
    return rest[-1] if len(rest) > 1 else first
