"""History: a run's numbers as a table with a row per epoch, as text, HTML, a data frame or a figure."""

import base64
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stoker._figure import Size, figure_size, figure_to_png
from stoker._text import format_number, html_text
from stoker.errors import MissingExtra, NoSuchMetric, did_you_mean
from stoker.record._columns import Best
from stoker.record._plot import group_by_metric, plot_series
from stoker.record._record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame

Rows = Mapping[int, Mapping[str, float]]  # epoch: name: value

_ROWS, _WIDTH = 20, 120  # of the table, in lines and characters
_PANELS, _LINES = 6, 6  # of the picture in a notebook: at most so many panels, and lines in each


class History:
    """A run's numbers as a table with a row per epoch, which grows with its record.

    >>> from stoker.record import Event
    >>> record = Record()
    >>> for epoch, loss in enumerate([0.5, 0.2, 0.3], 1):
    ...     record.append(Event("epoch", epoch=epoch, values={"train/loss": loss / 2, "valid/loss": loss}))
    >>> history = History(record)
    >>> history["valid/loss"], history.columns
    ([0.5, 0.2, 0.3], ['train/loss', 'valid/loss'])
    >>> print(history)
      epoch  train/loss  valid/loss
          1      0.2500      0.5000
    *     2      0.1000      0.2000
          3      0.1500      0.3000
    * best valid/loss: 0.2000 in epoch 2

    An epoch without a number (validation every other epoch, say) has NaN there.
    """

    def __init__(self, record: Record) -> None:
        self._record = record

    def __getitem__(self, name: str) -> list[float]:
        if name == "epoch":
            return [float(epoch) for epoch in self.epochs]
        if name not in self._record.columns:
            columns = ", ".join(self.columns) or "none yet"
            hint = did_you_mean(name, self.columns) or "."
            raise NoSuchMetric(f"the history has no column {name!r}{hint} It has: {columns}")
        return self._record.series(name)

    def __contains__(self, name: object) -> bool:
        return name in self._record.columns

    def __len__(self) -> int:
        return len(self._record.rows)

    def __iter__(self) -> Iterator[dict[str, float]]:
        columns = self.to_dict()
        return (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))

    @property
    def columns(self) -> list[str]:
        """The names of the numbers, in order of first appearance."""
        return self._record.columns

    @property
    def panels(self) -> dict[str, list[str]]:
        """The columns grouped by metric: `"loss"` holds "train/loss" and "valid/loss"."""
        return group_by_metric(self.columns)

    @property
    def epochs(self) -> list[int]:
        """The epochs that have numbers; the first is 1."""
        return list(self._record.rows)

    @property
    def best(self) -> Best | None:
        """The best value of the monitored number, and its epoch."""
        name = self._record.monitor
        return self._record.best(name) if name is not None else None

    @property
    def validations(self) -> list[dict[str, Any]]:
        """A row per validation (an epoch may have several): epoch, update, name of the set, and its numbers."""
        return [
            {"epoch": event.epoch, "update": event.update, "set": event.extra.get("name", "valid"), **event.values}
            for event in self._record.events_of("valid")
        ]

    def to_dict(self) -> dict[str, list[float]]:
        """The columns by name, `"epoch"` first."""
        return {"epoch": [*self.epochs], **{name: self[name] for name in self.columns}}

    def to_pandas(self) -> "DataFrame":
        """A `pandas.DataFrame` with the epochs as its index; needs pandas."""
        try:
            import pandas
        except ImportError as error:
            raise MissingExtra("to_pandas needs pandas: pip install pandas (to_dict needs nothing)") from error
        return pandas.DataFrame(self.to_dict()).set_index("epoch")

    def plot(self, *names: str, size: Size = "screen", ax: "Axes | None" = None) -> "Figure":
        """Draws the numbers over the epochs with matplotlib (`stoker[plot]`) and returns the figure.

        Without names it draws every column except matrix cells, a panel per metric. With names, or with `ax`, all
        lines share one panel. The best epoch is marked; a loss that falls far gets a logarithmic axis. `size` is
        "screen", "paper" or "slide". The figure is not registered with pyplot: a notebook shows it, and
        `figure.savefig(path)` writes it, as vectors if the path ends in .pdf or .svg.
        """
        with figure_size(size):
            return self._draw({"": list(names)} if names else self.panels or {"": self.columns}, ax=ax)

    def __str__(self) -> str:
        return _text_table(self._record.rows, self.columns, self.best)

    def __repr__(self) -> str:
        return f"History of {len(self)} epochs: {', '.join(self.columns) or 'no numbers yet'}"

    def _repr_html_(self) -> str:
        """The table, below curves where matplotlib is installed."""
        panels = {title: names[:_LINES] for title, names in list(self.panels.items())[:_PANELS]}
        image = ""
        if panels:
            with contextlib.suppress(MissingExtra):
                data = base64.b64encode(figure_to_png(self._draw(panels), dpi=70)).decode()
                image = f'<img alt="curves" src="data:image/png;base64,{data}"/>'
        return f"<div>{image}{html_text(str(self))}</div>"

    def _draw(self, panels: Mapping[str, Sequence[str]], ax: "Axes | None" = None) -> "Figure":
        series = {title: {name: self[name] for name in names} for title, names in panels.items() if names}
        minimized = frozenset(name for name in self.columns if self._record.direction(name) == "min")
        return plot_series(self.epochs, series, self.best, minimized=minimized, ax=ax)


def _text_table(rows: Rows, columns: Sequence[str], best: Best | None) -> str:
    """Aligned text: the best epoch marked, the middle of a long table and the columns that don't fit left out."""
    if not rows:
        return "no epochs yet"
    epochs = _abbreviate(list(rows), best)
    cells = {
        name: [format_number(rows[epoch].get(name)) if epoch is not None else "…" for epoch in epochs]
        for name in columns
    }
    widths = {name: max(len(name), *map(len, cells[name])) for name in columns}
    shown = _columns_that_fit(widths)
    lines = ["  epoch" + "".join(f"  {name:>{widths[name]}}" for name in shown)]
    for row, epoch in enumerate(epochs):
        marker = "*" if best is not None and epoch == best.epoch else " "
        label = "…" if epoch is None else str(epoch)
        lines.append(f"{marker} {label:>5}" + "".join(f"  {cells[name][row]:>{widths[name]}}" for name in shown))
    if best is not None:
        lines.append(f"* best {best.name}: {format_number(best.value)} in epoch {best.epoch}")
    if len(shown) < len(columns):
        hidden = [name for name in columns if name not in shown]
        lines.append(f"and {len(hidden)} more columns: {', '.join(hidden[:6])}{', …' if len(hidden) > 6 else ''}")
    return "\n".join(line.rstrip() for line in lines)


def _abbreviate(epochs: Sequence[int], best: Best | None) -> list[int | None]:
    """The first, the last and the best of many epochs; `None` stands for those left out between."""
    if len(epochs) <= _ROWS:
        return list(epochs)
    kept = {*epochs[: _ROWS // 2], *epochs[-(_ROWS // 2) :]} | ({best.epoch} if best is not None else set())
    shown: list[int | None] = []
    for epoch in epochs:
        if epoch in kept:
            shown.append(epoch)
        elif shown[-1] is not None:
            shown.append(None)
    return shown


def _columns_that_fit(widths: Mapping[str, int]) -> list[str]:
    """As many columns as fit on a line, at least one."""
    shown: list[str] = []
    used = len("  epoch")
    for name, width in widths.items():
        used += width + 2
        if shown and used > _WIDTH:
            break
        shown.append(name)
    return shown
