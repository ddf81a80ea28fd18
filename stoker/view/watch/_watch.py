"""`watch` and `page`, and finding the run to watch."""

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.text import Text

from stoker._text import escape_control
from stoker.errors import MissingFile, explain_missing
from stoker.record import Follower
from stoker.view.watch import _panes as panes
from stoker.view.watch._reader import Snapshot, View, take_snapshot

_EVENTS = "events.jsonl"
_MAX_DEPTH = 4  # folders below the one where the search starts
_CHART_LINES, _LOG_LINES = 12, 8  # of a page


def watch(runs: Sequence[str | os.PathLike[str]], *, light: bool | None = None) -> int:
    """Shows runs on this terminal until the user presses `q`; returns 0, or 1 if the screen failed.

    Several runs are drawn in one chart. `light` chooses the theme if the terminal does not say which it needs. After
    the screen is closed the state of each run is printed. Needs Textual (`stoker[watch]`).
    """
    with explain_missing("watch needs textual: pip install 'stoker[watch]'"):
        from stoker.view.watch._app import Dashboard
    if os.environ.get("NO_COLOR") == "":
        del os.environ["NO_COLOR"]  # Textual only checks whether it is set; an empty value means nothing
    app = Dashboard([Follower(run) for run in runs], light=light)
    app.run()
    if app.failure is not None:
        raise app.failure
    for run in app.snapshot.runs if app.snapshot is not None else ():
        note = " (it continues without the viewer)" if run.state == "running" else ""
        print(f"{escape_control(run.path)}: {run.state}{note}")
    return app.return_code or 0


def page(followers: Sequence[Follower], *, width: int = 100, ascii_only: bool = False) -> str:
    """The current state of runs as plain text without escape codes.

    >>> from stoker.record import Run
    >>> run = Run.create("runs/letters")
    >>> follower = Follower("runs/letters")
    >>> follower.refresh()
    True
    >>> print(page([follower]))
    runs/letters: running
    phase    starting
    epoch    0
    update   0
    time     0:00
    >>> run.close()
    """
    snapshots = [take_snapshot(followers, View(run=number)) for number in range(len(followers))]
    parts = [part for snapshot in snapshots for part in _describe_run(snapshot, width)]
    if snapshots and snapshots[0].lines:
        parts.append(panes.draw_chart(snapshots[0], width, _CHART_LINES, ascii_only=ascii_only, colors=False))
    return "\n\n".join("\n".join(line.rstrip() for line in part.plain.split("\n")) for part in parts)


def _describe_run(snapshot: Snapshot, width: int) -> list[Text]:
    run = snapshot.run
    heading = Text(f"{escape_control(run.path)}: {run.state}")
    if run.title:
        heading.append(f" ({escape_control(run.title)})")
    banner = panes.banner(snapshot)
    status = Text("\n").join([heading, *([banner] if banner else []), panes.status(snapshot, width, 20)])
    parts = [status, panes.metrics(snapshot, width, 40), Text("\n").join(panes.log_lines(run, _LOG_LINES))]
    return [part for part in parts if part.plain.strip()]


def newest(folder: str | os.PathLike[str]) -> Path | None:
    """The run under a folder that was written to last; `None` if there is no run.

    >>> newest(".") is None
    True
    """
    return max(_runs_under(Path(folder)), key=_last_write, default=None)


def wait_for(*paths: str | os.PathLike[str], every: float = 0.2) -> Path:
    """Waits until a run starts at one of the paths and returns that path."""
    candidates = [Path(path) for path in paths]
    while True:
        for path in candidates:
            if (path / _EVENTS).exists():
                return path
        if not any(path.absolute().parent.is_dir() for path in candidates):
            first = candidates[0]
            raise MissingFile(
                f"no run can start at {str(first)!r}: the folder {str(first.parent)!r} does not exist; check "
                "the path, or create the folder"
            )
        time.sleep(every)


def _runs_under(folder: Path) -> Iterator[Path]:
    for directory, subdirectories, files in os.walk(folder):
        path = Path(directory)
        if _EVENTS in files:
            subdirectories.clear()  # a run contains checkpoints, not runs
            yield path
        if len(path.relative_to(folder).parts) >= _MAX_DEPTH:
            subdirectories.clear()
        subdirectories[:] = [name for name in subdirectories if not name.startswith(".")]


def _last_write(run: Path) -> float:
    try:
        return (run / _EVENTS).stat().st_mtime
    except OSError:  # deleted meanwhile
        return 0.0
