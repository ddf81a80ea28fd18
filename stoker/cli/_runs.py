"""`stoker runs`: the runs of a folder as a table."""

import os
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from stoker.cli._screen import screen, short
from stoker.errors import InvalidArgument
from stoker.record import runs_in, when

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
        found = run.summary()
        name = os.path.relpath(run.path, folder)
        state = Text(found["state"], style=STATES[found["state"]])
        cells = (run.path.name if name == "." else name, state, epochs(found), best(found), when(found["started"]))
        table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in cells))
    console.print(table)
    console.print("\nstoker show RUN shows one", style="dim")


def epochs(summary: dict[str, Any]) -> str:
    """How far a run came: "3 of 10", or "3" where no number of epochs was planned."""
    planned = summary["epochs_planned"]
    return f"{summary['epochs']} of {planned}" if planned else str(summary["epochs"])


def best(summary: dict[str, Any]) -> str:
    """The best number of a run and its epoch; where there is none, why."""
    found = summary["best"]
    if found is None:
        return summary["reason"].partition("\n")[0] if summary["state"] == "died" else ""
    return f"{found['name']} {short(found['value'])} (epoch {found['epoch']})"
