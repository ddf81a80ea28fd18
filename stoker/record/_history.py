"""The table of epochs."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stoker.errors import MissingExtra, NoSuchMetric, did_you_mean
from stoker.record._html import page
from stoker.record._numbers import Best
from stoker.record._panels import panels
from stoker.record._plot import plot
from stoker.record._record import Record
from stoker.record._summary import monitor
from stoker.record._text import table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame


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

    Where an epoch has no such number (a validation every other epoch, say), it is NaN.
    """

    def __init__(self, record: Record) -> None:
        self._record = record

    def __getitem__(self, name: str) -> list[float]:
        if name == "epoch":
            return [float(epoch) for epoch in self.epochs]
        if name not in self._record.columns:
            there = ", ".join(self.columns) or "none yet"
            raise NoSuchMetric(
                f"no number is called {name!r}{did_you_mean(name, self.columns) or '.'} There are: {there}"
            )
        return self._record.series(name)

    def __contains__(self, name: object) -> bool:
        return name in self._record.columns

    def __len__(self) -> int:
        return len(self._record.rows)

    def __iter__(self) -> Iterator[dict[str, float]]:
        return ({"epoch": epoch, **row} for epoch, row in zip(self.epochs, self._full_rows(), strict=True))

    @property
    def columns(self) -> list[str]:
        """The names of the numbers, in the order in which they came."""
        return self._record.columns

    @property
    def panels(self) -> dict[str, list[str]]:
        """The columns by what they measure: "loss" is "train/loss" and "valid/loss", one picture."""
        return panels(self.columns)

    @property
    def epochs(self) -> list[int]:
        """The epochs that have numbers; the first is 1."""
        return list(self._record.rows)

    @property
    def best(self) -> Best | None:
        """The best epoch, by the number that the run was judged by."""
        watched = monitor(self._record)
        return self._record.best(watched) if watched is not None else None

    @property
    def validations(self) -> list[dict[str, Any]]:
        """A row per validation, also where there are several in an epoch: epoch, update, set and its numbers."""
        return [
            {"epoch": event.epoch, "update": event.update, "set": event.extra.get("name", "valid"), **event.values}
            for event in self._record.events_of("valid")
        ]

    def to_dict(self) -> dict[str, list[float]]:
        """The columns by name, the epochs' numbers first."""
        return {"epoch": [*self.epochs], **{name: self[name] for name in self.columns}}

    def to_pandas(self) -> "DataFrame":
        """A `pandas.DataFrame` with the epochs as its index; needs pandas."""
        try:
            import pandas
        except ImportError as error:
            raise MissingExtra("to_pandas needs pandas: pip install pandas (to_dict needs nothing)") from error
        return pandas.DataFrame(self.to_dict()).set_index("epoch")

    def plot(self, *names: str, ax: "Axes | None" = None) -> "Figure":
        """Draws the numbers over the epochs with matplotlib (`stoker[plot]`) and returns the figure.

        Where no names are given, everything but the cells of matrices, a panel for each metric; the best epoch is
        marked, and a loss that falls far has a logarithmic scale. With `ax`, or with names, all lines stand in one
        panel. The figure is nobody's: a notebook shows it, `figure.savefig(path)` writes it, pyplot doesn't know it.
        """
        chosen = {name: self[name] for name in names or self.columns}
        return plot(self.epochs, chosen, self.best, together=bool(names), falling=self._falling(), ax=ax)

    def __str__(self) -> str:
        return table(self._record.rows, self.columns, self.best)

    def __repr__(self) -> str:
        return f"History of {len(self)} epochs: {', '.join(self.columns) or 'no numbers yet'}"

    def _repr_html_(self) -> str:
        return page(self._record.rows, self.columns, self.best, falling=self._falling())

    def _falling(self) -> frozenset[str]:
        """The numbers of which less is better."""
        return frozenset(name for name in self.columns if self._record.direction(name) == "min")

    def _full_rows(self) -> Iterator[dict[str, float]]:
        series = [self[name] for name in self.columns]
        return (dict(zip(self.columns, row, strict=True)) for row in zip(*series, strict=True))
