"""What a tracker has to be able to do: the contract between a run's numbers and wherever they go."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

Ending = Literal["finished", "interrupted", "failed"]
Known = Mapping[tuple[int, str], float]  # what stands at (update, name)


@dataclass(frozen=True, slots=True)
class Tracked:
    """A run as its trackers get to know it.

    `id` is the same in every process that goes on with the run. `folder` is where files may go; `None` where nothing
    may be written. What a tracker has of `update` and later comes again: the run goes on from there.
    """

    id: str
    name: str
    folder: Path | None
    config: Any
    facts: Mapping[str, Any]
    update: int
    time: float  # seconds since 1970


class Sink(Protocol):
    """Takes a run's numbers: write these four methods, and `callbacks.Tracker` does the rest.

    They are called in a thread that is the sink's own, one after the other: they may block and they may fail, and the
    training notices neither. A sink may have a fifth, `prepare()`, for a slow import: it is called in the fit's own
    thread, before workers for the data are forked, which could wait forever for an import that another thread is in.
    """

    def open(self, run: Tracked) -> Known | None:
        """Makes the tracker's own run, or goes on with it where there is one of this `id`.

        What the tracker holds already from `run.update` on may be returned: it is not written again where it is equal.
        """
        ...

    def write(self, values: Mapping[str, float], *, update: int, epoch: int, time: float) -> None:
        """Takes numbers by name, NaN and the infinities among them; `time` is in seconds since 1970."""
        ...

    def text(self, text: str, *, update: int, time: float) -> None:
        """Takes what the run said: notes, warnings, an error."""
        ...

    def close(self, ending: Ending) -> None:
        """Nothing more comes from this process."""
        ...
