"""`stoker show RUN`: how a run went, its curves, its numbers, its config, and how it ended."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from stoker._text import escape_control
from stoker.cli import _checkpoints as checkpoints
from stoker.cli._runs import STATES, best, length, problems
from stoker.cli._screen import Screen, screen
from stoker.errors import BadFile, did_you_mean
from stoker.record import (
    Event,
    Follower,
    History,
    Points,
    Record,
    asked,
    duration,
    group_by_metric,
    line_styles,
    runs_in,
    when,
)
from stoker.view.console import Line, chart, legend

_PANELS, _LINES = 6, 6  # more pictures, and more lines in a picture, are left out


def main(name: str, *, verify: bool = False) -> None:
    """Prints everything that is worth knowing about a run; to verify its checkpoints, all of them are read."""
    run = Follower(find(name))
    run.refresh()
    console = screen()
    found = run.summary
    console.print(
        Text.assemble((escape_control(str(run.path)), "bold"), ": ", (run.state, STATES.get(run.state, "red")))
    )
    for problem in problems(run):
        console.print(f"  {problem}", markup=False, style="yellow")
    for line in facts(found, run.facts):
        console.print(f"  {line}", markup=False)
    _pictures(console, run)
    if len(history := History(epochs_of(run))):
        console.print(f"\n{history}", markup=False)
    if wanted := asked(run.config, run.facts, once=True):
        console.print("\nconfig", style="bold")
        for key, value in wanted.items():
            console.print(f"  {key} = {value}", markup=False)
    checkpoints.show(console, run, verify=verify)
    _warnings(console, run)
    console.print("\nhow it ended" if run.state != "running" else "\nit is still running", style="bold")
    for line in ending(run):
        console.print(f"  {line}", markup=False)


def find(name: str, *, folder: str = "runs") -> Path:
    """The directory of a run, by its path or by its name in the folder of runs."""
    places = [path for path in (Path(name), Path(folder) / name) if path.exists()]
    if places:
        return next((path for path in places if path.is_file() or (path / "events.jsonl").exists()), places[0])
    known = [str(run.path.relative_to(folder)) for run in runs_in(folder, read=False)]
    near = did_you_mean(name.removeprefix(f"{folder}/"), known)
    there = near or (f"; there are: {', '.join(known[-8:])}" if known else f"; there are no runs in {folder!r}")
    raise BadFile(f"there is no run {name!r}{there}")


def facts(summary: Mapping[str, Any], facts: Mapping[str, Any]) -> list[str]:
    """What ran, when and how far."""
    lines = []
    if summary["model"]:
        count = f", {summary['parameters']:,} parameters" if summary["parameters"] else ""
        lines.append(f"{summary['model']}{count}, on {summary['device']}")
    lines.append(f"{length(summary)}, {summary['updates']:,} updates, {duration(summary['seconds'])}")
    if summary["best"]:
        lines.append(f"best {best(summary)}")
    if summary["started"]:
        lines.append(f"began {when(summary['started'])}")
    versions = facts.get("versions") or {}
    known = [f"{name} {version}" for name, version in versions.items() if version]
    lines += [", ".join(known)] if known else []
    lines += [f"git {facts['git']}"] if facts.get("git") else []
    return lines


def epochs_of(run: Follower) -> Record:
    """The numbers of a run's epochs, as a record of nothing else."""
    rows: dict[int, dict[str, float]] = {}
    for name in run.names:
        points = run.points(name, source="epochs")
        for epoch, value in zip(points.epoch.tolist(), points.value.tolist(), strict=True):
            rows.setdefault(int(epoch), {})[name] = value
    record = Record()
    if run.begin is not None:
        record.append(run.begin)
    for epoch in sorted(rows):
        record.append(Event("epoch", epoch=epoch, values=rows[epoch]))
    return record


def ending(run: Follower) -> list[str]:
    """Why a run is no longer running; of an exception also where it came from."""
    summary = run.summary
    errors = [event for event in run.said if event.kind == "error"]
    if summary["state"] == "died" and errors:
        trace = str(errors[-1].extra.get("traceback", "")).rstrip().splitlines()
        return [f"error: {errors[-1].text}", *trace[-12:]]
    last = f"the last event came {when(summary['last_event'])}" if summary["last_event"] else "nothing happened in it"
    if run.state == "gone":
        return [run.reason]
    reasons = {"finished": summary["reason"] or "as planned", "running": last, "died": f"{summary['reason']}; {last}"}
    return [reasons.get(summary["state"]) or summary["reason"]]


def pictures(run: Follower) -> dict[str, list[Line]]:
    """The lines of each picture: every number over the updates; of a short run also what came in on the way."""
    found: dict[str, list[Line]] = {}
    for title, names in group_by_metric(run.names).items():
        colours = line_styles(names)
        points = {name: _points(run, name) for name in names[:_LINES]}
        found[title] = [
            Line(escape_control(name), each.update, each.value, colours[name].color)
            for name, each in points.items()
            if len(each) > 1
        ]
    return {title: lines for title, lines in list(found.items())[:_PANELS] if lines}


def _points(run: Follower, name: str) -> Points:
    points = run.points(name, source="epochs")
    return points if len(points) > 2 else run.points(name)  # two are too few for a curve


def _pictures(console: Screen, run: Follower) -> None:
    how = {"ascii_only": console.ascii_only, "colors": console.has_colours}
    for title, lines in pictures(run).items():
        console.print(f"\n{title}", style="bold", markup=False)
        height = 10 if title == "loss" else 7
        for row in chart(lines, min(console.width - 2, 76), height, **how):
            console.print(Text("  ").append_text(row))
        console.print(Text("  ").append_text(legend(lines, **how)))


def _warnings(console: Console, run: Follower) -> None:
    warnings = [event.text for event in run.said if event.kind == "warning"]
    if warnings:
        console.print("\nwarnings", style="bold")
        for text in list(dict.fromkeys(warnings))[-5:]:
            console.print(f"  {text}", markup=False, style="yellow")
