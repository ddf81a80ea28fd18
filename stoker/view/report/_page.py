"""A whole page in one file: it asks for nothing from outside, and nothing in it runs."""

from typing import Any

from stoker.view.report._markup import Html, element, joined
from stoker.view.report._style import STYLE

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


def page(title: str, *content: Any) -> str:
    """The text of a file that any browser opens."""
    head = joined(
        [
            element("meta", charset="utf-8"),
            element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("meta", name="referrer", content="no-referrer"),
            element("title", title),
            element("style", Html(STYLE)),
        ]
    )
    body = element("main", *content, element("footer", "made by stoker"))
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{body}</body></html>\n'
