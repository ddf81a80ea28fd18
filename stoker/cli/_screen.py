"""What all commands share: a console that is safe for text from files, and finding a run by name."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from stoker._text import escape_control
from stoker.errors import BadFile, did_you_mean
from stoker.record import Follower

STATE_COLORS = {"running": "cyan", "finished": "green", "stopped": "yellow", "failed": "red", "died": "red"}


class Screen(Console):
    """A rich console that escapes control characters in every `str` it prints, so that text can't move the cursor."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Prints; strings keep their line breaks."""
        super().print(*(escape_lines(item) if isinstance(item, str) else item for item in objects), **options)

    @property
    def has_colors(self) -> bool:
        """Whether lines can be distinguished by color."""
        return self.color_system is not None and not self.no_color

    @property
    def ascii_only(self) -> bool:
        """Whether the encoding has no braille characters."""
        return not self.encoding.lower().startswith("utf")


def escape_lines(text: str) -> str:
    r"""Escapes control characters except line breaks.

    >>> print(escape_lines("two\nlines\x1b[2K"))
    two
    lines\x1b[2K
    """
    return "\n".join(map(escape_control, text.split("\n")))


def new_screen() -> Screen:
    """A console on stdout; characters that its encoding lacks become question marks instead of an error."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # pyright: ignore[reportAttributeAccessIssue]
    piped = not sys.stdout.isatty()
    return Screen(highlight=False, emoji=False, soft_wrap=piped, width=160 if piped else None)  # no table is cut


def find_problems(run: Follower) -> list[str]:
    """What could not be read of a run, one line each."""
    read = {"run.json": bool(run.facts), "config.json": run.config is not None}
    damaged = [f"{name} can't be read" for name, known in read.items() if not known and (run.path / name).exists()]
    return [*([run.problem] if run.problem else []), *damaged]


def format_epochs(summary: Mapping[str, Any], between: str = " of ") -> str:
    """How many complete epochs a run has: "3 of 10", or "3" without a planned number."""
    planned, done = summary["epochs_planned"], summary["epochs"]
    return f"{done}{between}{planned}" if planned else str(done)


def list_run_names(folder: str) -> list[str]:
    """The names of the runs in a directory, without reading them."""
    names: list[str] = []
    for directory, subdirectories, files in os.walk(folder):
        subdirectories[:] = sorted(name for name in subdirectories if not name.startswith("."))
        if "events.jsonl" in files:
            subdirectories.clear()  # a run holds checkpoints, not runs
            names.append(os.path.relpath(directory, folder))
    return names


def find_run(name: str, *, folder: str = "runs") -> Path:
    """The directory of a run, given its path or its name in the directory of runs."""
    paths = [path for path in (Path(name), Path(folder) / name) if path.exists()]
    if paths:
        return next((path for path in paths if path.is_file() or (path / "events.jsonl").exists()), paths[0])
    known = list_run_names(folder)
    existing = f"; there are: {', '.join(known[-8:])}" if known else f"; there are no runs in {folder!r}"
    raise BadFile(f"there is no run {name!r}{did_you_mean(name.removeprefix(f'{folder}/'), known) or existing}")
