"""Server-sent events for one open page: rows of the list that changed, and the progress of the runs it shows."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from stoker.errors import MissingFile
from stoker.view.ui._json import MAX_MESSAGES, Row, RunReport, to_json
from stoker.view.ui._runs import RunFolder, make_failed_row

_DELETED = "the run's directory does not exist any more"
_SLICE = 0.3  # seconds of reading for the list, and for the shown runs
_INTERVAL = 0.5  # seconds between two looks
_KEEP_ALIVE = 15.0  # seconds without events after which a comment is sent


class EventStream(StreamingResponse):
    """Server-sent events until the page disconnects; then `on_close` is called, even if nothing was sent."""

    def __init__(self, folder: RunFolder, shown: Sequence[str], on_close: Callable[[], None]) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(_send_events(PageEvents(folder, shown)), headers=headers, media_type="text/event-stream")
        self._on_close = on_close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the events."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_close()


async def _send_events(page: "PageEvents") -> AsyncIterator[bytes]:
    silent = 0.0
    yield b"retry: 2000\n\n"
    while True:
        messages = await run_in_threadpool(page.collect)
        for message in messages:
            yield message
        silent = 0.0 if messages else silent + _INTERVAL
        if silent >= _KEEP_ALIVE:
            silent = 0.0
            yield b": keep-alive\n\n"
        await asyncio.sleep(_INTERVAL)


class PageEvents:
    """The changes since the last call, for one page.

    The first call reports everything, because a page that lost its connection does not know what it missed. Changes are
    not queued for a slow page; it gets fewer and larger ones.
    """

    def __init__(self, folder: RunFolder, shown: Sequence[str]) -> None:
        self._folder = folder
        self._rows: dict[str, Row] | None = None
        self._shown = [ShownRun(run_id) for run_id in shown]

    def collect(self) -> list[bytes]:
        """The messages since the last call."""
        listed = list(self._list_messages())
        changes = [self._change_of(shown) for shown in self._shown]
        return [*listed, *(_format_message("run", change) for change in changes if change is not None)]

    def _list_messages(self) -> Iterator[bytes]:
        now, before = self._folder.rows(seconds=_SLICE), self._rows
        self._rows = now
        if before is None:
            yield _format_message("runs", {"runs": list(now.values()), "gone": []})
        elif now is not before:
            changed = [row for run_id, row in now.items() if before.get(run_id) != row]
            gone = [run_id for run_id in before if run_id not in now]
            if changed or gone:
                yield _format_message("runs", {"runs": changed, "gone": gone})

    def _change_of(self, shown: "ShownRun") -> dict[str, Any] | None:
        try:
            if shown.id not in self._folder.find().runs:  # checked first: an unknown id searches for similar ones
                return shown.report_deleted()
            report = self._folder.report(shown.id, seconds=_SLICE / len(self._shown))
            return shown.report_change(report) if report is not None else None
        except MissingFile:
            return shown.report_deleted()
        except Exception as error:  # one run that can't be read must not hide the others
            return shown.report_unreadable(make_failed_row(shown.id, error))


class ShownRun:
    """What a page knows about one run."""

    def __init__(self, run_id: str) -> None:
        self.id = run_id
        self._known: RunReport | None = None  # None: the page knows nothing that is still valid
        self._sent: dict[str, Any] = {"row": {"id": run_id, "name": run_id.rpartition("/")[2]}, "status": {}}

    def report_change(self, report: RunReport) -> dict[str, Any] | None:
        """What is new; `None` if nothing is."""
        known = self._known
        if known is not None and known.version == report.version:
            return None
        # The known messages are invalid after a resume, or because only a sample of the file had been read.
        continues = known is not None and known.messages == report.messages[: len(known.messages)]
        reset = known is None or not (continues or known.behind)
        counts = known.counts if known is not None and not reset else {}
        new = report.messages[len(known.messages) :] if known is not None and continues else report.messages
        self._known = report
        self._sent = {
            "id": self.id,
            "row": report.row,
            "status": report.status,
            "messages": new[-MAX_MESSAGES:],
            "updated": [name for name, count in report.counts.items() if counts.get(name) != count],
            "media": report.media,
            "reset": reset,
            "problem": report.problem,
            "behind": report.behind,
        }
        return self._sent

    def report_deleted(self) -> dict[str, Any] | None:
        """That the run was deleted; `None` if the page knows it already."""
        return self.report_unreadable(Row({**self._sent["row"], "state": "gone", "reason": _DELETED}))

    def report_unreadable(self, row: Row) -> dict[str, Any] | None:
        """A row of a run that can't be read; `None` if the page knows it already."""
        self._known = None  # if the run comes back, everything is reported
        if self._sent["row"].get("reason") == row["reason"]:
            return None
        empty = {"messages": [], "updated": [], "media": 0, "reset": False, "behind": False}
        self._sent = {**self._sent, **empty, "id": self.id, "row": row, "problem": row["reason"]}
        return self._sent


def _format_message(kind: str, data: object) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), to_json(data))
