"""Finding the run to watch: the newest one, or one that is about to begin."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

from stoker.errors import MissingFile

_EVENTS = "events.jsonl"
_DEEPEST = 4  # folders below the one where the search begins


def newest(folder: str | os.PathLike[str]) -> Path | None:
    """The run under a folder that was written to last, found without reading any; `None` where there is none.

    >>> newest(".") is None
    True
    """
    return max(_runs(Path(folder)), key=_written, default=None)


def wait_for(*paths: str | os.PathLike[str], every: float = 0.2) -> Path:
    """Returns the first of these paths at which a run begins; where none of their folders is there, that's an error."""
    places = [Path(path) for path in paths]
    while True:
        for place in places:
            if (place / _EVENTS).exists():
                return place
        if not any(place.absolute().parent.is_dir() for place in places):
            raise MissingFile(
                f"no run can begin at {str(places[0])!r}: there is no folder {str(places[0].parent)!r}; look for a "
                "slip in the path, or make that folder"
            )
        time.sleep(every)


def _runs(folder: Path) -> Iterator[Path]:
    for place, below, files in os.walk(folder):
        here = Path(place)
        if _EVENTS in files:
            below.clear()  # inside a run are checkpoints, no runs
            yield here
        if len(here.relative_to(folder).parts) >= _DEEPEST:
            below.clear()
        below[:] = [name for name in below if not name.startswith(".")]


def _written(run: Path) -> float:
    try:
        return (run / _EVENTS).stat().st_mtime
    except OSError:  # deleted between the two looks
        return 0.0
