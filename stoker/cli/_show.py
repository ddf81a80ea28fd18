"""`stoker show`: one run in detail."""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from stoker._text import escape_control, format_duration, format_short, format_size, format_time
from stoker.cli._screen import STATE_COLORS, Screen, find_problems, find_run, format_epochs, new_screen
from stoker.errors import BadFile
from stoker.record import (
    CheckpointInfo,
    Event,
    Follower,
    History,
    Record,
    Run,
    group_by_metric,
    line_styles,
    list_checkpoints,
    read_annotations,
    run_settings,
)
from stoker.view.console import Line, chart, legend

if TYPE_CHECKING:
    from stoker.checkpoint import Store

_CHARTS, _LINES = 6, 6  # at most so many charts, and lines in each


def show_run(name: str, *, verify: bool = False) -> None:
    """Prints a run's facts, charts, table of epochs, config, checkpoints and end; `verify` reads all checkpoints."""
    run = Follower(find_run(name))
    run.refresh()
    screen = new_screen()
    title = (escape_control(str(run.path)), "bold"), ": ", (run.state, STATE_COLORS.get(run.state, "red"))
    screen.print(Text.assemble(*title))
    for problem in find_problems(run):
        screen.print(f"  {problem}", markup=False, style="yellow")
    for line in (*_annotations(run), *_facts(run.summary, run.facts)):
        screen.print(f"  {line}", markup=False)
    _print_charts(screen, run)
    if len(history := History(_record_of_epochs(run))):
        screen.print(f"\n{history}", markup=False)
    if settings := run_settings(run.config, run.facts):
        screen.print("\nconfig", style="bold")
        for key, value in settings.items():
            screen.print(f"  {key} = {value}", markup=False)
    _print_checkpoints(screen, run, verify=verify)
    warnings = dict.fromkeys(event.text for event in run.messages if event.kind == "warning")
    if warnings:
        screen.print("\nwarnings", style="bold")
        for text in list(warnings)[-5:]:
            screen.print(f"  {text}", markup=False, style="yellow")
    screen.print("\nstill running" if run.state == "running" else "\nend", style="bold")
    for line in _end(run):
        screen.print(f"  {line}", markup=False)


def open_store(run: Run | Follower) -> "Store":
    """The run's checkpoints, to read them in full."""
    from stoker.checkpoint import Store  # imports torch, which takes a second

    return Store(run.path / "checkpoints", run=str(run.facts.get("id", "")))


def _annotations(run: Follower) -> list[str]:
    """What people added to the run, one line each."""
    try:
        added = read_annotations(run.path)
    except BadFile as error:
        return [str(error)]
    tags = " ".join(f"#{tag}" for tag in added.tags)
    return [line for line in (added.title, tags, added.note, "archived" if added.archived else "") if line]


def _facts(summary: Mapping[str, Any], facts: Mapping[str, Any]) -> list[str]:
    lines = []
    if summary["model"]:
        count = f", {summary['parameters']:,} parameters" if summary["parameters"] else ""
        lines.append(f"{summary['model']}{count}, on {summary['device']}")
    part = f" and {summary['part'][0]:,} of {summary['part'][1]:,} batches" if summary["part"] else ""
    length = f"{format_epochs(summary)} epochs{part}, {summary['updates']:,} updates"
    lines.append(f"{length}, {format_duration(summary['seconds'])}")
    if best := summary["best"]:
        lines.append(f"best {best['name']} {format_short(best['value'])} (epoch {best['epoch']})")
    if summary["started"]:
        lines.append(f"started {format_time(summary['started'])}")
    versions = [f"{name} {version}" for name, version in (facts.get("versions") or {}).items() if version]
    lines += [", ".join(versions)] if versions else []
    lines += [f"git {facts['git']}"] if facts.get("git") else []
    return lines


def _record_of_epochs(run: Follower) -> Record:
    """A record that holds only the numbers of each epoch, for a `History`."""
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


