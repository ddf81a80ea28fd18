"""A fit as a card in a notebook: what came out, above its curves and the table of its epochs. No script."""

from stoker._text import format_duration as duration
from stoker.record import History, Record
from stoker.view.report._markup import Html, element, text

_STYLE = (
    "border:1px solid #8884;border-radius:6px;padding:10px 14px;display:inline-block;max-width:100%;overflow-x:auto"
)


def fitted_html(record: Record, *, title: str = "", stopped: str = "") -> str:
    """A fit's record as HTML for a notebook, light or dark: a line or two above the curves and the table of epochs.

    >>> from stoker.record import Event
    >>> record = Record()
    >>> record.append(Event("valid", 1.0, epoch=1, update=10, values={"valid/loss": 0.5}))
    >>> "best valid/loss" in fitted_html(record, title="Net")
    True
    """
    told = record.summary()
    name = element("b", title or told["model"] or "a model")
    length = f" fitted: {told['epochs']} epochs, {told['updates']:,} updates in {duration(told['seconds'])}"
    where = f" on {told['device']}" if told["device"] else ""
    end = stopped or told["reason"] or told["state"]
    lines = [element("div", name, length, where), element("div", text(end), style="opacity:.7")]
    history = Html(History(record)._repr_html_())
    return element("div", *lines, history, style=f"font-family:sans-serif;font-size:13px;{_STYLE}")
