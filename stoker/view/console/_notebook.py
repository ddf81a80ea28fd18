"""A fit in a notebook: one HTML output that is updated in place."""

import sys
from html import escape

from stoker._text import escape_surrogates, format_duration, format_number, format_short
from stoker.record import Event, Record, Status, line_styles
from stoker.view._svg import SvgLine, svg_chart
from stoker.view._tables import DataSets, MetricRow
from stoker.view.console._progress import (
    FitProgress,
    describe_end,
    describe_event,
    describe_model,
    describe_reason,
    describe_speed,
)
from stoker.view.console._terminal import Pace

_STYLE = "font-family:ui-monospace,monospace;font-size:13px;line-height:1.5"


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    if "IPython" not in sys.modules:
        return False
    from IPython.core.getipython import get_ipython

    return getattr(get_ipython(), "kernel", None) is not None


class NotebookConsole:
    """A listener that updates one output; every update is a message to the browser, so they are limited."""

    def __init__(self, record: Record, *, interval: float) -> None:
        from IPython.display import HTML, DisplayHandle

        self._progress = FitProgress(record)
        self._pace = Pace(interval)
        self._handle, self._html = DisplayHandle(), HTML
        self._notes: list[str] = []
        self._shown = self._closed = False

    def __call__(self, event: Event) -> None:
        """Takes an event into account, and updates the output if an update is due."""
        if self._closed:
            return
        self._progress.add(event)
        if line := describe_event(event):
            self._notes.append(line)
        elif event.kind == "end":
            self.close()
            return
        if self._progress.plan is not None and self._pace.is_due():
            with self._pace.measure():
                self._show()

    def close(self) -> None:
        """Shows how the fit ended; a second call does nothing."""
        if not self._closed and self._progress.plan is not None:
            self._closed = True
            self._show()

    def _show(self) -> None:
        output = self._html(_render(self._progress, self._notes, ended=self._closed))
        if self._shown:
            self._handle.update(output)
        else:
            self._handle.display(output)
            self._shown = True


def _render(progress: FitProgress, notes: list[str], *, ended: bool) -> str:
    """The fit as HTML: title, progress bars (or how it ended), table, loss curves and notes."""
    status = progress.record.status()
    metrics, others = progress.rows(status)
    parts = [f"<div><b>{escape(describe_model(progress))}</b></div>"]
    if ended:
        parts += [f"<div>{escape(text)}</div>" for text in (describe_reason(progress), describe_end(progress)) if text]
    else:
        left = f", {format_duration(status.seconds_left)} left" if status.seconds_left is not None else ""
        planned = progress.setting("epochs")
        epoch = f"epoch {status.epoch}" + (f"/{planned}" if planned else "")
        parts.append(_bar(epoch, status.phase_fraction, describe_speed(status)))
        parts.append(_bar("total", status.fraction, format_duration(status.seconds) + left))
    texts = [f"{row.name} {format_short(row.values[''])}" for row in others]
    parts.append(f'<div style="opacity:.6">{escape(" · ".join(texts))}</div>')
    columns = f"{_table(progress, metrics, progress.sets(status))}{_curves(progress, status)}"
    parts.append(f'<div style="display:flex;gap:2em;align-items:flex-start">{columns}</div>')
    parts += [f"<div>{escape(note)}</div>" for note in notes]
    return escape_surrogates(f'<div style="{_STYLE}">{"".join(parts)}</div>')


def _bar(label: str, fraction: float | None, text: str) -> str:
    width, bar, color = 100 * (fraction or 0.0), "height:6px;border-radius:3px", line_styles(["train"])["train"].color
    return (
        f'<div style="display:flex;gap:1em;align-items:center"><span style="min-width:9em">{escape(label)}</span>'
        f'<span style="width:20em;{bar};background:#8884">'
        f'<span style="display:block;width:{width:.1f}%;{bar};background:{color}"></span></span>'
        f"<span>{escape(text)}</span></div>"
    )


def _table(progress: FitProgress, rows: list[MetricRow], sets: DataSets) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{escape(name)}</th>" for name in ("", *sets.names, "best", "epoch"))
    lines = [f"<tr>{head}</tr>"]
    for row in rows:
        cells = [f'<td style="text-align:left">{escape(row.name)}</td>']
        for group in sets.names:
            value = row.values.get(group)
            text = format_number(value)
            improved = group == sets.monitored and progress.is_improvement(f"{group}/{row.name}", value)
            cells.append(f"<td><b>{text}*</b></td>" if improved else f"<td>{text}</td>")
        best = (format_number(row.best.value), row.best.epoch) if row.best else ("", "")
        lines.append(f"<tr>{''.join(cells)}<td>{best[0]}</td><td>{best[1]}</td></tr>")
    return f"<table>{''.join(lines)}</table>"


def _curves(progress: FitProgress, status: Status) -> str:
    """The losses as an SVG chart; "" before there are any."""
    over, curves, log = progress.loss_curves(status)
    if not curves:
        return ""
    styles = line_styles(curves)
    lines = [SvgLine(name, x, y, styles[name]) for name, (x, y) in curves.items()]
    return svg_chart("loss", lines, width=400, height=150, log=log, x_label=over)
