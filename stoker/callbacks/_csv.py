"""The epochs' numbers as a table that every program reads."""

import csv
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stoker.callbacks._callback import Callback
from stoker.callbacks._context import Context
from stoker.errors import BadFile


class CSV(Callback):
    """Appends a row to a file at the end of each epoch: epoch, update, and every number of the record.

    >>> CSV("epochs.csv")
    CSV('epochs.csv')

    A file that is there is continued. A number that appears later gets a column of its own, empty in the rows before;
    one that is not a number is `nan`, and one that was not measured in an epoch is empty.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)

    def on_fit_begin(self, ctx: Context) -> None:
        """Refuses a file that holds something else, before anything is trained."""
        header = read_header(self._path)
        if header and header[:2] != ["epoch", "update"]:
            raise BadFile(
                f"{self._path} is no table of epochs (its first line is {','.join(header)[:60]!r}); give CSV another "
                "path, or move that file away"
            )

    def on_epoch_end(self, ctx: Context) -> None:
        """Writes the row."""
        append_row(self._path, {"epoch": ctx.epoch, "update": ctx.update, **ctx.record.rows.get(ctx.epoch, {})})

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
        return
    rows: list[Mapping[str, Any]] = []
    if header:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file, restval=""))
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.new")
    with new.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys([*header, *row])), restval="", extrasaction="ignore")
        writer.writeheader()
        writer.writerows([*rows, row])
    os.replace(new, path)


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
