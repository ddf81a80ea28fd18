"""What all commands share: a console that is safe for text from files, and finding a run by name."""

import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from stoker._text import escape_control
from stoker.errors import BadFile, did_you_mean
from stoker.record import find_runs


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


def find_run(name: str, *, folder: str = "runs") -> Path:
    """The directory of a run, given its path or its name in the directory of runs."""
    paths = [path for path in (Path(name), Path(folder) / name) if path.exists()]
    if paths:
        return next((path for path in paths if path.is_file() or (path / "events.jsonl").exists()), paths[0])
    known = [str(run.path.relative_to(folder)) for run in find_runs(folder, read=False)]
    existing = f"; there are: {', '.join(known[-8:])}" if known else f"; there are no runs in {folder!r}"
    raise BadFile(f"there is no run {name!r}{did_you_mean(name.removeprefix(f'{folder}/'), known) or existing}")
