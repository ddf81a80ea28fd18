"""The table of epochs as a piece of a web page: small curves above a small table, and no script."""

import math
from collections.abc import Mapping, Sequence
from html import escape

from stoker.record._numbers import Best
from stoker.record._panels import panels
from stoker.record._text import Rows, abbreviated, number

_WIDTH, _HEIGHT = 260, 130  # pixels of a picture
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 8, 22, 32  # its margins: numbers, title, epochs and legend
_COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377")  # told apart by colour-blind eyes too
_PANELS, _LINES, _COLUMNS = 6, 6, 12  # more of each are left out
_STYLE = "font-family:sans-serif;font-size:12px"


def page(rows: Rows, columns: Sequence[str], best: Best | None) -> str:
    """Curves and table as HTML that needs nothing from outside."""
    if not rows:
        return f'<p style="{_STYLE}">no epochs yet</p>'
    grouped = list(panels(columns).items())[:_PANELS]
    pictures = "".join(
        curves(title, list(rows), {name: [row.get(name, math.nan) for row in rows.values()] for name in names}, best)
        for title, names in grouped
    )
    return f'<div style="{_STYLE}">{pictures}{_table(rows, columns, best)}</div>'


def curves(title: str, epochs: Sequence[int], series: Mapping[str, Sequence[float]], best: Best | None) -> str:
    """Some series over the epochs as an SVG picture; NaN and the infinities are left out."""
    lines = dict(list(series.items())[:_LINES])
    seen = [value for values in lines.values() for value in values if math.isfinite(value)]
    low, high = (min(seen), max(seen)) if seen else (0.0, 1.0)
    span, length = (high / 2 - low / 2) or 1.0, (epochs[-1] - epochs[0]) or 1  # halves: the whole may be infinite

    def at(epoch: int, value: float) -> tuple[float, float]:
        across = (epoch - epochs[0]) / length * (_WIDTH - _LEFT - _RIGHT)
        down = (high / 2 - value / 2) / span * (_HEIGHT - _TOP - _BOTTOM)
        return round(_LEFT + across, 1), round(_TOP + down, 1)

    parts = [_frame(title, low, high, epochs)]
    for place, (name, values) in enumerate(lines.items()):
        colour = _COLOURS[place % len(_COLOURS)]
        points = [at(epoch, value) for epoch, value in zip(epochs, values, strict=True) if math.isfinite(value)]
        if len(points) == 1:
            parts.append(f'<circle cx="{points[0][0]}" cy="{points[0][1]}" r="2" fill="{colour}"/>')
        elif points:
            path = " ".join(f"{x},{y}" for x, y in points)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        if best is not None and best.name == name and math.isfinite(best.value):
            x, y = at(best.epoch, best.value)
            parts.append(f'<circle cx="{x}" cy="{y}" r="3.5" fill="{colour}"><title>best</title></circle>')
        parts.append(_legend(place, len(lines), _short(name, title), colour))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        f'style="{_STYLE};font-size:10px" fill="#888">{"".join(parts)}</svg>'
    )


def _frame(title: str, low: float, high: float, epochs: Sequence[int]) -> str:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    texts = [
        f'<text x="{_LEFT}" y="13" font-weight="bold">{escape(title)}</text>',
        f'<text x="{_LEFT - 4}" y="{_TOP + 4}" text-anchor="end">{number(high)}</text>',
        f'<text x="{_LEFT - 4}" y="{bottom + 2}" text-anchor="end">{number(low)}</text>',
        f'<text x="{_LEFT}" y="{bottom + 13}">{epochs[0]}</text>',
        f'<text x="{right}" y="{bottom + 13}" text-anchor="end">{epochs[-1]}</text>',
    ]
    lines = f'<path d="M{_LEFT} {_TOP}V{bottom}H{right}" fill="none" stroke="#bbb"/>'
    return lines + "".join(texts)


def _legend(place: int, many: int, name: str, colour: str) -> str:
    x = _LEFT + place * (_WIDTH - _LEFT - _RIGHT) / max(many, 2)
    return f'<text x="{x:.0f}" y="{_HEIGHT - 4}" fill="{colour}">{escape(name)}</text>'


def _short(name: str, title: str) -> str:
    """What tells a line from the others in a picture that has a title: of "valid/recall/3" the "3"."""
    first, *rest = name.split("/")
    return rest[-1] if len(rest) > 1 else first if rest and rest[0] == title else name


def _table(rows: Rows, columns: Sequence[str], best: Best | None) -> str:
    shown, kept = abbreviated(list(rows), best, most=10), columns[:_COLUMNS]
    cell = 'style="text-align:right;padding:1px 8px"'
    head = "".join(f"<th {cell}>{escape(name)}</th>" for name in ("epoch", *kept))
    lines = [f"<tr>{head}</tr>"]
    for epoch in shown:
        texts = ["…"] * (len(kept) + 1) if epoch is None else [str(epoch), *(number(rows[epoch].get(k)) for k in kept)]
        weight = ' style="font-weight:bold"' if best is not None and epoch == best.epoch else ""
        lines.append(f"<tr{weight}>{''.join(f'<td {cell}>{text}</td>' for text in texts)}</tr>")
    below = f"best {escape(best.name)}: {number(best.value)} in epoch {best.epoch}" if best is not None else ""
    more = f"; {len(columns) - len(kept)} more columns" if len(kept) < len(columns) else ""
    return f'<table style="border-collapse:collapse">{"".join(lines)}</table><p>{below}{more}</p>'
