"""Exports a run's numbers as CSV, Parquet or JSON."""

import csv
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, get_args

from stoker.errors import BadFile, InvalidArgument, MissingExtra
from stoker.record._columns import Points, Source
from stoker.record._control import CONTROL
from stoker.record._event import to_json_value
from stoker.record._follow import Follower
from stoker.record._journal import EVENTS
from stoker.record._run import CONFIG, FACTS, Run

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

    `source` is "epochs" (a row per epoch), "running" (the values of progress events) or "all" (both, a row per
    update). With `long`, each row is one number: name, epoch, update, time, value. Numbers are exact. An empty cell is
    null in Parquet and JSON. NaN and infinities are `nan`, `inf`, `-inf` in CSV, and "NaN", "Infinity", "-Infinity" in
    JSON. An existing file is replaced atomically.
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
    own = path.absolute().parent.resolve() == follower.path.resolve()
    if own and path.name in (EVENTS, CONFIG, FACTS, CONTROL):
        raise InvalidArgument(f"{str(path)!r} is a file of the run itself; choose another name")
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.part")
    try:
        write(draft, (_long_table if long else _wide_table)(follower, source))
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return path


def _wide_table(follower: Follower, source: Source) -> Table:
    """A row per epoch or update, and a column per number."""
    series = _series(follower, source)
    rows: dict[tuple[int, int], dict[str, Any]] = {}
    for name, points in series.items():
        repeats: dict[int, int] = {}  # a number with several values at one update gets further rows there
        for epoch, update, time, value in _iterate(points):
            key = epoch if source == "epochs" else update
            repeats[key] = repeats.get(key, -1) + 1
            row = rows.setdefault((key, repeats[key]), {"epoch": 0, "update": 0, "time": 0.0})
            row.update(epoch=max(row["epoch"], epoch), update=max(row["update"], update), time=max(row["time"], time))
            row[_column(name)] = value
    ordered = [rows[key] for key in sorted(rows)]
    return {name: [row.get(name) for row in ordered] for name in [*_POSITION, *map(_column, series)]}


def _long_table(follower: Follower, source: Source) -> Table:
    """A row per value."""
    names = ("name", *_POSITION, "value")
    rows = [(name, *each) for name, points in _series(follower, source).items() for each in _iterate(points)]
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)) if rows else {name: [] for name in names}


def _series(follower: Follower, source: Source) -> dict[str, Points]:
    found = {name: follower.points(name, source=source) for name in follower.names}
    return {name: points for name, points in found.items() if len(points)}


def _iterate(points: Points) -> Iterable[tuple[int, int, float, float]]:
    integers = (points.epoch.astype(int).tolist(), points.update.astype(int).tolist())
    return zip(*integers, points.time.tolist(), points.value.tolist(), strict=True)


def _column(name: str) -> str:
    return f"number/{name}" if name in _POSITION else name


def _rows(table: Table) -> Iterable[tuple[object, ...]]:
    return zip(*table.values(), strict=True)


def _write_csv(path: Path, table: Table) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")  # floats as their repr, which is exact
        writer.writerow(table)
        writer.writerows(_rows(table))


def _write_json(path: Path, table: Table) -> None:
    lines = (json.dumps(to_json_value(dict(zip(table, row, strict=True)))) for row in _rows(table))
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def _write_parquet(path: Path, table: Table) -> None:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra("Parquet needs pyarrow: pip install pyarrow (CSV and JSON need nothing)") from error
    types = {"name": pyarrow.string(), "epoch": pyarrow.int64(), "update": pyarrow.int64()}
    arrays = {
        name: pyarrow.array(column, types.get(name, pyarrow.float64()), from_pandas=False)
        for name, column in table.items()
    }
    pyarrow.parquet.write_table(pyarrow.table(arrays), path)


_WRITERS: dict[str, Callable[[Path, Table], None]] = {
    ".csv": _write_csv,
    ".parquet": _write_parquet,
    ".json": _write_json,
}
