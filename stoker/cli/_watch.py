"""`stoker watch [RUN …]`: runs on a terminal, live; where stdout is none, one page of text."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from stoker.cli._screen import screen
from stoker.cli._show import find
from stoker.errors import BadFile, MissingFile
from stoker.record import Follower
from stoker.view.watch import newest, page, wait_for, watch


def main(names: Sequence[str], *, wait: bool = False, light: bool | None = None) -> int:
    """Watches the runs that are named, else the newest one."""
    paths = [_run(name, wait=wait) for name in names] or [_newest()]
    if _can_draw():
        return watch(paths, light=light)
    followers = [Follower(path) for path in paths]
    for follower in followers:
        follower.refresh()
    console = screen()
    text = page(followers, ascii_only=console.ascii_only)
    console.print(text, markup=False, soft_wrap=True)
    return 0


def _run(name: str, *, wait: bool) -> Path:
    """A run by its path, by its name in runs, or the newest one in a folder of runs."""
    places = [Path(name), Path("runs", name)]
    for place in places:
        if place.is_file():
            return place
        if found := newest(place):
            return found
    if wait:
        print(f"waiting for {name} to begin; Ctrl-C ends that", file=sys.stderr)
        return wait_for(*places)
    try:
        return find(name)
    except BadFile as error:
        raise BadFile(f"{error}; --wait waits for one that has not begun yet") from None


def _newest() -> Path:
    for folder in ("runs", "."):
        if found := newest(folder):
            return found
    raise MissingFile("there is no run in 'runs' nor below this folder; name one, or make a first with `stoker demo`")


def _can_draw() -> bool:
    dumb = os.environ.get("TERM", "").lower() in ("", "dumb", "unknown")
    return sys.stdout.isatty() and sys.stdin.isatty() and not dumb
