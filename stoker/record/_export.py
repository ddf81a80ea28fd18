"""Exports a run's numbers as CSV, Parquet or JSON."""

import csv
import io
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any, get_args

from stoker._files import write_atomically
from stoker.errors import BadFile, InvalidArgument, explain_missing
from stoker.record._columns import Source
from stoker.record._control import CONTROL
from stoker.record._event import to_json_value
from stoker.record._follow import Follower
from stoker.record._journal import EVENTS, FACTS
from stoker.record._run import CONFIG, Run

Table = dict[str, list[Any]]  # columns of the same length; None for an empty cell
_POSITION = ("epoch", "update", "time")


def export(
    run: "str | os.PathLike[str] | Run | Follower",
    path: str | os.PathLike[str],
    *,
    source: Source = "epochs",
    long: bool = False,
) -> Path:
    """Writes a run's numbers as CSV, Parquet or JSON, by the path's suffix, and returns the path.

    >>> from stoker.record import Event
    >>> run = Run.create("runs/digits")
    >>> run.record.append(Event("valid", 1.5, epoch=1, update=10, values={"valid/loss": 0.1 + 0.2}))
    >>> run.close()
    >>> print(export(run, "digits.csv").read_text(), end="")
    epoch,update,time,valid/loss
    1,10,1.5,0.30000000000000004

    `source` is "epochs" (a row per epoch), "running" (means over the updates since the row before) or "all"
    (see `Numbers.points`; a row per update). With `long`, each row is one number: name, epoch, update, time, value.
    Numbers are exact; matrices are left out. An empty cell is null in Parquet and JSON. NaN and infinities are `nan`,
    `inf`, `-inf` in CSV, and "NaN", "Infinity", "-Infinity" in JSON. An existing file is replaced atomically.
    """
    path = Path(path)
    write = _WRITERS.get(path.suffix.lower())
    if write is None:
        raise InvalidArgument(f"{str(path)!r}: expected a name that ends in {', '.join(_WRITERS)}")
    if source not in get_args(Source):
        raise InvalidArgument(f'source={source!r}: expected "epochs", "all" or "running"')
    follower = run if isinstance(run, Follower) else Follower(run.path if isinstance(run, Run) else run)
    follower.refresh()
    if follower.state == "gone":
        raise BadFile(f"{follower.path}: {follower.problem}")
    is_in_run = path.absolute().parent.resolve() == follower.path.resolve()
    if is_in_run and path.name in (EVENTS, CONFIG, FACTS, CONTROL):
        raise InvalidArgument(f"{str(path)!r} is a file of the run itself; choose another name")
    table = (_long_table if long else _wide_table)(follower, source)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda file: write(file, table))
    return path


def _wide_table(follower: Follower, source: Source) -> Table:
    """A row per epoch or update, and a column per number."""
    rows: dict[tuple[int, int], dict[str, Any]] = {}
    columns: list[str] = list(_POSITION)
    for name in follower.names:
        column = f"number/{name}" if name in _POSITION else name
        repeats: dict[int, int] = {}  # a number with several values at one update gets further rows there
        for epoch, update, time, value in _values(follower, name, source):
            key = epoch if source == "epochs" else update
            repeats[key] = repeats.get(key, -1) + 1
            row = rows.setdefault((key, repeats[key]), {"epoch": 0, "update": 0, "time": time})
            row.update(epoch=max(row["epoch"], epoch), update=max(row["update"], update), time=max(row["time"], time))
            row[column] = value
        if repeats:
            columns.append(column)
    ordered = [rows[key] for key in sorted(rows)]
    return {column: [row.get(column) for row in ordered] for column in columns}


def _long_table(follower: Follower, source: Source) -> Table:
    """A row per value."""
    rows = [(name, *value) for name in follower.names for value in _values(follower, name, source)]
    return {column: [row[index] for row in rows] for index, column in enumerate(("name", *_POSITION, "value"))}


def _values(follower: Follower, name: str, source: Source) -> Iterable[tuple[int, int, float, float]]:
    """The epoch, update, time and value of each point."""
    points = follower.points(name, source=source)
    integers = (points.epoch.astype(int).tolist(), points.update.astype(int).tolist())
    return zip(*integers, points.time.tolist(), points.value.tolist(), strict=True)


def _write_csv(file: IO[bytes], table: Table) -> None:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    writer = csv.writer(text, lineterminator="\n")  # floats as their repr, which is exact
    writer.writerow(table)
    writer.writerows(zip(*table.values(), strict=True))
    text.detach()


def _write_json(file: IO[bytes], table: Table) -> None:
    rows = (dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True))
    lines = ",\n".join(json.dumps(to_json_value(row)) for row in rows)
    file.write(f"[\n{lines}\n]\n".encode())


def _write_parquet(file: IO[bytes], table: Table) -> None:
    with explain_missing("Parquet needs pyarrow: pip install pyarrow (CSV and JSON need nothing)"):
        import pyarrow
        import pyarrow.parquet
    types = {"name": pyarrow.string(), "epoch": pyarrow.int64(), "update": pyarrow.int64()}
    arrays = {
        name: pyarrow.array(column, types.get(name, pyarrow.float64()), from_pandas=False)
        for name, column in table.items()
    }
    pyarrow.parquet.write_table(pyarrow.table(arrays), file)


_WRITERS: dict[str, Callable[[IO[bytes], Table], None]] = {
    ".csv": _write_csv,
    ".parquet": _write_parquet,
    ".json": _write_json,
}
