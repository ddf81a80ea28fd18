"""Which runs a folder holds, and that nothing of them lies outside of it."""

import os
import stat
from pathlib import Path
from typing import NamedTuple

from stoker.view.ui._json import text

EVENTS = "events.jsonl"
_READ = (EVENTS, "run.json", "config.json", "log.txt", "control.json", "checkpoints")  # of a run, by this server


class Found(NamedTuple):
    """The directories of runs by id, and a line for each that is not shown."""

    runs: dict[str, Path]
    problems: list[str]


def find(folder: Path) -> Found:
    """Looks for runs in a folder and in those below it; links to other folders are not followed.

    A run's id is its path in the folder; a folder that is itself a run has its own name for an id.
    """
    found = Found({}, [])
    for place, below, files in os.walk(folder):
        below.sort()
        if EVENTS in files:
            below.clear()  # inside a run are checkpoints, no runs
            path = Path(place)
            name = text(path.relative_to(folder).as_posix() if path != folder else folder.name)
            outside = what_leads_out(path, folder)
            if outside:
                found.problems.append(f"{name} is not shown: its {outside} is no file of its own")
            else:
                found.runs[name] = path
    return found


def what_leads_out(path: Path, folder: Path) -> str:
    """The first of a run's files that is a link to outside of the folder, or no file at all; "" where all is well."""
    for name in _READ:
        file = path / name
        try:
            if stat.S_ISLNK(file.lstat().st_mode) and not Path(os.path.realpath(file)).is_relative_to(folder):
                return name
            kind = file.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:  # links in a ring
            return name
        if not (stat.S_ISDIR(kind) if name == "checkpoints" else stat.S_ISREG(kind)):
            return name
    return ""
