"""Another program's log, told as the events that a fit would have told."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from stoker.record._event import Event
from stoker.record._foreign_names import Named

_MORE_IS_BETTER = ("acc", "accuracy", "auc", "auroc", "dice", "f1", "iou", "precision", "recall")
_LESS_IS_BETTER = ("error", "loss", "mae", "mse", "perplexity", "rmse")
_METRICS = {
    name: {"direction": direction, "unit": ""}
    for direction, names in (("max", _MORE_IS_BETTER), ("min", _LESS_IS_BETTER))
    for name in names
}


class Row(NamedTuple):
    """Numbers that a log has for one moment."""

    update: int
    epoch: int | None  # from 1; None where the log doesn't say
    time: float  # seconds since 1970
    values: Mapping[str, float]


def retold(rows: Sequence[Row], names: Mapping[str, Named], *, plan: str) -> list[Event]:
    """The events from "begin" to "end"; every number is there once, under its new name."""
    counted = _with_epochs(rows, names)
    events = [Event("begin", rows[0].time, extra={"metrics": _METRICS, "plan": [plan]})]
    for _, group in groupby(counted, key=lambda row: row.epoch):
        events += _epoch(list(group), names)
    last = counted[-1]
    extra: dict[str, Any] = {"epochs": last.epoch, "updates": last.update, "seconds": last.time - rows[0].time}
    return [*events, Event("end", last.time, last.epoch or 0, 0, last.update, extra=extra)]


def _with_epochs(rows: Sequence[Row], names: Mapping[str, Named]) -> list[Row]:
    """The rows, each with its epoch: the log's own, else that of the next row that has one."""
    if all(row.epoch is None for row in rows):
        return list(_counted(rows, names))
    known = [row.epoch for row in rows]
    following = next(epoch for epoch in reversed(known) if epoch is not None)
    found = []
    for row in reversed(rows):
        following = row.epoch if row.epoch is not None else following
        found.append(row._replace(epoch=following))
    return found[::-1]


def _counted(rows: Sequence[Row], names: Mapping[str, Named]) -> Iterator[Row]:
    """Where a log knows no epochs, a validation ends one."""
    epoch, judged = 1, -1  # the update of the last validation
    for row in rows:
        if 0 <= judged < row.update:
            epoch, judged = epoch + 1, -1
        yield row._replace(epoch=epoch)
        if any(names[name].name.startswith("valid/") for name in row.values):
            judged = row.update


def _epoch(rows: Sequence[Row], names: Mapping[str, Named]) -> Iterator[Event]:
    often = Counter(names[name] for row in rows for name in row.values)
    latest: dict[str, float] = {}
    for row in rows:
        told: dict[tuple[str, str], dict[str, float]] = {}
        for old, value in row.values.items():
            new = names[old]
            told.setdefault(_kind(new, often[new]), {})[new.name] = value
            if not new.running:
                latest[new.name] = value
        for (kind, name), values in told.items():
            extra = {"phase": "train"} if kind == "progress" else {"name": name} if kind == "valid" else {}
            yield Event(kind, row.time, row.epoch or 0, 0, row.update, values, extra=extra)
    last = rows[-1]
    yield Event("epoch", last.time, last.epoch or 0, 0, last.update, latest)


def _kind(new: Named, often: int) -> tuple[str, str]:
    """The kind of event that tells a number, and the set that it is of."""
    name = new.name.partition("/")[0]
    if new.running:
        return "progress", ""
    if name == "train" and often == 1:
        return "train", ""
    return ("valid", name) if name in ("valid", "test") else ("log", "")
