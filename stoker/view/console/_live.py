"""The live block on a terminal: progress bars, a table of metrics and curves, below one line per epoch."""

import atexit
import math
from typing import TYPE_CHECKING, TextIO

from stoker._text import escape_control, format_clock, format_number, format_short, shorten
from stoker.record import Event, Record, Status
from stoker.view._chart import MIN_HEIGHT, MIN_WIDTH, QUIET, Line, chart, legend
from stoker.view._tables import MetricRow
from stoker.view.console._progress import (
    Curves,
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
from stoker.view.console._terminal import Block, Pace

if TYPE_CHECKING:
    from rich.text import Text

_VALUE_WIDTH, _BEST_WIDTH, _NAME_WIDTH = 10, 14, 18  # columns of the table
_CHART_WIDTH = 36  # columns of a chart, at least; with room for two, there are two
# The background of the terminal is unknown: colors of plots, and those with a contrast of 4.5 to black and to white.
_COLORS = {"#0072B2": "#007ABF", "#E69F00": "#B36200"}
_MOST_ROWS = 10  # epochs that are printed at once; of more (epochs of milliseconds), only the last ones
_LEAST_HEIGHT = 9  # lines of the block, if the terminal has them; on a large one it takes 60 % of the lines


class LiveConsole:
    """A listener that prints a line per epoch, redraws one block below, and leaves a short summary at the end."""

    def __init__(self, record: Record, stream: TextIO, *, interval: float) -> None:
        from rich.console import Console

        self._record = record
        self._block = Block(stream)
        self._pace = Pace(interval)
        self._rich = Console(file=stream, force_terminal=True, legacy_windows=False, highlight=False)
        self._rows: list[Event] = []  # epochs whose lines are not printed yet
        self._columns: dict[str, int] = {}  # of the table of epochs, with their widths
        self._table_width = 0  # of the terminal, for which they were chosen
        self._began = self._closed = False

    def __call__(self, event: Event) -> None:
        """Takes an event into account, and draws if a drawing is due."""
        if self._closed:
            return
        if event.kind == "begin":
            self._began = True
            self._block.open()
            atexit.register(self.close)  # for a program that ends without closing it
        elif line := describe_event(event):
            self._print_rows()
            self._block.print_above(line)
        elif ends_a_row(self._record, event):
            self._rows.append(event)
        elif event.kind == "end":
            self.close()
            return
        if self._began and self._pace.is_due():
            with self._pace.measure():
                self._draw()

    def close(self) -> None:
        """Replaces the block by the summary and restores the streams; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        self._print_rows()
        self._block.close(self._render(_summary_lines(self._record)) if self._began else [])

    def _draw(self) -> None:
        self._print_rows()
        width, height = self._block.writer.size()
        colors = not self._rich.no_color and self._rich.color_system is not None
        ascii_only = not self._block.writer.unicode
        # One column and one line less than there are: a full last line would scroll the screen at every drawing.
        lines = _live_lines(self._record, width - 1, height - 1, ascii_only=ascii_only, colors=colors)
        self._block.draw(self._render(lines))

    def _print_rows(self) -> None:
        """Prints the epochs that have ended since the last drawing."""
        from rich.text import Text

        lines = [Text(f"{'…':>6}", style=QUIET)] if len(self._rows) > _MOST_ROWS else []
        for event in self._rows[-_MOST_ROWS:]:
            lines += self._epoch_lines(event)
        self._rows = []
        if lines:
            self._block.print_above("\n".join(self._render(lines)))

    def _epoch_lines(self, event: Event) -> list["Text"]:
        """The row of an epoch, below a header if its columns are new."""
        from rich.text import Text

        width, _ = self._block.writer.size()
        names = table_columns(self._record, event.values)
        lines: list[Text] = []
        label = epoch_label(self._record, event)
        if width != self._table_width or (event.kind == "epoch" and not self._columns.keys() <= set(names)):
            self._table_width, self._columns = width, _columns_that_fit(names, width - 18 - len(label))
            head = "".join(f"{shorten(escape_control(name), size):>{size + 2}}" for name, size in self._columns.items())
            lines.append(Text(f"{'epoch':>{max(6, len(label) + 1)}}{head}{'time':>9}", style=QUIET))
        line = Text(f"{label:>{max(6, len(label) + 1)}}")
        for name, size in self._columns.items():
            value = event.values.get(name)
            improved = _is_monitored(self._record, name) and improves(self._record, name, event.epoch)
            mark, style = ("*", "bold green") if improved else (" ", "")
            line.append(f"{format_number(value):>{size + 1}}{mark}", style=style)
        seconds = event.extra.get("seconds")
        line.append(f"{format_clock(seconds) if seconds is not None else '':>9}", style=QUIET)
        for each in (*lines, line):
            each.truncate(width - 1)
        return [*lines, line]

    def _render(self, lines: list["Text"]) -> list[str]:
        """The lines with the escape codes of this terminal's colors, unwrapped."""
        with self._rich.capture() as captured:
            for line in lines:
                self._rich.print(line, soft_wrap=True)
        return captured.get().split("\n")[: len(lines)]


def _is_monitored(record: Record, name: str) -> bool:
    """Whether a value belongs to the data set whose best values count."""
    return name.partition("/")[0] == sets_of(record, record.names).monitored


def _columns_that_fit(names: list[str], room: int) -> dict[str, int]:
    """As many columns as fit, at least one, and their widths."""
    columns: dict[str, int] = {}
    for name in names:
        size = max(9, len(escape_control(name)))
        room -= size + 2
        if columns and room < 0:
            break
        columns[name] = size
    return columns


def _live_lines(record: Record, width: int, height: int, *, ascii_only: bool, colors: bool) -> list["Text"]:
    """The block in at most `width` columns and `height` lines; the first line is blank."""
    from rich.text import Text

    status = record.status()
    metrics, others = rows_of(record, status)
    height = max(min(height, _LEAST_HEIGHT), height * 6 // 10)
    head = [Text(), _title(record, status, width), *_bars(record, status, width), _other_values(others, status, width)]
    room = max(0, height - len(head))
    rows = _table(record, metrics, status.epoch, room)
    left = max((line.cell_len for line in rows), default=0) + 2
    beside = width - left >= _CHART_WIDTH
    area = (width - left, room) if beside else (width, room - len(rows))
    drawn = _draw_curves(record, *area, ascii_only=ascii_only, colors=colors)
    if not beside:
        rows += drawn
    else:
        rows += [Text() for _ in range(len(drawn) - len(rows))]
        for row, line in zip(rows, drawn, strict=False):
            row.truncate(left, pad=True)
            row.append_text(line)
    lines = [*head, *rows][:height]
    for line in lines:
        line.truncate(width)
    return lines


def _summary_lines(record: Record) -> list["Text"]:
    """What stays on the terminal: the model, why it stopped, how long it took, where it is saved."""
    from rich.text import Text

    ending = describe_end(record)
    lines = [Text(), Text(" " + describe_model(record), style="bold")]
    if ending.reason:
        lines.append(Text(" " + " ".join(ending.reason.split()), style="red" if ending.failed else ""))
    lines.append(Text(f" {ending.length}", style="" if ending.failed else "green"))
    width = max(map(len, ending.files), default=0)
    lines += [Text.assemble((f" {name:<{width}}  ", QUIET), text) for name, text in ending.files.items()]
    return lines


def _title(record: Record, status: Status, width: int) -> "Text":
    from rich.text import Text

    left = f" · {format_clock(status.seconds_left)} left" if status.seconds_left is not None else ""
    times = format_clock(status.seconds) + left
    line = Text(" " + describe_model(record), style="bold")
    line.truncate(max(0, width - len(times) - 2), overflow="ellipsis", pad=True)
    return line.append(f"  {times}", style="not bold")


def _bars(record: Record, status: Status, width: int) -> list["Text"]:
    planned = plan_of(record).get("epochs")
    label = f" epoch {status.epoch}" + (f"/{planned}" if planned else "")
    batch = describe_speed(status)
    if status.phase == "starting":
        batch = "starting"
    elif status.batch:
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
    line.append("─" * (width - full), style=QUIET)
    return line.append(f"  {text}")


def _other_values(rows: list[MetricRow], status: Status, width: int) -> "Text":
    from rich.text import Text

    values = [escape_control(f"{row.name} {format_short(row.values[''])} {row.unit}".rstrip()) for row in rows]
    line = Text(" " + " · ".join(filter(None, [describe_speed(status), *values])), style=QUIET)
    line.truncate(width, overflow="ellipsis")
    return line


def _table(record: Record, rows: list[MetricRow], epoch: int, room: int) -> list["Text"]:
    """A header and one line per metric of the current epoch with its best value so far, as many as fit."""
    from rich.text import Text

    if not rows or room < 2:
        return []
    sets = sets_of(record, record.names)
    names = min(_NAME_WIDTH, max(len(escape_control(row.name)) for row in rows))
    head = "".join(f"{shorten(escape_control(name), _VALUE_WIDTH - 2):>{_VALUE_WIDTH - 1}} " for name in sets.names)
    lines = [Text(f" {'':<{names}}{head}{'best':>{_BEST_WIDTH - 5}}", style=QUIET)]
    for row in rows[: room - 1]:
        line = Text(f" {shorten(escape_control(row.name), names):<{names}}")
        for group in sets.names:
            value = row.values.get(group)
            improved = group == sets.monitored and improves(record, f"{group}/{row.name}", epoch)
            mark, style = ("*", "bold green") if improved else (" ", "")
            line.append(f"{format_number(value):>{_VALUE_WIDTH - 1}}{mark}", style=style)
        if row.best is not None:
            line.append(f"{format_number(row.best.value):>{_BEST_WIDTH - 5}}")
            line.append(f" @{row.best.epoch}", style=QUIET)
        lines.append(line)
    return lines


def _draw_curves(record: Record, width: int, height: int, *, ascii_only: bool, colors: bool) -> list["Text"]:
    """One chart or several, side by side, each under its legend; empty if there is no room or no curve."""
    if width < MIN_WIDTH or height < MIN_HEIGHT + 1:
        return []
    curves = curves_of(record, max(1, width // (_CHART_WIDTH + 2)))
    if not curves:
        return []
    each = width // len(curves) - 2 * (len(curves) > 1)
    charts = [_draw_chart(one, each, height, ascii_only=ascii_only, colors=colors) for one in curves]
    lines = charts[0]
    for number, others in enumerate(charts[1:], 1):
        for line, other in zip(lines, others, strict=True):
            line.truncate(number * (each + 2), pad=True)
            line.append_text(other)
    return lines


def _draw_chart(curves: Curves, width: int, height: int, *, ascii_only: bool, colors: bool) -> list["Text"]:
    shown = curves.lines.items()
    lines = [Line(escape_control(name), x, y, _COLORS.get(style.color, style.color)) for name, (style, x, y) in shown]
    head = legend(lines, ascii_only=ascii_only, colors=colors)
    metric, log = escape_control(curves.metric), ", log" if curves.log else ""
    titles = [f"  {metric} by update{log}", f"  {metric}{log}", f"  {log[2:]}"]
    head.append(next((title for title in titles if head.cell_len + len(title) <= width), titles[-1]), style=QUIET)
    head.truncate(width, overflow="ellipsis")
    return [head, *chart(lines, width, height - 1, log=curves.log, ascii_only=ascii_only, colors=colors)]
