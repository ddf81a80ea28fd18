"""Media in a report: the newest of every name as a picture, text, table, histogram or sound inside the page."""

import base64
import json
from pathlib import Path
from typing import Any

from stoker._text import format_number, format_size
from stoker.errors import StokerError
from stoker.record import MEDIA_TYPES, Event, LineStyle, line_styles, read_media
from stoker.view._svg import SvgLine, svg_chart
from stoker.view.report._html import Html, element, join, note, table

_MAX_ITEMS, _MAX_BYTES = 24, 2_000_000  # more, and larger ones, are named only
_MAX_ROWS, _MAX_CHARACTERS = 20, 4000  # of a table and of a text


def media_html(media: list[Event], folder: Path | None) -> Html:
    """The newest item of every name; "" if there are none or the run has no directory."""
    newest = {str(event.extra.get("name")): event for event in media}
    if not newest or folder is None:
        return Html("")
    items = [_item(event, folder) for event in list(newest.values())[:_MAX_ITEMS]]
    left_out = len(newest) - len(items)
    more = note(f"{left_out} more names are left out" if left_out else "")
    return join([note("the newest of each name"), element("div", *items, class_="samples"), more])


def _item(event: Event, folder: Path) -> Html:
    caption = [f"{event.extra.get('name')}, update {event.update:,}", str(event.extra.get("caption") or "")]
    try:
        size = event.extra.get("bytes")
        if isinstance(size, int) and size > _MAX_BYTES:
            content = note(f"{format_size(size)}: too large for a report")
        else:
            content = _content(event, folder)
    except (StokerError, OSError, ValueError, LookupError, TypeError) as error:
        content = note(f"can't be read: {error}")
    return element("figure", content, element("figcaption", *(element("p", line) for line in caption if line)))


def _content(event: Event, folder: Path) -> Html:
    data, kind = read_media(folder, event), str(event.extra["type"])
    if kind in ("image", "audio"):
        source = f"data:{MEDIA_TYPES[kind][1]};base64,{base64.b64encode(data).decode()}"
        if kind == "image":
            return element("img", src=source, alt=str(event.extra.get("name")))
        return element("audio", src=source, controls="controls")
    text = data.decode("utf-8", "replace")
    if kind == "text":
        return element("pre", text[:_MAX_CHARACTERS] + ("…" if len(text) > _MAX_CHARACTERS else ""))
    values = json.loads(text)
    return _histogram(event, values) if kind == "histogram" else _table(values)


def _histogram(event: Event, values: dict[str, Any]) -> Html:
    """The counts as steps over the edges of the bins."""
    edges, counts = values["edges"], values["counts"]
    x = [edge for edge in edges for _ in (0, 1)][1:-1]
    y = [count for count in counts for _ in (0, 1)]
    line = SvgLine("count", x, y, LineStyle(line_styles(["train"])["train"].color))
    return Html(svg_chart(str(event.extra.get("name")), [line], width=300, height=180))


def _table(values: dict[str, Any]) -> Html:
    rows = [[format_number(cell) if isinstance(cell, float) else cell for cell in row] for row in values["rows"]]
    more = note(f"{len(rows) - _MAX_ROWS:,} more rows are left out" if len(rows) > _MAX_ROWS else "")
    return join([table(values["columns"], rows[:_MAX_ROWS]), more])
