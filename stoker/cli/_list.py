"""`stoker runs`: the runs of a directory, one line each, sorted and filtered."""

import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from rich.text import Text

from stoker._text import escape_control, format_clock, format_short, format_time, shorten, shorten_middle
from stoker.cli._screen import STATE_COLORS, find_problems, format_epochs, new_screen
from stoker.errors import BadFile, InvalidArgument, did_you_mean
from stoker.record import Annotations, Follower, find_runs, read_annotations, run_settings

_MAIN = ("lr", "batch_size", "optimizer", "seed")  # settings that are shown if the runs do not differ in any
_CONDITION = re.compile(r"(.+?)(<=|>=|!=|==|=|<|>)(.*)", re.DOTALL)  # a field, a sign and a value
_MAX_NAME, _MIN_SETTINGS = 28, 8  # columns on a terminal


class Row(NamedTuple):
    """A run of the list."""

    name: str
    run: Follower
    annotations: Annotations
    settings: Mapping[str, Any]

    @property
    def started(self) -> float | None:
        """When the run began, in seconds since 1970."""
        started = self.run.facts.get("started")
        return float(started) if isinstance(started, int | float) else self.run.summary["started"]

    @property
    def title(self) -> str:
        """The name, after the title that a person gave it."""
        return f"{self.annotations.title} ({self.name})" if self.annotations.title else self.name

    def field(self, name: str) -> Any:
        """A value to sort or filter by: a column, a setting, or the best (else the last) value of a metric."""
        summary = self.run.summary
        best = summary["best"]
        fields = {
            "name": self.title,
            "state": self.run.state,
            "epochs": summary["epochs"],
            "updates": summary["updates"],
            "time": summary["seconds"],
            "seconds": summary["seconds"],
            "started": self.started,
            "best": best["value"] if best else None,
            "tag": list(self.annotations.tags),
            **{fact: summary[fact] for fact in ("model", "device", "parameters")},
        }
        if name in fields:
            return fields[name]
        if name in self.settings:
            return self.settings[name]
        if name in self.run.names and self.run.direction(name) is not None:
            value = self.run.best(name)
            return value.value if value is not None else None
        return summary["last"].get(name)


def list_runs(words: Sequence[str], *, sort: str, reverse: bool, as_json: bool, archived: bool) -> None:
    """Prints one line per run, newest first; `words` are the directory and the conditions."""
    conditions = [match.groups() for word in words if (match := _CONDITION.fullmatch(word)) and not Path(word).is_dir()]
    folders = [word for word in words if not _CONDITION.fullmatch(word) or Path(word).is_dir()]
    if len(folders) > 1:
        raise InvalidArgument(f"expected one directory; got {' and '.join(folders)}. A condition looks like 'lr<0.01'")
    folder = folders[0] if folders else "runs"
    if not Path(folder).is_dir():
        raise InvalidArgument(
            f"there is no directory {folder!r}; give the directory of your runs, or create a run with `stoker demo`"
        )
    screen = new_screen()
    unreadable: list[OSError] = []
    runs = find_runs(folder, read=False, on_error=unreadable.append)
    for run in runs:
        if run.has_unread and not run.is_indexed:  # a large record without an index: it is still written, or has died
            run.refresh()
    found = [_read_row(run, folder) for run in runs]
    rows = [row for row in found if archived or not row.annotations.archived]
    for name in {sort, *(condition[0] for condition in conditions)}:
        _check_field(name, found)
    rows = [row for row in rows if all(_meets(row.field(name), sign, wanted) for name, sign, wanted in conditions)]
    rows = _sort(rows, sort, reverse=reverse)
    if as_json:
        print(json.dumps([_to_json(row) for row in rows], indent=2, allow_nan=False))
        return
    if unreadable:
        lines = [f"{error.filename} can't be read: {error.strerror}" for error in unreadable]
        screen.print("\n".join(lines), style="yellow", markup=False)
    elif not found:
        example = str(Path(folder, "first"))
        screen.print(f"no runs in {folder!r} yet; learner.fit(…, run={example!r}) creates one", markup=False)
    elif not rows:
        screen.print(f"none of the {len(found)} runs in {folder!r} meets this; --all shows archived runs", markup=False)
    if not rows:
        return
    for line in _table(rows, None if screen.soft_wrap else screen.width):
        screen.print(line)
    for row in rows:
        for problem in find_problems(row.run):
            screen.print(f"{row.name}: {problem}", style="yellow", markup=False)
    screen.print("\nstoker show RUN shows one", style="dim")


def _read_row(run: Follower, folder: str) -> Row:
    try:
        annotations = read_annotations(run.path)
    except BadFile:
        annotations = Annotations()
    name = run.name if run.path == Path(folder) else os.path.relpath(run.path, folder)
    return Row(name, run, annotations, run_settings(run.config, run.facts))


def _check_field(name: str, rows: Sequence[Row]) -> None:
    """Raises if no run has the field."""
    if not rows or any(row.field(name) is not None for row in rows):
        return
    built_in = ("name", "state", "epochs", "updates", "time", "started", "best", "tag", "model", "device", "parameters")
    if name in built_in:
        return
    known = dict.fromkeys([*built_in, *(key for row in rows for key in (*row.settings, *row.run.summary["last"]))])
    hint = did_you_mean(name, known) or f". There are: {', '.join(known)}"
    raise InvalidArgument(f"no run has {name!r}{hint}")


