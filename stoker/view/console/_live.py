"""The live block on a terminal: progress bars, a table of metrics and the loss curves."""

import atexit
import math
from typing import TYPE_CHECKING, TextIO

import numpy as np

from stoker._text import escape_control, format_clock, format_number, format_short, shorten
from stoker.record import Event, Record, Status, line_styles
from stoker.view._chart import MIN_HEIGHT, MIN_WIDTH, Line, chart, legend
from stoker.view._tables import MetricRow
from stoker.view.console._progress import (
    FitProgress,
    describe_end,
    describe_event,
    describe_model,
    describe_reason,
    describe_speed,
)
from stoker.view.console._terminal import Block, Pace

if TYPE_CHECKING:
    from rich.text import Text

_MAX_WIDTH = 100  # columns; longer bars say no more
_VALUE_WIDTH, _BEST_WIDTH, _NAME_WIDTH = 10, 14, 18  # columns of the table
_CHART_HEIGHT = 10
_GREY = "bright_black"


class LiveConsole:
    """A listener that redraws one block in place and leaves a short summary when the fit ends."""

    def __init__(self, record: Record, stream: TextIO, *, interval: float) -> None:
        from rich.console import Console

        self._progress = FitProgress(record)
        self._block = Block(stream)
        self._pace = Pace(interval)
        self._rich = Console(file=stream, force_terminal=True, legacy_windows=False, highlight=False)
        self._closed = False

    def __call__(self, event: Event) -> None:
        """Takes an event into account, and draws if a drawing is due."""
        if self._closed:
            return
        self._progress.add(event)
        if event.kind == "begin":
            self._block.open()
            atexit.register(self.close)  # for a program that ends without closing it
        elif line := describe_event(event):
            self._block.print_above(line)
        elif event.kind == "end":
            self.close()
            return
        if self._progress.plan is not None and self._pace.is_due():
            with self._pace.measure():
                self._draw()

    def close(self) -> None:
        """Replaces the block by the summary and restores the streams; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        lines: list[Text] = []
        if self._progress.plan is not None:
            width, _ = self._block.writer.size()
            lines = _summary_lines(self._progress, width - 1)
        self._block.close(self._render(lines))

    def _draw(self) -> None:
        width, height = self._block.writer.size()
        colors = not self._rich.no_color and self._rich.color_system is not None
        # One column and one line less than there are: a full last line would scroll the screen at every drawing.
        lines = _live_lines(
            self._progress, width - 1, height - 1, ascii_only=not self._block.writer.unicode, colors=colors
        )
        self._block.draw(self._render(lines))

    def _render(self, lines: list["Text"]) -> list[str]:
        """The lines with the escape codes of this terminal's colors, unwrapped."""
        with self._rich.capture() as captured:
            for line in lines:
                self._rich.print(line, soft_wrap=True)
        return captured.get().split("\n")[: len(lines)]


def _live_lines(progress: FitProgress, width: int, height: int, *, ascii_only: bool, colors: bool) -> list["Text"]:
    """The block in at most `width` columns and `height` lines; the first line is blank."""
    from rich.text import Text

    width = min(width, _MAX_WIDTH)
    status = progress.record.status()
    metrics, others = progress.rows(status)
    title = _title(progress, status, width)
    head = [Text(), title, *_bars(progress, status, width), _other_values(others, status, width), Text()]
    room = max(0, height - len(head))
    rows = _table(progress, metrics, status, room)
    left = max((line.cell_len for line in rows), default=0) + 2
    curves = _curves(progress, status, width - left, min(_CHART_HEIGHT, room - 1), ascii_only=ascii_only, colors=colors)
    while len(rows) < len(curves):
        rows.append(Text())
    for row, curve in zip(rows, curves, strict=False):
        row.truncate(left, pad=True)
        row.append_text(curve)
    lines = [*head, *rows][:height]
    for line in lines:
        line.truncate(width)
    return lines


def _summary_lines(progress: FitProgress, width: int) -> list["Text"]:
    """What stays on the terminal: the model, the table, why it stopped and how long it took."""
    from rich.text import Text

    status = progress.record.status()
    rows = _table(progress, progress.rows(status)[0], status, 40)
    lines = [Text(), Text(" " + describe_model(progress), style="bold"), *rows]
    for line in lines:
        line.truncate(width)
    failed = "error" in progress.endings
    reason = " ".join(describe_reason(progress).split())
    if reason:
        lines.append(Text(f" {reason}", style="red" if failed else "yellow"))
    completed = "end" in progress.endings and not failed
    lines.append(Text(f" {describe_end(progress)}", style="green" if completed else ""))
    return lines


