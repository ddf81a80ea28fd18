"""The index of a run: an excerpt of its events and thinned curves, so that readers need not read a large record.

The process that writes a run writes it when it closes the record. If `events.jsonl` has changed since, readers ignore
it; they never write one. The file has a line of JSON (the sizes, and where
each curve is), lines of events, and then the curves: for each one the updates, epochs, times and values as float64.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np

from stoker._files import open_regular_file
from stoker.record._columns import EPOCH, PROGRESS, TRAIN, VALID, Columns, Points, read_points
from stoker.record._event import Event, decode_lines, to_line

INDEX = "index.bin"
FORMAT = 1
SMALLEST = 1 << 16  # bytes; a smaller record gets no index, because reading it is as quick
_POINTS = 500  # of each curve
_MESSAGES = 500  # notes, warnings and checkpoints, the last ones
_TAIL = 64  # bytes at the end of the record that identify its content
_MAX_HEADER, _MAX_EXCERPT = 1 << 22, 1 << 24  # bytes
_SOURCES: tuple[Literal["all", "epochs"], ...] = ("all", "epochs")


def write_index(path: Path, events: Sequence[Event], columns: Columns) -> None:
    """Writes the index of a record (`path` is that of its file), if the record is large."""
    with open_regular_file(path) as file:
        size, tail = _identify(file)
    if size < SMALLEST or not events:
        return
    excerpt = sorted(_excerpt(columns).items())
    lines = b"".join(to_line(_last_point_only(_keep_values(events[row], names))) for row, names in excerpt)
    curves: dict[str, dict[str, tuple[int, int]]] = {}
    blocks: list[bytes] = []
    place = 0
    for name in columns.series:
        for source in _SOURCES:
            points = columns.points(name, source).downsample(_POINTS)
            if len(points):
                curves.setdefault(name, {})[source] = (place, len(points))
                blocks += [getattr(points, field).tobytes() for field in Points.__slots__]
                place += len(points) * 4 * 8
    windowed = [name for name in columns.series if name in columns.windowed]
    header = {"format": FORMAT, "size": size, "tail": tail.hex(), "excerpt": len(lines)}
    header |= {"curves": curves, "windowed": windowed}
    target = path.with_name(INDEX)
    temporary = path.with_name(f".{INDEX}.part")
    temporary.unlink(missing_ok=True)
    with temporary.open("xb") as new:
        new.write(json.dumps(header).encode() + b"\n" + lines + b"".join(blocks))
    temporary.replace(target)


def _identify(file: BinaryIO) -> tuple[int, bytes]:
    """The size of a record's file, and its last bytes."""
    size = os.fstat(file.fileno()).st_size
    file.seek(max(0, size - _TAIL))
    return size, file.read(_TAIL)


def _excerpt(columns: Columns) -> dict[int, set[str] | None]:
    """The rows that are enough for the state, summary and status, each with the names of the values to keep.

    `None`: all values. Rows that hold the last or the best value of some numbers keep only those.
    """
    rows: dict[int, set[str]] = {}
    for name, series in columns.series.items():
        if series.rows:
            rows.setdefault(series.rows[-1], set()).add(name)
            direction = columns.direction(name)
            values = np.array(series.values)
            if direction is not None and not np.isnan(values).all():
                best = int(np.nanargmin(values) if direction == "min" else np.nanargmax(values))
                rows.setdefault(series.rows[best], set()).add(name)
    whole = {0, len(columns) - 1}
    messages = [row for row, event in columns.events if event.kind in ("note", "warning", "checkpoint")]
    whole |= {row for row, _ in columns.events} - set(messages[:-_MESSAGES])
    kinds = np.array(columns.kinds)
    for kind in (EPOCH, PROGRESS, TRAIN, VALID):
        whole |= set(np.flatnonzero(kinds == kind)[-2 if kind == EPOCH else -1 :].tolist())  # the last may be cut short
    whole |= {matrices[-1][0] for matrices in columns.matrices.values()}
    return {**rows, **dict.fromkeys(whole)}


def _keep_values(event: Event, names: set[str] | None) -> Event:
    if names is None:
        return event
    return replace(event, values={name: value for name, value in event.values.items() if name in names})


def _last_point_only(event: Event) -> Event:
    points = read_points(event.extra.get("points"))
    if points is None:
        return event
    updates, times, values = points
    last = {"update": updates[-1:].tolist(), "time": times[-1:].tolist()}
    last["values"] = {name: each[-1:].tolist() for name, each in values.items()}
    return replace(event, extra={**event.extra, "points": last})


class Index:
    """An index that was read: `columns` holds the excerpt, and `points` reads a curve from the file."""

    def __init__(
        self, path: Path, inside: Path | None, start: int, columns: Columns, curves: Mapping[str, Any]
    ) -> None:
        self.columns = columns
        self._path, self._inside, self._start, self._curves = path, inside, start, curves

    def points(self, name: str, source: str) -> Points:
        """A thinned curve; see `Numbers.points`."""
        if source == "running":
            source = "all" if name in self.columns.windowed else ""
        block = b""
        try:
            place, count = map(int, self._curves[name][source])
            if place < 0 or not 0 <= count <= 4 * _POINTS:
                raise ValueError("the curve is outside of the file")
            with open_regular_file(self._path, inside=self._inside) as file:
                file.seek(self._start + place)
                block = file.read(4 * 8 * count)
        except (OSError, ValueError, TypeError, LookupError):  # unknown, or damaged
            pass
        values = np.frombuffer(block[: len(block) // 32 * 32], dtype=np.float64)
        return Points(*(np.array(part) for part in np.split(values, 4)))


def read_index(path: Path, inside: Path | None) -> Index | None:
    """The index of a record's file; `None` if it is missing or damaged, or the file has changed since."""
    target = path.with_name(INDEX)
    try:
        with open_regular_file(target, inside=inside) as file:
            line = file.readline(_MAX_HEADER)
            header = json.loads(line)
            with open_regular_file(path, inside=inside) as record:
                if header["format"] != FORMAT or (header["size"], bytes.fromhex(header["tail"])) != _identify(record):
                    return None
            count = int(header["excerpt"])
            excerpt = file.read(count) if 0 < count <= _MAX_EXCERPT else b""
        curves = dict(header["curves"])
        windowed = set(header["windowed"])
    except (OSError, ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError):
        return None
    columns = Columns(sample="ends")
    columns.extend(decode_lines(excerpt))
    columns.windowed |= windowed
    columns.order_series(list(curves))
    return Index(target, inside, len(line) + count, columns, curves)
