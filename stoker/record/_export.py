"""A run's numbers as a file for other programs."""

import csv
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from stoker.errors import BadFile, InvalidArgument, MissingExtra
from stoker.record._event import plain
from stoker.record._follow import Follower
from stoker.record._journal import EVENTS
from stoker.record._run import CONFIG, FACTS, Run
from stoker.record._table import Columns, Source, by_point, by_row

_OWN = (EVENTS, CONFIG, FACTS, "control.json")  # a run's files that such a file could be written over


def export(
    run: "str | os.PathLike[str] | Run | Follower",
    path: str | os.PathLike[str],
    *,
    source: Source = "epochs",
    long: bool = False,
) -> Path:
    """Writes a run's numbers as CSV, Parquet or JSON, by the path's ending, and returns the path.

    >>> from stoker.record import Event
    >>> run = Run.create("runs/digits")
    >>> run.record.append(Event("valid", 1.5, epoch=1, update=10, values={"valid/loss": 0.1 + 0.2}))
    >>> run.close()
    >>> print(export(run, "digits.csv").read_text(), end="")
    epoch,update,time,valid/loss
    1,10,1.5,0.30000000000000004

    `source` is "epochs" (a row each), "running" (what was told on the way) or "all" (both, a row for each update that
    has numbers). With `long`, each row is one number: name, epoch, update, time, value. Every number comes back to
    the bit. Where a row lacks one, CSV has nothing, Parquet and JSON have null. NaN and the infinities are `nan`,
    `inf`, `-inf` in CSV, themselves in Parquet, and "NaN", "Infinity", "-Infinity" in JSON. A file that is there is
    replaced, in one go.
    """
    path = Path(path)
    write = _WRITERS.get(path.suffix.lower())
    if write is None:
        raise InvalidArgument(f"{str(path)!r}: expected a name that ends in {', '.join(_WRITERS)}")
    if source not in ("epochs", "all", "running"):
        raise InvalidArgument(f'source={source!r}: expected "epochs", "all" or "running"')
    follower = run if isinstance(run, Follower) else Follower(run.path if isinstance(run, Run) else run)
    follower.refresh()
    if follower.state == "gone":
        raise BadFile(f"{follower.path}: {follower.problem}")
    if path.name in _OWN and path.absolute().parent.resolve() == follower.path.resolve():
        raise InvalidArgument(f"{str(path)!r} is a file of the run itself; choose another name")
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.part")
    try:
        write(draft, (by_point if long else by_row)(follower, source))
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return path


def _rows(columns: Columns) -> Iterable[tuple[object, ...]]:
    return zip(*columns.values(), strict=True)


def _write_csv(path: Path, columns: Columns) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")  # floats as their repr, which comes back to the bit
        writer.writerow(columns)
        writer.writerows(_rows(columns))


def _write_json(path: Path, columns: Columns) -> None:
    lines = (json.dumps(plain(dict(zip(columns, row, strict=True)))) for row in _rows(columns))
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def _write_parquet(path: Path, columns: Columns) -> None:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra("Parquet needs pyarrow: pip install pyarrow (CSV and JSON need nothing)") from error
    types = {"name": pyarrow.string(), "epoch": pyarrow.int64(), "update": pyarrow.int64()}
    arrays = {
        name: pyarrow.array(column, types.get(name, pyarrow.float64()), from_pandas=False)
        for name, column in columns.items()
    }
    pyarrow.parquet.write_table(pyarrow.table(arrays), path)


_WRITERS: dict[str, Callable[[Path, Columns], None]] = {
    ".csv": _write_csv,
    ".parquet": _write_parquet,
    ".json": _write_json,
}
