"""The checkpoints of a run as a table, and what is wrong with those that are damaged."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stoker._text import escape_control
from stoker.errors import BadFile
from stoker.record import Follower, Kept, Run, checkpoints, size, when

if TYPE_CHECKING:
    from stoker.checkpoint import Store


def store_of(run: Run | Follower) -> "Store":
    """The checkpoints of a run, to read them whole."""
    from stoker.checkpoint import Store  # with torch, which takes a second

    return Store(run.path / "checkpoints", run=str(run.facts.get("id", "")))


def show(console: Console, run: Follower, *, verify: bool) -> None:
    """Prints a line for each checkpoint, the best one marked; with `verify` also what is damaged, and why."""
    try:
        found = checkpoints(run.path, run.facts)
    except BadFile as error:
        console.print(f"\n{error}", markup=False, style="red")
        return
    if found:
        console.print("\ncheckpoints", style="bold")
        _print_table(console, found, run)
    if verify:
        damaged = problems(store_of(run))
        for problem in damaged:
            console.print(f"  damaged: {problem}", markup=False, style="red")
        if damaged:
            raise BadFile(f"{len(damaged)} of the checkpoints in {str(run.path)!r} can't be read whole")
        if found:
            console.print("  every byte of them is as it was written", style="green")


def problems(store: "Store") -> list[str]:
    """A line for each checkpoint that can't be read whole, by name; all of them are read."""
    lines = store.newest(lambda saved: False).problems  # those that don't even say what they are
    for saved in store.saved():
        try:
            store.read(saved)
        except BadFile as error:
            lines.append(str(error).replace(f"{store.folder}{os.sep}", ""))
    return lines


def best_of(found: Sequence[Kept], run: Follower) -> Kept | None:
    """The checkpoint with the best of the number that the run is judged by; the first of equals."""
    name: str = run.summary["monitor"] or ""
    sign = -1 if run.direction(name) == "max" else 1
    judged = [saved for saved in found if name in saved.values]
    return min(judged, key=lambda saved: sign * saved.values[name], default=None)


def _print_table(console: Console, found: Sequence[Kept], run: Follower) -> None:
    best = best_of(found, run)
    table = Table("  name", "epoch", "update", "saved", "size", "why", box=None, pad_edge=False)
    for saved in found:
        cells = (str(saved.epoch), f"{saved.update:,}", when(saved.time), size(saved.bytes), saved.reason)
        table.add_row(
            *(Text(escape_control(cell)) for cell in (f"{'*' if saved is best else ' '} {saved.name}", *cells))
        )
    console.print(table)
    if best is not None:
        console.print(f"  * best {run.summary['monitor']}", style="dim", markup=False)
