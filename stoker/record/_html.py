"""The table of epochs as a piece of a web page: small curves above a small table, and no script."""

import math
from collections.abc import Sequence
from html import escape

from stoker.record._chart import Line, chart, writable
from stoker.record._looks import looks
from stoker.record._numbers import Best
from stoker.record._panels import panels
from stoker.record._scale import wants_log
from stoker.record._text import Rows, abbreviated, number

_PANELS, _LINES, _COLUMNS = 6, 6, 12  # more of each are left out
_STYLE = "font-family:sans-serif;font-size:12px"


def page(rows: Rows, columns: Sequence[str], best: Best | None, *, falling: frozenset[str] = frozenset()) -> str:
    """Curves and table as HTML that needs nothing from outside; of what is `falling`, less is better."""
    if not rows:
        return f'<p style="{_STYLE}">no epochs yet</p>'
    grouped = panels(columns)
    kept = {name for names in grouped.values() for name in names}  # all but the cells of matrices
    columns = [name for name in columns if name in kept] or columns
    pictures = "".join(
        picture(title, rows, names, best, falling=falling) for title, names in list(grouped.items())[:_PANELS]
    )
    return writable(f'<div style="{_STYLE}">{pictures}{table(rows, columns, best)}</div>')


def picture(
    title: str, rows: Rows, names: Sequence[str], best: Best | None, *, falling: frozenset[str] = frozenset()
) -> str:
    """Some numbers over the epochs; an epoch without one is passed over."""
    lines: list[Line] = []
    look = looks(names)
    for name in names[:_LINES]:
        found = {epoch: value for epoch, row in rows.items() if math.isfinite(value := row.get(name, math.nan))}
        marked = (best.epoch, best.value) if best is not None and best.name == name else None
        lines.append(Line(name, list(found), list(found.values()), look[name], marked))
    log = falling.issuperset(names) and wants_log(value for line in lines for value in line.y)
    return chart(title, lines, log=log)


def table(rows: Rows, columns: Sequence[str], best: Best | None) -> str:
    """The first and last epochs, and the best one, with as many columns as a page is wide."""
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
