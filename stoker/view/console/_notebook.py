"""A fit in a notebook: one HTML output that is updated in place."""

import sys
from html import escape

from stoker._text import escape_surrogates, format_clock, format_duration, format_number, format_short
from stoker.record import Event, Record, line_styles
from stoker.view._svg import SvgLine, svg_chart
from stoker.view.console._progress import (
    curves_of,
    describe_end,
    describe_event,
    describe_model,
    describe_speed,
    ends_a_row,
    epoch_label,
    improves,
    plan_of,
    rows_of,
    sets_of,
    table_columns,
)
from stoker.view.console._terminal import Pace

_STYLE = "font-family:ui-monospace,monospace;font-size:13px;line-height:1.5"
_ROWS, _COLUMNS, _CHARTS = 12, 8, 2  # of the output, at most; History has them all


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

        self._record = record
        self._pace = Pace(interval)
        self._handle, self._html = DisplayHandle(), HTML
        self._notes: list[str] = []
        self._rows: list[tuple[str, dict[str, str], str]] = []  # label, values and duration of epochs
        self._began = self._shown = self._closed = False

    def __call__(self, event: Event) -> None:
        """Takes an event into account, and updates the output if an update is due."""
        if self._closed:
            return
        if event.kind == "begin":
            self._began = True
        elif line := describe_event(event):
            self._notes.append(line)
        elif ends_a_row(self._record, event):
            self._add_row(event)
        elif event.kind == "end":
            self.close()
            return
        if self._began and self._pace.is_due():
            with self._pace.measure():
                self._show()

    def close(self) -> None:
        """Shows how the fit ended; a second call does nothing."""
        if not self._closed and self._began:
            self._closed = True
            self._show()

    def _add_row(self, event: Event) -> None:
        monitored, values = sets_of(self._record, self._record.names).monitored, {}
        for name in table_columns(self._record, event.values):
            text = format_number(event.values[name])
            improved = name.startswith(f"{monitored}/") and improves(self._record, name, event.epoch)
            values[name] = f"<b>{text}*</b>" if improved else text
        seconds = event.extra.get("seconds")
        self._rows.append((epoch_label(self._record, event), values, "" if seconds is None else format_clock(seconds)))

    def _show(self) -> None:
        output = self._html(self._render())
        if self._shown:
            self._handle.update(output)
        else:
            self._handle.display(output)
            self._shown = True

    def _render(self) -> str:
        """The fit as HTML: title, progress bars (or how it ended), curves, a row per epoch, and notes."""
        parts = [f"<div><b>{escape(describe_model(self._record))}</b></div>"]
        parts += self._ending() if self._closed else self._progress()
        parts.append(f'<div style="display:flex;gap:1em;flex-wrap:wrap">{self._charts()}</div>{self._table()}')
        parts += [f"<div>{escape(note)}</div>" for note in self._notes]
        return escape_surrogates(f'<div style="{_STYLE}">{"".join(parts)}</div>')

    def _ending(self) -> list[str]:
        ending = describe_end(self._record)
        lines = [ending.reason, ending.length, *(f"{name}: {text}" for name, text in ending.files.items())]
        return [f"<div>{escape(line)}</div>" for line in lines if line]

    def _progress(self) -> list[str]:
        status = self._record.status()
        metrics, others = rows_of(self._record, status)
        left = f", {format_duration(status.seconds_left)} left" if status.seconds_left is not None else ""
        planned = plan_of(self._record).get("epochs")
        values = [
            f"{group} {row.name} {format_number(value)}" for row in metrics for group, value in row.values.items()
        ]
        values += [f"{row.name} {format_short(row.values[''])}" for row in others]
        return [
            _bar(
                f"epoch {status.epoch}" + (f"/{planned}" if planned else ""),
                status.phase_fraction,
                describe_speed(status),
            ),
            _bar("total", status.fraction, format_duration(status.seconds) + left),
            f'<div style="opacity:.75">{escape(" · ".join(values))}</div>',
        ]

    def _charts(self) -> str:
        charts = []
        for metric, lines, log in curves_of(self._record, _CHARTS):
            drawn = [
                SvgLine(f"{name}/{metric}", x.tolist(), y.tolist(), style) for name, (style, x, y) in lines.items()
            ]
            charts.append(svg_chart(metric, drawn, width=400, height=180, log=log, x_label="update"))
        return "".join(charts)

    def _table(self) -> str:
        if not self._rows:
            return ""
        columns = list(self._rows[-1][1])[:_COLUMNS]
        head = "".join(f"<th>{escape(name)}</th>" for name in ("epoch", *columns, "time"))
        lines = [f"<tr>{head}</tr>"]
        if len(self._rows) > _ROWS:
            lines.append("<tr><td>…</td></tr>")
        for label, values, duration in self._rows[-_ROWS:]:
            cells = (label, *(values.get(name, "") for name in columns), duration)
            lines.append(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
        return f"<table>{''.join(lines)}</table>"


def _bar(label: str, fraction: float | None, text: str) -> str:
    width, bar, color = 100 * (fraction or 0.0), "height:6px;border-radius:3px", line_styles(["train"])["train"].color
    return (
        f'<div style="display:flex;gap:1em;align-items:center"><span style="min-width:9em">{escape(label)}</span>'
        f'<span style="width:20em;{bar};background:#8884">'
        f'<span style="display:block;width:{width:.1f}%;{bar};background:{color}"></span></span>'
        f"<span>{escape(text)}</span></div>"
    )
