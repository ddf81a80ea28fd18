"""The metrics of every epoch in a CSV file."""

import csv
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stoker._files import write_atomically
from stoker.callbacks._callback import Callback, read_state
from stoker.callbacks._context import Context
from stoker.errors import BadFile


class CSV(Callback):
    """Appends a row to a file at the end of each epoch: epoch, update, and every metric of the record.

    >>> CSV("epochs.csv")
    CSV('epochs.csv')

    An existing file is appended to. A metric that appears later gets a new column, which is empty in earlier rows; a
    metric that an epoch did not measure is empty, and NaN is `nan`. A resumed run removes the rows that were written
    after its checkpoint, because it trains those epochs again.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._rows = 0  # in the file, including those of earlier fits
        self._columns: list[str] = []

    def on_fit_begin(self, ctx: Context) -> None:
        """Checks, before anything is trained, that an existing file is a table of epochs."""
        self._columns, rows = _read(self._path)
        if self._columns and self._columns[:2] != ["epoch", "update"]:
            raise BadFile(
                f"{self._path} is not a table of epochs (its first line is {','.join(self._columns)[:60]!r}); give CSV "
                "another path, or move that file away"
            )
        self._rows = len(rows)

    def on_epoch_end(self, ctx: Context) -> None:
        """Adds the row."""
        columns, rows = _read(self._path)
        row = {"epoch": ctx.epoch, "update": ctx.update, **ctx.record.rows.get(ctx.epoch, {})}
        self._columns = list(dict.fromkeys([*columns, *row]))
        self._path.parent.mkdir(parents=True, exist_ok=True)
        _write(self._path, self._columns, [*rows, row])
        self._rows += 1

    def state_dict(self) -> dict[str, Any]:
        """Returns the number of rows and their columns."""
        return {"rows": self._rows, "columns": self._columns}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Cuts the file back to the rows and columns it had; rows that were deleted meanwhile stay deleted."""
        count, self._columns = read_state(state, owner="CSV", rows=int, columns=list | None)
        _, rows = _read(self._path)
        if len(rows) > count and self._columns:
            _write(self._path, self._columns, rows[:count])
        elif len(rows) > count:  # there was no file
            self._path.unlink()
        self._rows = min(len(rows), count)

    def __repr__(self) -> str:
        return f"CSV({str(self._path)!r})"


def _read(path: Path) -> tuple[list[str], list[Mapping[str, Any]]]:
    """The columns and rows of a file; both empty if there is no file."""
    if not path.exists():
        return [], []
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file, restval="")
        return list(reader.fieldnames or ()), list(reader)


def _write(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    content = io.StringIO(newline="")
    writer = csv.DictWriter(content, columns, restval="", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, lambda file: file.write(content.getvalue().encode()))
