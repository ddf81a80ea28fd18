"""A fit in a notebook: one output that is brought up to date in its place."""

import math
import sys
from html import escape

from stoker.record import Event, Record, line_styles, number, use_log_scale
from stoker.view._svg import Line, chart
from stoker.view.console._format import duration, plain_number
from stoker.view.console._pace import Pace
from stoker.view.console._story import aside, ending, reason, speed, title
from stoker.view.console._watch import Watch

_WIDTH, _HEIGHT = 400, 150  # of the plot, in pixels
_COLOUR = line_styles(["train"])["train"].color
_STYLE = "font-family:ui-monospace,monospace;font-size:13px;line-height:1.5"


def in_notebook() -> bool:
    """Whether this process is a notebook's kernel."""
    if "IPython" not in sys.modules:
        return False
    from IPython.core.getipython import get_ipython

    return getattr(get_ipython(), "kernel", None) is not None


class Notebook:
    """A listener that keeps one output up to date; an update is a message to the browser, so there are two a second."""

    def __init__(self, record: Record, *, pace: Pace | None = None) -> None:
        from IPython.display import HTML, DisplayHandle

        self.watch = Watch(record)
        self.pace = pace or Pace(every=0.5)
        self.handle = DisplayHandle()
        self.html = HTML
        self.notes: list[str] = []
        self.shown = self.closed = False

    def __call__(self, event: Event) -> None:
        """Takes an event in, and updates the output where it is time to."""
        if self.closed:
            return
        self.watch.see(event)
        if line := aside(event):
            self.notes.append(line)
        elif event.kind == "end":
            self.close()
            return
        if self.watch.begin and self.pace.due():
            with self.pace.drawing():
                self._show()

    def close(self) -> None:
        """Leaves how it ended; nothing to do the second time."""
        if not self.closed and self.watch.begin:
            self.closed = True
            self._show()

    def _show(self) -> None:
        page = self.html(html(self.watch, self.notes, over=self.closed))
        if self.shown:
            self.handle.update(page)
        else:
            self.handle.display(page)
            self.shown = True


def html(watch: Watch, notes: list[str], *, over: bool) -> str:
    """The fit as a piece of HTML: title, bars, table and plot; when it is over, how it ended in place of the bars."""
    parts = [f"<div><b>{escape(title(watch))}</b></div>"]
    if over:
        parts += [f"<div>{escape(text)}</div>" for text in (reason(watch), ending(watch)) if text]
    else:
        left = watch.left()
        times = duration(watch.seconds) + (f", {duration(left)} left" if left is not None else "")
        epoch = f"epoch {watch.epoch}" + (f"/{watch.planned('epochs')}" if watch.planned("epochs") else "")
        parts += [_bar(epoch, watch.within(), speed(watch)), _bar("total", watch.fraction(), times)]
    meters = " · ".join(f"{name} {plain_number(value)}" for name, value in watch.meters().items())
    parts.append(f'<div style="opacity:.6">{escape(meters)}</div>')
    parts.append(f'<div style="display:flex;gap:2em;align-items:flex-start">{_table(watch)}{_plot(watch)}</div>')
    parts += [f"<div>{escape(note)}</div>" for note in notes]
    return f'<div style="{_STYLE}">{"".join(parts)}</div>'


def _bar(label: str, share: float | None, text: str) -> str:
    width, bar = 100 * (share or 0.0), "height:6px;border-radius:3px"
    return (
        f'<div style="display:flex;gap:1em;align-items:center"><span style="min-width:9em">{escape(label)}</span>'
        f'<span style="width:20em;{bar};background:#8884">'
        f'<span style="display:block;width:{width:.1f}%;{bar};background:{_COLOUR}"></span></span>'
        f"<span>{escape(text)}</span></div>"
    )


def _table(watch: Watch) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in ("", *watch.sets, "best", "epoch"))
    lines = [f"<tr>{head}</tr>"]
    for row in watch.rows():
        cells = [f'<td style="text-align:left">{escape(row.name)}</td>']
        for group in watch.sets:
            text = number(row.values[group]) if group in row.values else ""
            better = row.improved and group == watch.watched
            cells.append(f"<td><b>{text}*</b></td>" if better else f"<td>{text}</td>")
        cells.append(
            f"<td>{number(row.best.value)}</td><td>{row.best.epoch}</td>" if row.best else "<td></td><td></td>"
        )
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table>{''.join(lines)}</table>" if len(lines) > 1 else ""


def _plot(watch: Watch) -> str:
    """The losses as one picture; empty before there are any."""
    curves = watch.curves()
    every = [value for values in curves.values() for value in values]
    if not any(map(math.isfinite, every)):
        return ""
    colours = line_styles(curves)
    lines = [Line(name, range(1, len(values) + 1), values, colours[name]) for name, values in curves.items()]
    axis = "epoch" if curves["train/loss"] is not watch.running else ""
    return chart("loss", lines, width=_WIDTH, height=_HEIGHT, log=use_log_scale(every), axis=axis)
