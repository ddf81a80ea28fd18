"""The parts of a report that tell what a run said: warnings and errors, checkpoints, and its log."""

from stoker._text import format_size as size
from stoker._text import format_time as when
from stoker.view.report._markup import Html, element, joined, section, table
from stoker.view.report._readable import Readable

_TOLD, _TRACE, _CHECKPOINTS, _LOG = 100, 4000, 20, 200  # events at either end, letters, checkpoints, lines
_KINDS = ("note", "warning", "stop", "error", "resume")


def said(run: Readable) -> Html:
    """Notes, warnings and what went wrong, in order."""
    events = [event for event in run.messages if event.kind in _KINDS]
    left = max(0, len(events) - 2 * _TOLD)
    rows = []
    for event in [*events[:_TOLD], *events[_TOLD + left :]]:
        trace = str(event.extra.get("traceback", ""))[-_TRACE:]
        text = joined([event.text, element("pre", trace) if trace else ""])
        rows.append((when(event.time), element("span", event.kind, class_=event.kind), f"epoch {event.epoch}", text))
    more = element("p", f"{left:,} in the middle are left out", class_="dim") if left else ""
    return section("What was said", table((), rows) if rows else "", more)


def checkpoints(run: Readable) -> Html:
    """The newest checkpoints that were written."""
    found = [event for event in run.messages if event.kind == "checkpoint"]
    rows = [
        (
            event.extra.get("name", ""),
            event.epoch,
            f"{event.update:,}",
            event.extra.get("reason", ""),
            size(many) if isinstance(many := event.extra.get("bytes"), int) else "",
            when(event.time),
        )
        for event in found[-_CHECKPOINTS:]
    ]
    more = (
        element("p", f"the newest of {len(found):,} that were written", class_="dim") if len(found) > len(rows) else ""
    )
    shown = table(("name", "epoch", "update", "why", "size", "when"), rows) if rows else ""
    return section("Checkpoints", shown, more, folded=True)


def log(run: Readable) -> Html:
    """The last lines of the log."""
    return section("Log", element("pre", "\n".join(run.log[-_LOG:])) if run.log else "", folded=True)