def _title(progress: FitProgress, status: Status, width: int) -> "Text":
    from rich.text import Text

    left = f" · {format_clock(status.seconds_left)} left" if status.seconds_left is not None else ""
    times = format_clock(status.seconds) + left
    line = Text(" " + describe_model(progress), style="bold")
    line.truncate(max(0, width - len(times) - 2), overflow="ellipsis", pad=True)
    return line.append(f"  {times}", style="not bold")


def _bars(progress: FitProgress, status: Status, width: int) -> list["Text"]:
    planned = progress.setting("epochs")
    label = f" epoch {status.epoch}" + (f"/{planned}" if planned else "")
    batch = describe_speed(status)
    if status.batch:
        of = f"/{status.batches:,}" if status.batches else ""
        batch = f"{'validating' if status.phase == 'valid' else 'batch'} {status.batch:,}{of}"
    percent = "" if status.fraction is None else f"{100 * status.fraction:.0f} % · "
    label_width = max(len(label), 7)
    bar_width = max(10, width - label_width - 28)
    return [
        _bar(f"{label:<{label_width}}", status.phase_fraction, bar_width, batch),
        _bar(f"{' total':<{label_width}}", status.fraction, bar_width, f"{percent}{status.update:,} updates"),
    ]


def _bar(label: str, fraction: float | None, width: int, text: str) -> "Text":
    """A progress bar; empty if the fraction is unknown."""
    from rich.text import Text

    full = 0 if fraction is None else math.floor(fraction * width)
    line = Text(f"{label}  ")
    line.append("━" * full, style="green" if full == width else "cyan")
    line.append("─" * (width - full), style=_GREY)
    return line.append(f"  {text}")


def _other_values(rows: list[MetricRow], status: Status, width: int) -> "Text":
    from rich.text import Text

    values = [escape_control(f"{row.name} {format_short(row.values[''])} {row.unit}".rstrip()) for row in rows]
    line = Text(" " + " · ".join(filter(None, [describe_speed(status), *values])), style=_GREY)
    line.truncate(width, overflow="ellipsis")
    return line


def _table(progress: FitProgress, rows: list[MetricRow], status: Status, room: int) -> list["Text"]:
    """A header and one line per metric, as many as fit."""
    from rich.text import Text

    if not rows or room < 2:
        return []
    sets = progress.sets(status)
    names = min(_NAME_WIDTH, max(len(escape_control(row.name)) for row in rows))
    head = "".join(f"{shorten(escape_control(name), _VALUE_WIDTH - 2):>{_VALUE_WIDTH - 1}} " for name in sets.names)
    lines = [Text(f" {'':<{names}}{head}{'best':>{_BEST_WIDTH - 5}}", style=_GREY)]
    for row in rows[: room - 1]:
        line = Text(f" {shorten(escape_control(row.name), names):<{names}}")
        for group in sets.names:
            value = row.values.get(group)
            improved = group == sets.monitored and progress.is_improvement(f"{group}/{row.name}", value)
            mark, style = ("*", "bold green") if improved else (" ", "")
            line.append(f"{format_number(value):>{_VALUE_WIDTH - 1}}{mark}", style=style)
        if row.best is not None:
            line.append(f"{format_number(row.best.value):>{_BEST_WIDTH - 5}}")
            line.append(f" @{row.best.epoch}", style=_GREY)
        lines.append(line)
    return lines


def _curves(
    progress: FitProgress, status: Status, width: int, height: int, *, ascii_only: bool, colors: bool
) -> list["Text"]:
    """The losses as a chart under its legend; empty if there is no room or no curve."""
    over, curves, log = progress.loss_curves(status)
    if not curves or width < MIN_WIDTH + 8 or height < MIN_HEIGHT:
        return []
    styles = line_styles(curves)
    lines = [
        Line(escape_control(name.removesuffix("/loss")), np.array(x, float), np.array(y, float), styles[name].color)
        for name, (x, y) in curves.items()
    ]
    head = legend(lines, ascii_only=ascii_only, colors=colors)
    head.append(f"  loss by {over}{', log' if log else ''}", style=_GREY)
    return [head, *chart(lines, width, height, log=log, ascii_only=ascii_only, colors=colors)]
