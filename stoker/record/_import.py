"""Another program's log as a run, to compare with."""

import os
import time
from pathlib import Path
from typing import Any

from stoker.errors import BadFile, MissingFile
from stoker.record._event import Event, to_line
from stoker.record._foreign_names import Named, spelled
from stoker.record._journal import EVENTS
from stoker.record._lightning import HPARAMS, METRICS, read_hparams, read_metrics
from stoker.record._retell import Row, retold
from stoker.record._run import Run
from stoker.record._tfevents import tensorboard_events

_FILES = "*tfevents*"


def import_log(source: str | os.PathLike[str], path: str | os.PathLike[str], *, rename: bool = True) -> Run:
    """Makes a run of what Lightning's CSVLogger or any writer for TensorBoard left in a folder.

    >>> from stoker.record import TensorBoardFile
    >>> file = TensorBoardFile("lightning_logs/version_0", update=0)
    >>> file.write({"val_loss": 0.25}, update=10, time=1.5)
    >>> file.close()
    >>> run = import_log("lightning_logs/version_0", "runs/old")
    >>> run.record.all("valid/loss"), run.summary()["state"]
    ([(10, 0.25)], 'finished')

    Names become stoker's (`val_loss` is `valid/loss`), unless `rename=False`; `run.json` says which were changed, and
    where all of it came from. `hparams.yaml` becomes the config. The times are the log's own; Lightning's CSV has none,
    so there they lie between those of its files.
    """
    source = Path(source)
    kind, rows = _read(source)
    if not rows:
        raise BadFile(f"{str(source)!r} has no numbers in it")
    old = dict.fromkeys(name for row in rows for name in row.values)
    names = spelled(old) if rename else {name: Named(name) for name in old}
    config, problem = read_hparams(source if source.is_dir() else source.parent)
    origin = f"imported from {source.absolute()} ({kind})"
    events = retold(rows, names, plan=origin)
    said = [Event("note", rows[0].time, text=origin)]
    said += [Event("warning", rows[0].time, text=problem)] if problem else []
    run = Run.create(path, config=config, facts=_facts(source, kind, rows, names))
    run.close()
    # Not appended one by one: the record would thin what came on the way, by its own clock.
    with (run.path / EVENTS).open("ab") as file:
        file.writelines(map(to_line, [events[0], *said, *events[1:]]))
    run.log("\n".join(event.text for event in said))
    return Run.open(run.path)


def _read(source: Path) -> tuple[str, list[Row]]:
    if not source.exists():
        raise MissingFile(f"there is nothing at {str(source)!r}")
    table = source if source.name == METRICS else source / METRICS
    if table.is_file():
        return "Lightning CSV", read_metrics(table)
    if source.is_file():
        raise BadFile(f"{str(source)!r} is a file; expected the folder that the log is in")
    folders = sorted({path.parent for path in source.rglob(_FILES)})
    if folders:
        done = 1 if (source / HPARAMS).exists() else 0  # Lightning's steps count from 0
        return "TensorBoard", _in_order([row for folder in folders for row in _rows(folder, source, done)])
    raise BadFile(f"{str(source)!r} holds no log that is known: expected {METRICS} (Lightning's) or {_FILES}")


def _rows(folder: Path, source: Path, done: int) -> list[Row]:
    """The rows of one folder; the numbers of one below the source have its name before theirs, as in TensorBoard."""
    below = folder.relative_to(source).as_posix()
    before = "" if below == "." else f"{below}/"
    found = []
    for said in tensorboard_events(folder):
        values = {f"{before}{name}": value for name, value in said.values.items() if name != "epoch"}
        epoch = said.values.get("epoch")  # Lightning's, from 0
        epoch = int(epoch) + 1 if epoch is not None and 0 <= epoch < 1e9 else None
        found.append(Row(max(0, said.step + done), epoch, said.time, values))
    return found


def _in_order(rows: list[Row]) -> list[Row]:
    """By update, and what a writer told one by one at an update in one row."""
    merged: dict[int, list[Row]] = {}
    for row in sorted(rows, key=lambda row: (row.update, row.time)):
        same = merged.setdefault(row.update, [])
        if same and not (set(same[-1].values) & set(row.values)):
            epoch = same[-1].epoch if row.epoch is None else row.epoch
            same[-1] = Row(row.update, epoch, row.time, {**same[-1].values, **row.values})
        else:
            same.append(row)
    return [row for same in merged.values() for row in same if row.values]


def _facts(source: Path, kind: str, rows: list[Row], names: dict[str, Named]) -> dict[str, Any]:
    changed = {old: new.name for old, new in names.items() if new.name != old}
    about = {"from": str(source.absolute()), "kind": kind, "time": time.time(), "names": changed}
    # Of the program that wrote the log nothing is known, and this process is not the one.
    unknown = {"command": [], "folder": "", "git": None, "pid": None, "host": "", "platform": "", "versions": {}}
    return {"imported": about, "started": rows[0].time, **unknown}
