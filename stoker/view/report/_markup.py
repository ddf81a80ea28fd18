"""HTML out of values: what is no `Html` yet is escaped, so that a hostile name is shown as the text that it is."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from stoker.view._svg import writable

_VOID = ("img", "meta")  # elements that have no end


class Html(str):
    """A text that is HTML already."""

    __slots__ = ()


def text(value: Any) -> Html:
    """A value as HTML.

    >>> text("<b>"), text(Html("<b>"))
    ('&lt;b&gt;', '<b>')
    """
    return value if isinstance(value, Html) else Html(escape(writable(str(value))))


def joined(parts: Iterable[Any]) -> Html:
    """Parts one after the other."""
    return Html("".join(text(part) for part in parts))


def element(tag: str, /, *content: Any, **attributes: Any) -> Html:
    """An element with its attributes; those that are None are left out.

    >>> element("td", "a<b", class_="name"), element("meta", http_equiv="refresh")
    ('<td class="name">a&lt;b</td>', '<meta http-equiv="refresh">')
    """
    given = ((name.rstrip("_").replace("_", "-"), value) for name, value in attributes.items() if value is not None)
    said = "".join(f' {name}="{text(value)}"' for name, value in given)
    return Html(f"<{tag}{said}>" if tag in _VOID else f"<{tag}{said}>{joined(content)}</{tag}>")


def section(title: str, *content: Any, folded: bool = False) -> Html:
    """A part of a page with its heading, or one to unfold; nothing where there is no content."""
    if not joined(content):
        return Html("")
    if folded:
        return element("section", element("details", element("summary", element("h2", title)), *content))
    return element("section", element("h2", title), *content)


def table(head: Sequence[Any], rows: Iterable[Sequence[Any]], *, bold: int | None = None) -> Html:
    """Rows of cells, the first of each a heading; `bold` is the place of a row that stands out."""
    lines = [element("tr", *(element("th", cell, scope="col") for cell in head))] if head else []
    for place, (first, *rest) in enumerate(rows):
        cells = (element("td", cell) for cell in rest)
        chosen = "best" if place == bold else None
        lines.append(element("tr", element("th", first, scope="row"), *cells, class_=chosen))
    return element("div", element("table", *lines), class_="wide")


def pairs(found: Mapping[str, Any]) -> Html:
    """Names with what they are, those that are empty left out."""
    rows = [(name, value) for name, value in found.items() if value not in (None, "")]
    return table((), rows) if rows else Html("")
