"""Building HTML: values are escaped unless they are `Html` already, and a page is one file without scripts."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from stoker._text import escape_surrogates

_STYLE_SHEET = Path(__file__).parent / "report.css"  # light, dark and printed pages
_VOID = ("img", "meta")  # elements without an end tag
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src data:; base-uri 'none'; form-action 'none'"
)


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def to_html(value: Any) -> Html:
    """Escapes a value, unless it is HTML already.

    >>> to_html("<b>"), to_html(Html("<b>"))
    ('&lt;b&gt;', '<b>')
    """
    return value if isinstance(value, Html) else Html(escape(escape_surrogates(str(value))))


def join(parts: Iterable[Any]) -> Html:
    """Concatenates parts."""
    return Html("".join(to_html(part) for part in parts))


def element(tag: str, /, *content: Any, **attributes: Any) -> Html:
    """An element; attributes that are `None` are left out.

    >>> element("td", "a<b", class_="name"), element("meta", http_equiv="refresh")
    ('<td class="name">a&lt;b</td>', '<meta http-equiv="refresh">')
    """
    named = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items() if value is not None}
    start = " ".join([f"<{tag}", *(f'{name}="{to_html(value)}"' for name, value in named.items())]) + ">"
    return Html(start if tag in _VOID else f"{start}{join(content)}</{tag}>")


def section(title: str, *content: Any, folded: bool = False) -> Html:
    """A section with a heading, or one that the reader unfolds; empty without content."""
    if not join(content):
        return Html("")
    if folded:
        return element("section", element("details", element("summary", element("h2", title)), *content))
    return element("section", element("h2", title), *content)


def note(text: str) -> Html:
    """A paragraph in a quiet color; empty without text."""
    return element("p", text, class_="dim") if text else Html("")


def table(
    head: Sequence[Any], rows: Iterable[Sequence[Any]], *, bold: int | None = None, numbers: bool = False
) -> Html:
    """A table whose first column holds the row headings; `bold` is the number of a highlighted row."""
    lines = [element("tr", *(element("th", cell, scope="col") for cell in head))] if head else []
    for number, (first, *rest) in enumerate(rows):
        cells = (element("td", cell) for cell in rest)
        class_ = "best" if number == bold else None
        lines.append(element("tr", element("th", first, scope="row"), *cells, class_=class_))
    return element("div", element("table", *lines), class_="wide numbers" if numbers else "wide")


def pairs(values: Mapping[str, Any]) -> Html:
    """A table of names and values; empty values are left out."""
    rows = [(name, value) for name, value in values.items() if value not in (None, "")]
    return table((), rows) if rows else Html("")


def page(title: str, *content: Any) -> str:
    """A complete HTML file."""
    head = join(
        [
            element("meta", charset="utf-8"),
            element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("meta", name="referrer", content="no-referrer"),
            element("title", title),
            element("style", Html(_STYLE_SHEET.read_text(encoding="utf-8"))),
        ]
    )
    body = element("main", *content, element("footer", "made by stoker"))
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{body}</body></html>\n'
