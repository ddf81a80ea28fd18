"""Server-sent events for one open page: rows of the list that changed, and the progress of the runs it shows."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from stoker.errors import MissingFile
from stoker.record import Follower
from stoker.view.ui._json import MAX_MESSAGES, Row, make_messages, make_row, make_status, to_json
from stoker.view.ui._runs import OpenRun, RunFolder, RunList

_DELETED = "the run's directory does not exist any more"
_SLICE = 0.3  # seconds of reading for the list, and for the shown runs


class PageEvents:
    """The changes since the last call, for one page.

    The first call reports everything, because a page that lost its connection does not know what it missed. Changes are
    not queued for a slow page; it gets fewer and larger ones.
    """

    def __init__(
        self,
        folder: RunFolder,
        run_list: RunList,
        shown: Sequence[str],
        on_failure: Callable[[str, Exception], Row],
    ) -> None:
        self._folder = folder
        self._list = run_list
        self._rows: dict[str, Row] | None = None
        self._shown = deque(ShownRun(name) for name in shown)
        self._on_failure = on_failure

    def collect(self) -> list[bytes]:
        """The messages since the last call."""
        return [*self._list_messages(), *self._run_messages()]

    def _list_messages(self) -> Iterator[bytes]:
        now, before = self._list.refresh(seconds=_SLICE), self._rows
        self._rows = now
        if before is None:
            yield format_message("runs", {"runs": list(now.values()), "gone": []})
        elif now != before:
            changed = [row for name, row in now.items() if before.get(name) != row]
            yield format_message("runs", {"runs": changed, "gone": [name for name in before if name not in now]})

    def _run_messages(self) -> Iterator[bytes]:
        """The changes of as many shown runs as there is time for; the next call continues with the others."""
        end = time.monotonic() + _SLICE
        for _ in range(len(self._shown)):
            shown = self._shown[0]
            self._shown.rotate(-1)
            change = self._change_of(shown)
            if change is not None:
                yield format_message("run", change)
            if time.monotonic() > end:
                return

    def _change_of(self, shown: "ShownRun") -> dict[str, Any] | None:
        if shown.name not in self._folder.find().runs:  # checked first: an unknown name searches for similar ones
            return shown.report_deleted()
        try:
            with self._folder.open(shown.name) as opened:
                return shown.report_change(opened)
        except MissingFile:
            return shown.report_deleted()
        except Exception as error:  # one run that can't be read must not hide the others
            return shown.report_without_values(self._on_failure(shown.name, error))


class ShownRun:
    """What a page knows about one run."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._version: tuple[int, int] | None = None  # None: the page knows nothing that is still valid
        self._last: dict[str, Any] = {"row": {"id": name, "name": name.rpartition("/")[2]}, "status": {}}
        self._messages: list[dict[str, Any]] = []
        self._lengths: dict[str, object] = {}

    def report_change(self, opened: OpenRun) -> dict[str, Any] | None:
        """What is new; `None` if nothing is."""
        version, run = (id(opened), opened.version), opened.run
        if version == self._version:
            return None
        messages, lengths = make_messages(run.messages), _curve_lengths(run)
        # The known messages are invalid after a resume, or because only a sample of the file had been read.
        invalid = self._messages != messages[: len(self._messages)]
        reset = self._version is None or (invalid and not self._last["behind"])
        new = messages if reset or invalid else messages[len(self._messages) :]
        change = {
            "id": self.name,
            "row": make_row(self.name, run),
            "status": make_status(run),
            "messages": new[-MAX_MESSAGES:],
            "updated": [name for name, length in lengths.items() if reset or self._lengths.get(name) != length],
            "reset": reset,
            "problem": run.problem,
            "behind": run.has_unread,
        }
        self._version, self._last, self._messages, self._lengths = version, change, messages, lengths
        return change

    def report_deleted(self) -> dict[str, Any] | None:
        """That the run was deleted; `None` if the page knows it already."""
        return self.report_without_values({**self._last["row"], "state": "gone", "reason": _DELETED})

    def report_without_values(self, row: Row) -> dict[str, Any] | None:
        """A row of a run that can't be read; `None` if the page knows it already."""
        self._version = None  # if the run comes back, everything is reported
        if self._last["row"].get("reason") == row["reason"]:
            return None
        empty = {"messages": [], "updated": [], "reset": False, "behind": False}
        change = {**self._last, **empty, "id": self.name, "row": row, "problem": row["reason"]}
        self._last = change
        return change


def _curve_lengths(run: Follower) -> dict[str, object]:
    """Something per curve that changes when the curve gets more points."""
    latest = run.status.latest
    return {
        name: (len(run.points(name, source="epochs")), len(run.points(name, source="running")), str(latest.get(name)))
        for name in run.names
    }


def format_message(kind: str, data: object) -> bytes:
    r"""A server-sent event.

    >>> format_message("runs", {"gone": ["a"]})
    b'event: runs\ndata: {"gone":["a"]}\n\n'
    """
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), to_json(data))
