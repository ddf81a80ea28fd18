"""What has changed since the last time, for one page that stays connected."""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from stoker.errors import MissingFile
from stoker.record import Follower
from stoker.view.ui._faults import tell
from stoker.view.ui._json import to_json
from stoker.view.ui._rows import Rows
from stoker.view.ui._shelf import Opened, Shelf
from stoker.view.ui._views import SAID, Row, failed_row, row, said, status

_GONE = "the run's directory is gone"
_PATIENCE = 0.3  # seconds of reading in the list, and in the runs that the page shows


class News:
    """Server-sent events for one page: rows of the list that changed, and how the runs it shows go on.

    Everything is told the first time: a page that lost its connection can't know what it has missed. What a slow page
    has not fetched is not kept for it; it gets fewer and larger news.
    """

    def __init__(self, shelf: Shelf, rows: Rows, names: Sequence[str]) -> None:
        self._shelf = shelf
        self._list = rows
        self._rows: dict[str, Row] | None = None
        self._told = deque(Told(name) for name in names)

    def latest(self) -> list[bytes]:
        """The messages since the last call."""
        return [*self._of_the_list(), *self._of_the_runs()]

    def _of_the_list(self) -> Iterator[bytes]:
        now, before = self._list.latest(seconds=_PATIENCE), self._rows
        self._rows = now
        if before is None:
            yield message("runs", {"runs": list(now.values()), "gone": []})
        elif now != before:
            changed = [each for name, each in now.items() if before.get(name) != each]
            yield message("runs", {"runs": changed, "gone": [name for name in before if name not in now]})

    def _of_the_runs(self) -> Iterator[bytes]:
        """Of as many as there is time for; the next time goes on with the next."""
        end = time.monotonic() + _PATIENCE
        for _ in range(len(self._told)):
            told = self._told[0]
            self._told.rotate(-1)
            news = self._of(told)
            if news is not None:
                yield message("run", news)
            if time.monotonic() > end:
                return

    def _of(self, told: "Told") -> dict[str, Any] | None:
        if told.name not in self._shelf.found().runs:  # asked before: to look for a name that is like it takes long
            return told.loss()
        try:
            with self._shelf.follow(told.name) as opened:
                return told.news(opened)
        except MissingFile:
            return told.loss()
        except Exception as error:  # a fault in reading one run must not hide the others
            tell(error)
            return told.fault(error)


class Told:
    """What a page knows of one run that it shows."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._version: tuple[int, int] | None = None  # None: nothing is known, or nothing of it counts any more
        self._last: dict[str, Any] = {"row": {"id": name, "name": name.rpartition("/")[2]}, "status": {}}
        self._said: list[dict[str, Any]] = []
        self._ends: dict[str, object] = {}

    def news(self, opened: Opened) -> dict[str, Any] | None:
        """What is new of a run; None where nothing is."""
        version, run = (id(opened), opened.version), opened.run
        if version == self._version:
            return None
        lines, ends = said(run.messages), ends_of(run)
        void = self._said != lines[: len(self._said)]  # by a resume, or because only a sample was read
        anew = self._version is None or (void and not self._last["behind"])
        new = lines if anew or void else lines[len(self._said) :]
        told = {
            "id": self.name,
            "row": row(self.name, run),
            "status": status(run),
            "said": new[-SAID:],
            "grown": [name for name, end in ends.items() if anew or self._ends.get(name) != end],
            "anew": anew,
            "problem": run.problem,
            "behind": run.has_unread,
        }
        self._version, self._last, self._said, self._ends = version, told, lines, ends
        return told

    def loss(self) -> dict[str, Any] | None:
        """That a run is no longer there, once."""
        return self._without_news({**self._last["row"], "state": "gone", "reason": _GONE})

    def fault(self, error: Exception) -> dict[str, Any] | None:
        """That a run can't be read by a fault that is ours, once."""
        return self._without_news(failed_row(self.name, error))

    def _without_news(self, row: Row) -> dict[str, Any] | None:
        if self._last["row"].get("reason") == row["reason"]:
            return None
        nothing = {"said": [], "grown": [], "anew": False, "behind": False}
        told = {**self._last, **nothing, "id": self.name, "row": row, "problem": row["reason"]}
        self._version, self._last = None, told
        return told


def ends_of(run: Follower) -> dict[str, object]:
    """What is another thing once a number has more points."""
    latest = run.status.latest
    return {
        name: (len(run.points(name, source="epochs")), len(run.points(name, source="running")), str(latest.get(name)))
        for name in run.names
    }


def message(kind: str, data: object) -> bytes:
    r"""A server-sent event.

    >>> message("runs", {"gone": ["a"]})
    b'event: runs\ndata: {"gone":["a"]}\n\n'
    """
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), to_json(data))
