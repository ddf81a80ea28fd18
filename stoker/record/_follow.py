"""A run read from outside while it goes on, or after: what the viewers see."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from stoker.record._answers import Answers
from stoker.record._beside import Beside
from stoker.record._columns import Columns
from stoker.record._control import Wish, ask
from stoker.record._decode import line_in, lines_in
from stoker.record._event import Event
from stoker.record._glance import Glance
from stoker.record._journal import EVENTS, no_run
from stoker.record._lock import is_written
from stoker.record._numbers import Best, Direction
from stoker.record._points import Points
from stoker.record._status import Status, status_of
from stoker.record._summary import summarize
from stoker.record._tail import Tail

_LARGE = 1 << 22  # bytes; more than that is glanced at before it is read
_SAID = {"note", "warning", "stop", "error", "resume", "checkpoint"}


class Follower:
    """A run's directory as it grows, read from outside, in columns: nothing is written, nothing is locked.

    >>> from stoker.record import Run
    >>> run = Run.create("runs/letters")
    >>> run.record.append(Event("valid", epoch=1, update=10, values={"valid/loss": 0.5}))
    >>> follower = Follower("runs/letters")
    >>> follower.refresh(), follower.state, follower.points("valid/loss").value.tolist()
    (True, 'running', [0.5])
    >>> run.record.append(Event("valid", epoch=2, update=20, values={"valid/loss": 0.25}))
    >>> run.close()
    >>> follower.refresh(), follower.state, follower.points("valid/loss").value.tolist()
    (True, 'died', [0.5, 0.25])

    Nothing is read before the first `refresh`, and nothing that happens to the directory raises: `problem` tells it.
    For one thread at a time. With `inside`, a real path, no file outside of that folder is read, whatever links say.
    """

    def __init__(self, path: str | os.PathLike[str], *, inside: Path | None = None) -> None:
        path = Path(path)
        self.path = path.parent if path.is_file() else path
        if not (self.path / EVENTS).exists():
            raise no_run(self.path / EVENTS)
        self.name = self.path.absolute().name
        self.summary: Mapping[str, Any]  # what `Run.summary` says, from what has been read so far
        self.status: Status
        self._columns = Columns()
        self._glance: Glance | None = None
        self._events, self._beside = Tail(self.path / EVENTS, inside=inside), Beside(self.path, inside=inside)
        self._alive = True
        self._gone = ""
        self._anew = False
        self._conclude()

    def refresh(self, *, seconds: float | None = None) -> bool:
        """Reads what is new, for at most about so many seconds; whether anything has changed.

        A large file takes a few calls then, while `behind` is true; the answers come from a sample of it until all is
        read. With `seconds=0` only the beginning and the end of a large file are read: enough to say how the run
        stands.
        """
        before = self._alive, self._gone
        changed = self._read_events(seconds)
        changed |= not self._gone and self._beside.refresh()
        changed |= before != (self._alive, self._gone)
        if changed:
            self._conclude()
        return changed

    @property
    def behind(self) -> bool:
        """Whether there is more to read already."""
        return not self._gone and self._events.unread > 0

    @property
    def damaged(self) -> int:
        """How many lines could not be read."""
        return self._columns.damaged

    @property
    def problem(self) -> str:
        """What there is to tell about the reading itself; "" where all is well."""
        many = f"{self.damaged} damaged lines were" if self.damaged > 1 else "a damaged line was"
        unspoken = self._shown.unspoken
        told = [
            self._gone,
            f"{unspoken:,} notes and warnings from the middle were left out" if unspoken else "",
            f"{many} left out" if self.damaged else "",
            "its events were replaced, and are read anew" if self._anew else "",
        ]
        return "; ".join(each for each in told if each)

    @property
    def state(self) -> str:
        """How it stands: running, finished, stopped, died; or gone, when the directory can't be read any more."""
        return "gone" if self._gone else self.summary["state"]

    @property
    def reason(self) -> str:
        """Its last words: why it stopped, the error, or how it died."""
        return self._gone or self.summary["reason"]

    @property
    def begin(self) -> Event | None:
        """What the run began with: its plan, and what is known of its numbers."""
        return self._answers.begin

    @property
    def names(self) -> list[str]:
        """The names of all numbers, in the order in which they came up."""
        return list(self._shown.names)

    @property
    def said(self) -> list[Event]:
        """What was said, in order: notes, warnings, stops, errors, resumes and checkpoints.

        Of thousands of notes, warnings and checkpoints only the first and the last are kept; `problem` says so.
        """
        return [event for _, event in self._shown.told if event.kind in _SAID]

    @property
    def log(self) -> list[str]:
        """The last lines of `log.txt`, 1000 at most."""
        return list(self._beside.log)

    @property
    def facts(self) -> Mapping[str, Any]:
        """What ran (`run.json`); empty where that is missing or damaged."""
        return self._beside.facts

    @property
    def config(self) -> Any:
        """What was asked for (`config.json`); `None` where that is missing or damaged."""
        return self._beside.config

    def points(self, name: str, *, source: Literal["epochs", "all", "running"] = "all") -> Points:
        """What a number was over the run; no points where there is no such number.

        "epochs" is the latest value of each epoch, "running" what progress events said on the way, "all" both and
        every validation, in order of update; there a running value gives way to a final one of the same update.
        """
        columns = self._shown
        if source == "epochs":
            return columns.epochwise(name)
        return columns.on_the_way(name) if source == "running" else columns.all(name)

    def direction(self, name: str) -> Direction | None:
        """What is better of a number, as its metric declared it; of a loss less is."""
        return self._answers.direction(name)

    def unit(self, name: str) -> str:
        """The unit of a number, as its metric declared it."""
        return self._answers.unit(name)

    def best(self, name: str) -> Best | None:
        """The best value of a number; `None` where there is none, or nobody said what is better."""
        return self._answers.best(name)

    def ask(self, what: Wish, *, by: str = "") -> None:
        """Asks the run to stop or to save; refused where no living process writes it."""
        ask(self.path, what, by=by)

    @property
    def _shown(self) -> Columns:
        return self._columns if self._glance is None else self._glance.columns

    def _conclude(self) -> None:
        """The answers that are asked for all the time, given once for each change."""
        self._answers = Answers(self._shown)
        found = {"name": self.name, "path": str(self.path), **summarize(self._answers)}
        if found["state"] == "running" and not self._alive:
            found.update(state="died", reason="the process went away without a word")
        self.summary = found
        self.status = status_of(self._shown, self._answers, found)

    def _read_events(self, seconds: float | None) -> bool:
        try:
            new = self._events.look()
            alive = is_written(self._events.path)  # before reading: whoever has gone by now has said all
            if new or (self._events.unread and (seconds != 0 or self._gone)):
                self._read_new_events(seconds)
                new = True
            self._alive, self._gone = alive, ""
        except OSError as error:
            words = error.strerror or str(error)
            self._gone = f"{EVENTS} can't be read: {words}" if self.path.is_dir() else "the run's directory is gone"
            self._alive = new = False
        return new

    def _read_new_events(self, seconds: float | None) -> None:
        """A sample first, where there is too much for a moment; then block by block, until the time is over."""
        if self._glance is not None and not self._glance.goes_on():
            self._start_anew()
        large = self._events.unread > max(_LARGE, self._events.offset)
        if large and seconds is not None and (self._glance is None or (seconds and self._glance.short)):
            tail = self._events
            self._glance = Glance(tail.path, tail.size, short=not seconds, inside=tail.inside)
        if self._glance is None or seconds != 0:
            self._read_blocks(seconds)
        if not self._events.unread:
            self._glance = None

    def _start_anew(self) -> None:
        """Forgets what was read: another run stands there now."""
        self._columns, self._glance, self._anew = Columns(), None, True
        self._events.skip_to(0)

    def _read_blocks(self, seconds: float | None) -> None:
        tail, end = self._events, time.monotonic() + (seconds or float("inf"))
        for block in tail.blocks():
            if block is None:
                self._start_anew()
            else:
                self._columns.take(lines_in(block))
            if time.monotonic() > end:
                return
        if tail.torn and (line := line_in(tail.torn)) is not None:
            tail.end_torn()
            self._columns.take([line])