def _meets(actual: Any, sign: str, wanted: str) -> bool:
    """Whether a value meets a condition; a value that is unknown only differs."""
    if isinstance(actual, list):
        found = any(_meets(item, "=", wanted) for item in actual)
        return found != (sign == "!=")
    number = _to_number(wanted)
    if isinstance(actual, int | float) and not isinstance(actual, bool) and number is not None:
        tests = {"<": actual < number, "<=": actual <= number, ">": actual > number, ">=": actual >= number}
        return tests.get(sign, (actual == number) != (sign == "!="))
    if sign in ("<", "<=", ">", ">="):
        return False
    same = actual is not None and fnmatchcase(str(actual).lower(), wanted.strip().lower())
    return same != (sign == "!=")


def _to_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _sort(rows: Iterable[Row], name: str, *, reverse: bool) -> list[Row]:
    """Sorts by a field: times newest first, what is better by more first; runs without a value come last."""

    def rank(row: Row) -> tuple[bool, bool, Any]:
        value = row.field(name)
        is_number = isinstance(value, int | float) and not math.isnan(value)
        is_missing = value is None or value == [] or (isinstance(value, float) and math.isnan(value))
        metric = (row.run.summary["best"] or {}).get("name", "") if name == "best" else name
        falls = name == "started" or row.run.direction(metric) == "max"
        key: Any = str(value).lower()
        if isinstance(value, int | float):
            key = -value if falls else value
        return is_missing, not is_number, key

    ordered = sorted(rows, key=rank)
    if not reverse:
        return ordered
    known = [row for row in ordered if not rank(row)[0]]
    return [*reversed(known), *ordered[len(known) :]]


def _to_json(row: Row) -> dict[str, Any]:
    added = row.annotations
    values = {"name": row.name, "path": str(row.run.path), **row.run.summary, "state": row.run.state}
    values |= {"settings": dict(row.settings), "title": added.title, "tags": list(added.tags), "note": added.note}
    return _finite({**values, "archived": added.archived})


def _finite(value: Any) -> Any:
    """The value with `None` for NaN and infinities, which JSON lacks."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def _table(rows: Sequence[Row], width: int | None) -> list[Text]:
    """A header and a line per run; on a terminal of this width, what is too long is cut."""
    monitors = {row.run.summary["best"]["name"] for row in rows if row.run.summary["best"]}
    common = next(iter(monitors)) if len(monitors) == 1 else None
    cells = {
        "name": [row.title for row in rows],
        "state": [row.run.state for row in rows],
        "epochs": [format_epochs(row.run.summary, "/") for row in rows],
        common or "best": [_best(row, common) for row in rows],
        "time": [format_clock(row.run.summary["seconds"]) for row in rows],
        "started": [format_time(row.started)[5 if width is not None and width < 100 else 0 :] for row in rows],
    }
    cells = {name: [escape_control(cell) for cell in column] for name, column in cells.items()}
    if width is not None:
        longest = max(12, min(_MAX_NAME, width - 80 + _MAX_NAME))
        cells["name"] = [shorten_middle(name, longest) for name in cells["name"]]
        cells[common or "best"] = [shorten(cell, 24) for cell in cells[common or "best"]]
    sizes = {name: max(len(name), *map(len, column)) for name, column in cells.items()}
    room = None if width is None else width - sum(sizes.values()) - 2 * len(sizes) - 1
    if room is not None and room < _MIN_SETTINGS:  # the start is the least important
        del cells["started"]
        room += sizes.pop("started") + 2
    settings = [escape_control(text) for text in _settings(rows)]
    if room is not None:
        settings = [shorten(text, max(0, room)) if room > 3 else "" for text in settings]
    head = "  ".join(f"{escape_control(name):<{size}}" for name, size in sizes.items())
    lines = [Text(f"{head}  settings" if any(settings) else head.rstrip(), style="bold")]
    right = ("epochs", common or "best", "time")
    for number, (row, setting) in enumerate(zip(rows, settings, strict=True)):
        line = Text()
        for name, size in sizes.items():
            text = f"{cells[name][number]:{'>' if name in right else '<'}{size}}  "
            line.append(text, style=STATE_COLORS.get(row.run.state, "red") if name == "state" else "")
        tags = "".join(f" #{escape_control(tag)}" for tag in row.annotations.tags)
        line.append(setting).append(tags, style="cyan")
        line.rstrip()
        if width is not None:
            line.truncate(width - 1, overflow="ellipsis")
        lines.append(line)
    return lines


def _best(row: Row, common: str | None) -> str:
    """The best value, with its name if that is not in the header."""
    best = row.run.summary["best"]
    if best is None:
        return ""
    return format_short(best["value"]) if common else f"{format_short(best['value'])} {best['name']}"


def _settings(rows: Sequence[Row]) -> list[str]:
    """The settings in which the runs differ, else their main ones; before them, why a run has no result."""
    names = dict.fromkeys(name for row in rows for name in row.settings)
    different = [name for name in names if len({repr(row.settings.get(name)) for row in rows}) > 1]
    names = sorted(different or _MAIN, key=lambda name: _MAIN.index(name) if name in _MAIN else len(_MAIN))
    lines = []
    for row in rows:
        shown = {name: row.settings[name] for name in names if row.settings.get(name) not in (None, "", {}, [])}
        texts = [f"{name.rpartition('.')[2]}={_value(value)}" for name, value in shown.items()]
        has_failed = row.run.summary["best"] is None and row.run.state in ("failed", "died")
        reason = row.run.summary["reason"].partition("\n")[0] if has_failed else ""
        lines.append(" ".join(filter(None, [reason, *texts])))
    return lines


def _value(value: Any) -> str:
    return format_short(value) if isinstance(value, float) else str(value)
