"""The epochs' numbers as a table that every program reads."""

import csv
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from stoker.callbacks._callback import Callback, read_state
from stoker.callbacks._context import Context
from stoker.errors import BadFile


class CSV(Callback):
    """Appends a row to a file at the end of each epoch: epoch, update, and every number of the record.

    >>> CSV("epochs.csv")
    CSV('epochs.csv')

    A file that is there is continued. A number that appears later gets a column of its own, empty in the rows before;
    one that is not a number is `nan`, and one that was not measured in an epoch is empty. A run that is resumed takes
    the rows back that were written after it was saved, as those epochs come again.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._rows = 0  # in the file, those of earlier fits included
        self._columns: list[str] = []

    def on_fit_begin(self, ctx: Context) -> None:
        """Refuses a file that holds something else, before anything is trained."""
        header = read_header(self._path)
        if header and header[:2] != ["epoch", "update"]:
            raise BadFile(
                f"{self._path} is no table of epochs (its first line is {','.join(header)[:60]!r}); give CSV another "
                "path, or move that file away"
            )
        self._rows, self._columns = len(read_rows(self._path)), header

    def on_epoch_end(self, ctx: Context) -> None:
        """Writes the row."""
        row = {"epoch": ctx.epoch, "update": ctx.update, **ctx.record.rows.get(ctx.epoch, {})}
        append_row(self._path, row)
        self._rows, self._columns = self._rows + 1, list(dict.fromkeys([*self._columns, *row]))

    def state_dict(self) -> dict[str, Any]:
        """How many rows there are, and their columns."""
        return {"rows": self._rows, "columns": self._columns}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Cuts the file to the rows and columns that it had; rows that somebody has taken away don't come back."""
        count, self._columns = read_state(state, "rows", "columns", who="CSV")
        rows = read_rows(self._path)
        if len(rows) > count and self._columns:
            write_rows(self._path, self._columns, rows[:count])
        elif len(rows) > count:
            self._path.unlink()  # it was not there
        self._rows = min(len(rows), count)

    def __repr__(self) -> str:
        return f"CSV({str(self._path)!r})"


def read_header(path: Path) -> list[str]:
    """The names in a file's first line; none where there is no file, or nothing in it."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return next(csv.reader(file), [])


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Adds a row; where it has new names, the whole file is written anew, with more columns, and then swapped."""
    header = read_header(path)
    if header and set(row) <= set(header):
        with path.open("r+", newline="", encoding="utf-8") as file:
            file.seek(0, os.SEEK_END)
            if not _ends_with_newline(path):  # somebody died while writing
                file.write("\r\n")
            csv.DictWriter(file, header).writerow(row)
            _flush(file)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_rows(path, list(dict.fromkeys([*header, *row])), [*read_rows(path), row])


def read_rows(path: Path) -> list[Mapping[str, Any]]:
    """The rows of a file below its header; none where there is no file."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, restval=""))


def write_rows(path: Path, header: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """The whole file anew, beside the old one and then in its place."""
    new = path.with_name(f"{path.name}.new")
    with new.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, header, restval="", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
        _flush(file)
    os.replace(new, path)


def _flush(file: TextIO) -> None:
    """To the disk: a checkpoint that counts the row may outlive a failure of the machine."""
    file.flush()
    os.fsync(file.fileno())


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
