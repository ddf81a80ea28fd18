"""The lines of the live block, and those that stay when the fit is over, as `rich` texts."""

import math
from itertools import groupby
from typing import TYPE_CHECKING

from stoker._text import format_number as number
from stoker.view.console._format import clock, plain_number
from stoker.view.console._plot import as_text, dots
from stoker.view.console._story import ending, reason, speed, title
from stoker.view.console._watch import Row, Watch

if TYPE_CHECKING:
    from rich.text import Text

_WIDEST = 100  # columns; longer bars say no more
_CELL, _BEST = 10, 14  # the widths of the table's columns
_LABEL, _LEAST = 10, 16  # of the plot: its scale, and the least that is worth drawing
_TALLEST = 8  # lines of plot
_COLORS = ("cyan", "yellow")  # train, and the watched set
_MARK = "o"  # of the watched set, where there are no colours


def view(watch: Watch, width: int, height: int, *, ascii_only: bool = False, colours: bool = True) -> list["Text"]:
    """The block as it stands now, in at most `width` columns and `height` lines; the first line is blank."""
    from rich.text import Text

    width = min(width, _WIDEST)
    head = [Text(), _head(watch, width), *_bars(watch, width), _meters(watch, width), Text()]
    rows = watch.rows()
    room = max(0, height - len(head))
    table = _table(watch, rows, room)
    side = max((line.cell_len for line in table), default=0)
    curve = _curve(watch, width - side, min(_TALLEST, room - 1), ascii_only=ascii_only, colours=colours)
    lines = [*head, *_beside(table, curve, side)][:height]
    for line in lines:
        line.truncate(width)
    return lines


def last_view(watch: Watch, width: int) -> list["Text"]:
    """What stays: the model, the table of the last and best numbers, how it stopped, how long it took."""
    from rich.text import Text

    lines = [Text(), Text(" " + title(watch), style="bold"), *_table(watch, watch.rows(), 40)]
    for line in lines:
        line.truncate(width)
    why = " ".join(reason(watch).split())  # one line of it, folded by the terminal
    if why:
        lines.append(Text(f" {why}", style="red" if watch.failed else "yellow"))
    lines.append(Text(f" {ending(watch)}", style="green" if watch.end and not watch.failed else ""))
    return lines


def _head(watch: Watch, width: int) -> "Text":
    from rich.text import Text

    left = watch.left()
    times = clock(watch.seconds) + (f" · {clock(left)} left" if left is not None else "")
    line = Text(" " + title(watch), style="bold")
    line.truncate(max(0, width - len(times) - 2), overflow="ellipsis", pad=True)
    return line.append(f"  {times}", style="not bold")


def _bars(watch: Watch, width: int) -> list["Text"]:
    planned = watch.planned("epochs")
    label = f" epoch {watch.epoch}" + (f"/{planned}" if planned else "")
    of = f"/{watch.batches:,}" if watch.batches else ""
    batch = f"batch {watch.progress.batch:,}{of}" if watch.progress else ""
    if watch.validating:
        batch = batch.replace("batch", "validating")
    total = watch.fraction()
    share = "" if total is None else f"{100 * total:.0f} % · "
    updates = f"{share}{watch.updates:,} updates"
    size = max(len(label), 7)
    long = max(10, width - size - 28)
    return [
        _bar(f"{label:<{size}}", watch.within(), long, batch or speed(watch)),
        _bar(f"{' total':<{size}}", total, long, updates),
    ]


def _bar(label: str, share: float | None, long: int, text: str) -> "Text":
    """A label, a bar (of nothing, where nobody knows the length) and a text."""
    from rich.text import Text

    full = 0 if share is None else math.floor(share * long)
    line = Text(f"{label}  ")
    line.append("━" * full, style="green" if share is not None and share >= 1 else "cyan")
    line.append("─" * (long - full), style="bright_black")
    return line.append(f"  {text}")


def _meters(watch: Watch, width: int) -> "Text":
    from rich.text import Text

    unit = watch.record.unit
    parts = [
        f"{name} {plain_number(value)}{' ' * bool(unit(name))}{unit(name)}" for name, value in watch.meters().items()
    ]
    line = Text(" " + " · ".join(filter(None, [speed(watch), *parts])), style="bright_black")
    line.truncate(width, overflow="ellipsis")
    return line


def _table(watch: Watch, rows: list[Row], room: int) -> list["Text"]:
    """A line of names and a line a metric, as many as there is room for."""
    from rich.text import Text

    if not rows or room < 2:
        return []
    widest = min(18, max(len(row.name) for row in rows))
    head = "".join(f"{_cut(name, _CELL - 2):>{_CELL - 1}} " for name in watch.sets)
    lines = [Text(f" {'':<{widest}}{head}{'best':>{_BEST - 5}}", style="bright_black")]
    for row in rows[: room - 1]:
        line = Text(f" {_cut(row.name, widest):<{widest}}")
        for group in watch.sets:
            value = row.values.get(group)
            better = row.improved and group == watch.watched
            text = "" if value is None else number(value)
            line.append(f"{text:>{_CELL - 1}}{'*' if better else ' '}", style="bold green" if better else "")
        if row.best is not None:
            line.append(f"{number(row.best.value):>{_BEST - 5}}")
            line.append(f" @{row.best.epoch}", style="bright_black")
        lines.append(line)
    return lines


def _curve(watch: Watch, width: int, height: int, *, ascii_only: bool, colours: bool) -> list["Text"]:
    """The losses in one picture, with the least and the greatest at its side; nothing where there is no room."""
    from rich.text import Text

    curves = watch.curves()
    finite = [value for values in curves.values() for value in values if math.isfinite(value)]
    long = width - _LABEL - 2
    if not finite or long < _LEAST or height < 3:
        return []
    low, high = min(finite), max(finite)
    log = low > 0 and high > 20 * low
    layers = [dots(values, long, height, low=low, high=high, log=log) for values in curves.values()]
    head = Text(f"{'':<{_LABEL}}  ")
    for mark, name, color in zip(("", f"{_MARK} " * (not colours)), curves, _COLORS, strict=False):
        head.append(f"{mark}{name}  ", style=color)
    lines = [head.append("log" if log else "", style="bright_black")]
    for row in range(height):
        label = number(high) if row == 0 else number(low) if row == height - 1 else ""
        line = Text(f"{label:>{_LABEL}}  ", style="bright_black")
        cells = list(zip(layers[0][row], layers[-1][row], strict=True))
        for color, run in groupby(cells, lambda cell: _COLORS[bool(cell[1]) and len(layers) > 1]):
            bits = [first | last for first, last in run]
            marked = not colours and color != _COLORS[0]
            line.append(_MARK * len(bits) if marked else as_text(bits, ascii_only=ascii_only), style=color)
        lines.append(line)
    return lines


def _beside(left: list["Text"], right: list["Text"], width: int) -> list["Text"]:
    from rich.text import Text

    lines: list[Text] = []
    for place in range(max(len(left), len(right))):
        line = left[place] if place < len(left) else Text()
        if place < len(right):
            line.truncate(width, pad=True)
            line.append_text(right[place])
        lines.append(line)
    return lines


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
