"""`stoker runs`: the runs of a folder as a table."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from stoker._text import escape_control
from stoker.cli._screen import screen, short
from stoker.errors import InvalidArgument
from stoker.record import Follower, runs_in, when

STATES = {"running": "cyan", "finished": "green", "stopped": "yellow", "died": "red"}


def main(folder: str) -> None:
    """Prints a line for each run: its name, how it stands, how far it came, its best number, and when it began."""
    if not Path(folder).is_dir():
        raise InvalidArgument(
            f"there is no folder {folder!r}; name the folder of your runs, or make a first one with `stoker demo`"
        )
    console = screen()
    runs = runs_in(folder)
    if not runs:
        console.print(
            f"no runs in {folder!r} yet; learner.fit(…, run={str(Path(folder, 'first'))!r}) makes one", markup=False
        )
        return
    table = Table("name", "state", "epochs", "best", "began", box=None, pad_edge=False)
    for run in runs:
        found = run.summary
        cells = (name_in(folder, run), run.state, epochs(found), best(found), when(found["started"]))
        styles = ("", STATES.get(run.state, "red"), "", "", "")
        table.add_row(*(Text(escape_control(cell), style) for cell, style in zip(cells, styles, strict=True)))
    console.print(table)
    for run in runs:
        for problem in problems(run):
            console.print(f"{name_in(folder, run)}: {problem}", style="yellow", markup=False)
    console.print("\nstoker show RUN shows one", style="dim")


def name_in(folder: str, run: Follower) -> str:
    """What to call a run in the list of a folder."""
    name = os.path.relpath(run.path, folder)
    return run.name if name == "." else name


def problems(run: Follower) -> list[str]:
    """What of a run could not be read, a line each."""
    found = {"run.json": bool(run.facts), "config.json": run.config is not None}
    damaged = [f"{name} can't be read" for name, known in found.items() if not known and (run.path / name).exists()]
    return [*([run.problem] if run.problem else []), *damaged]


def epochs(summary: Mapping[str, Any]) -> str:
    """How many whole epochs a run came: "3 of 10", or "3" where no number of epochs was planned."""
    planned, whole = summary["epochs_planned"], summary["epochs"] - bool(summary["part"])
    return f"{whole} of {planned}" if planned else str(whole)


def length(summary: Mapping[str, Any]) -> str:
    """How far a run came: "3 of 10 epochs", and "and 7 of 25 batches" where it stopped inside one."""
    part = summary["part"]
    return f"{epochs(summary)} epochs" + (f" and {part[0]:,} of {part[1]:,} batches" if part else "")


def best(summary: Mapping[str, Any]) -> str:
    """The best number of a run and its epoch; where there is none, why."""
    found = summary["best"]
    if found is None:
        return summary["reason"].partition("\n")[0] if summary["state"] == "died" else ""
    return f"{found['name']} {short(found['value'])} (epoch {found['epoch']})"
