"""`stoker show RUN`: how a run went, its curves, its numbers, its config, and how it ended."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from stoker.cli import _checkpoints as checkpoints
from stoker.cli._runs import STATES, best, epochs
from stoker.cli._screen import screen
from stoker.errors import BadFile, did_you_mean
from stoker.record import History, Record, Run, asked, duration, looks, runs_in, when
from stoker.show import Line, chart, legend

_PANELS, _LINES = 6, 6  # more pictures, and more lines in a picture, are left out


def main(name: str, *, verify: bool = False) -> None:
    """Prints everything that is worth knowing about a run; to verify its checkpoints, all of them are read."""
    run = Run.open(find(name))
    console = screen()
    found = run.summary()
    console.print(Text.assemble((str(run.path), "bold"), ": ", (found["state"], STATES[found["state"]])))
    for line in facts(found, run.facts):
        console.print(f"  {line}", markup=False)
    _pictures(console, run.record)
    if len(history := History(run.record)):
        console.print(f"\n{history}", markup=False)
    if wanted := asked(run.config, run.facts):
        console.print("\nconfig", style="bold")
        for key, value in wanted.items():
            console.print(f"  {key} = {value}", markup=False)
    checkpoints.show(console, run, verify=verify)
    _warnings(console, run)
    console.print("\nhow it ended" if found["state"] != "running" else "\nit is still running", style="bold")
    for line in ending(found, run.record):
        console.print(f"  {line}", markup=False)


def find(name: str, *, folder: str = "runs") -> Path:
    """The directory of a run, by its path or by its name in the folder of runs."""
    for path in (Path(name), Path(folder) / name):
        if path.exists():
            return path
    known = [str(run.path.relative_to(folder)) for run in runs_in(folder)]
    near = did_you_mean(name.removeprefix(f"{folder}/"), known)
    there = near or (f"; there are: {', '.join(known[-8:])}" if known else f"; there are no runs in {folder!r}")
    raise BadFile(f"there is no run {name!r}{there}")


def facts(summary: dict[str, Any], facts: Mapping[str, Any]) -> list[str]:
    """What ran, when and how far."""
    lines = []
    if summary["model"]:
        count = f", {summary['parameters']:,} parameters" if summary["parameters"] else ""
        lines.append(f"{summary['model']}{count}, on {summary['device']}")
    lines.append(f"{epochs(summary)} epochs, {summary['updates']:,} updates, {duration(summary['seconds'])}")
    if summary["best"]:
        lines.append(f"best {best(summary)}")
    if summary["started"]:
        lines.append(f"began {when(summary['started'])}")
    versions = facts.get("versions") or {}
    known = [f"{name} {version}" for name, version in versions.items() if version]
    lines += [", ".join(known)] if known else []
    lines += [f"git {facts['git']}"] if facts.get("git") else []
    return lines


def ending(summary: dict[str, Any], record: Record) -> list[str]:
    """Why a run is no longer running; of an exception also where it came from."""
    errors = record.events_of("error")
    if summary["state"] == "died" and errors:
        trace = str(errors[-1].extra.get("traceback", "")).rstrip().splitlines()
        return [f"error: {errors[-1].text}", *trace[-12:]]
    last = f"the last event came {when(summary['last_event'])}" if summary["last_event"] else "nothing happened in it"
    reasons = {"finished": summary["reason"] or "as planned", "running": last, "died": f"{summary['reason']}; {last}"}
    return [reasons.get(summary["state"]) or summary["reason"]]


def panels(record: Record) -> dict[str, list[Line]]:
    """The lines of each picture: every number over the updates; of a short run also what came in on the way."""
    found: dict[str, list[Line]] = {}
    for title, names in History(record).panels.items():
        colours = looks(names)
        points = {name: np.array(_points(record, name), float).reshape(-1, 2).T for name in names[:_LINES]}
        found[title] = [Line(name, x, y, colours[name].colour) for name, (x, y) in points.items() if len(x) > 1]
    return {title: lines for title, lines in list(found.items())[:_PANELS] if lines}


def _points(record: Record, name: str) -> list[tuple[int, float]]:
    points = record.all(name)
    if len(points) < 3:  # too few for a curve
        on_the_way = [
            (event.update, event.values[name]) for event in record.events_of("progress") if name in event.values
        ]
        return max(points, on_the_way, key=len)
    return points


def _pictures(console: Console, record: Record) -> None:
    plain = not console.encoding.lower().startswith("utf")
    for title, lines in panels(record).items():
        console.print(f"\n{title}", style="bold", markup=False)
        height = 10 if title == "loss" else 7
        for row in chart(lines, min(console.width - 2, 76), height, ascii_only=plain):
            console.print(Text("  ").append_text(row))
        console.print(Text("  ").append_text(legend(lines, ascii_only=plain)))


def _warnings(console: Console, run: Run) -> None:
    warnings = [event.text for event in run.record.events_of("warning")]
    if warnings:
        console.print("\nwarnings", style="bold")
        for text in list(dict.fromkeys(warnings))[-5:]:
            console.print(f"  {text}", markup=False, style="yellow")
