"""Building HTML: values are escaped unless they are `Html` already, and a page is one file without scripts."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from stoker.view._svg import escape_surrogates

_VOID = ("img", "meta")  # elements without an end tag
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


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
    """A table whose first column holds the row headings; `bold` is the place of a highlighted row."""
    lines = [element("tr", *(element("th", cell, scope="col") for cell in head))] if head else []
    for place, (first, *rest) in enumerate(rows):
        cells = (element("td", cell) for cell in rest)
        class_ = "best" if place == bold else None
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
            element("style", Html(_STYLE)),
        ]
    )
    body = element("main", *content, element("footer", "made by stoker"))
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{body}</body></html>\n'


# Light, dark and printed pages.
_STYLE = """
:root {
  color-scheme: light dark;
  --paper: #fff; --ink: #1b1f24; --dim: #68707a; --line: #d9dee3; --card: #f6f8fa;
  --good: #00805d; --bad: #c04f00; --busy: #0072b2;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14171a; --ink: #e6e8ea; --dim: #99a1aa; --line: #333a41; --card: #1d2126;
    --good: #2fc79b; --bad: #f08a4b; --busy: #56b4e9;
  }
}
* { box-sizing: border-box }
body {
  max-width: 1100px; margin: 0 auto; padding: 24px 20px 60px;
  background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif;
}
h1 { font-size: 26px; margin: 0; overflow-wrap: anywhere }
h2 { font-size: 17px; margin: 0 0 10px; display: inline-block; overflow-wrap: anywhere }
p { margin: 4px 0 }
section { margin-top: 34px }
.dim, footer, figcaption { color: var(--dim) }
footer { margin-top: 40px; font-size: 13px }
summary { cursor: pointer }
pre {
  background: var(--card); padding: 10px; font-size: 12.5px; white-space: pre-wrap; overflow-wrap: anywhere;
}

.state { font-weight: 600 }
.finished { color: var(--good) }
.running { color: var(--busy) }
.died, .failed, .gone, .interrupted, .warning, .error { color: var(--bad) }

.cards { display: flex; flex-wrap: wrap; gap: 10px; margin-top: 18px; font-size: 13px; color: var(--dim) }
.cards > div, .samples figure {
  background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: 8px 14px;
}
.cards b {
  display: block; color: var(--ink); font-size: 19px; font-variant-numeric: tabular-nums; overflow-wrap: anywhere;
}

.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 320px), 1fr)); gap: 18px }
figure { margin: 0; break-inside: avoid }
svg { display: block; width: 100%; height: auto; fill: var(--dim) }

.wide { overflow-x: auto; margin-bottom: 14px }
table { border-collapse: collapse; font-size: 13.5px; font-variant-numeric: tabular-nums }
th, td { padding: 3px 14px 3px 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line) }
td { overflow-wrap: break-word }
th { font-weight: 500 }
th[scope=col] { color: var(--dim); white-space: nowrap }
tr.best > * { font-weight: 700 }
.numbers td, .numbers th[scope=col]:not(:first-child) { text-align: right; padding: 3px 0 3px 18px }
.key::before {
  content: ""; display: inline-block; width: 12px; height: 3px; margin: 0 5px 3px 0; background: var(--own);
}

.matrix td, .matrix th { border: 0; padding: 4px 8px; text-align: right; white-space: nowrap }
.matrix td { min-width: 36px; background: rgb(0 114 178 / var(--share)) }
.matrix td.full { color: #fff }

.samples { display: grid; grid-template-columns: repeat(auto-fill, minmax(140px, 1fr)); gap: 14px; font-size: 13px }
img { display: block; width: 100%; max-width: 420px; image-rendering: pixelated }

@media print {
  :root {
    color-scheme: light;
    --paper: #fff; --ink: #000; --dim: #555; --line: #ccc; --card: #fff;
    --good: #00805d; --bad: #c04f00; --busy: #0072b2;
  }
  body { max-width: none; padding: 0; font-size: 11px }
  td { print-color-adjust: exact; -webkit-print-color-adjust: exact }
  .wide { overflow: visible }
  .grid { grid-template-columns: repeat(2, 1fr) }
  h2 { break-after: avoid }
}
"""