def _end(run: Follower) -> list[str]:
    """Why the run ended, with the last lines of a traceback; of a running run the time of its last event."""
    summary = run.summary
    errors = [event for event in run.messages if event.kind == "error"]
    if run.state == "gone":
        return [run.reason]
    if summary["state"] == "failed" and errors:
        trace = str(errors[-1].extra.get("traceback", "")).rstrip().splitlines()
        return [f"error: {errors[-1].text}", *trace[-12:]]
    last = f"last event: {format_time(summary['last_event'])}" if summary["last_event"] else "no events yet"
    texts = {"finished": summary["reason"] or "as planned", "running": last, "died": f"{summary['reason']}; {last}"}
    return [texts.get(summary["state"]) or summary["reason"]]


def _print_charts(screen: Screen, run: Follower) -> None:
    """A chart per metric over the updates; with fewer than three epochs, running values are drawn too."""
    options = {"ascii_only": screen.ascii_only, "colors": screen.has_colors}
    charts: dict[str, list[Line]] = {}
    for title, names in group_by_metric(run.names).items():
        styles = line_styles(names)
        for name in names[:_LINES]:
            points = run.points(name, source="epochs")
            points = points if len(points) > 2 else run.points(name)
            if len(points) > 1:
                line = Line(escape_control(name), points.update, points.value, styles[name].color)
                charts.setdefault(title, []).append(line)
    for title, lines in list(charts.items())[:_CHARTS]:
        screen.print(f"\n{title}", style="bold", markup=False)
        for row in chart(lines, min(screen.width - 2, 76), 10 if title == "loss" else 7, **options):
            screen.print(Text("  ").append_text(row))
        screen.print(Text("  ").append_text(legend(lines, **options)))


def _print_checkpoints(screen: Screen, run: Follower, *, verify: bool) -> None:
    """One line per checkpoint, the best one marked; with `verify` also what is damaged."""
    try:
        checkpoints = list_checkpoints(run.path, run.facts)
    except BadFile as error:
        screen.print(f"\n{error}", markup=False, style="red")
        return
    if checkpoints:
        screen.print("\ncheckpoints", style="bold")
        _print_checkpoint_table(screen, checkpoints, run)
    if verify:
        damaged = _damaged_checkpoints(open_store(run))
        for problem in damaged:
            screen.print(f"  damaged: {problem}", markup=False, style="red")
        if damaged:
            raise BadFile(f"{len(damaged)} of the checkpoints in {str(run.path)!r} are damaged")
        if checkpoints:
            screen.print("  all checkpoints are intact", style="green")


def _print_checkpoint_table(screen: Screen, checkpoints: Sequence[CheckpointInfo], run: Follower) -> None:
    monitor: str = run.summary["monitor"] or ""
    sign = -1 if run.direction(monitor) == "max" else 1
    scored = [info for info in checkpoints if monitor in info.values]
    best = min(scored, key=lambda info: sign * info.values[monitor], default=None)
    table = Table("  name", "epoch", "update", "saved", "size", "reason", box=None, pad_edge=False)
    for info in checkpoints:
        name = f"{'*' if info is best else ' '} {info.name}"
        saved, size = format_time(info.time), format_size(info.bytes)
        cells = (name, str(info.epoch), f"{info.update:,}", saved, size, info.reason)
        table.add_row(*(Text(escape_control(cell)) for cell in cells))
    screen.print(table)
    if best is not None:
        screen.print(f"  * best {monitor}", style="dim", markup=False)


def _damaged_checkpoints(store: "Store") -> list[str]:
    """One line per checkpoint that can't be read in full."""
    lines = list(store.newest(lambda saved: False).problems)  # those whose manifest is damaged
    for saved in store.saved():
        try:
            store.read(saved)
        except BadFile as error:
            lines.append(str(error).replace(f"{store.folder}{os.sep}", ""))
    return lines
