"""Reading runs in a background thread, so that a slow disk never blocks the screen."""

import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Literal

from stoker.errors import StokerError
from stoker.record import Follower
from stoker.view.watch._snapshot import Snapshot, View, take_snapshot

_INTERVAL = 0.5  # seconds between two reads
_SLICE = 0.2  # seconds of reading before something is shown
_STALLED_AFTER = 3.0  # seconds without an answer of the disk


class Reader:
    """A daemon thread that follows runs and reports a snapshot whenever something changed.

    All callbacks run in this thread: `on_snapshot(snapshot)`, `on_answer(text, is_error)` after a request to a run, and
    `on_failure(error)` if reading fails unexpectedly.
    """

    def __init__(
        self,
        followers: Sequence[Follower],
        *,
        on_snapshot: Callable[[Snapshot], object],
        on_answer: Callable[[str, bool], object],
        on_failure: Callable[[BaseException], object],
    ) -> None:
        self.followers = followers
        self._on_snapshot, self._on_answer, self._on_failure = on_snapshot, on_answer, on_failure
        self._view = View()
        self._reading_since: float | None = None  # monotonic time
        self._requests: SimpleQueue[tuple[int, Literal["stop", "save"]]] = SimpleQueue()
        self._wake_up = threading.Event()
        self._closed = False
        # A daemon instead of one of Textual's workers: those are joined at exit, and a dead disk would block `q`.
        self._thread = threading.Thread(target=self._run, name="stoker watch", daemon=True)

    def start(self) -> None:
        """Starts reading."""
        self._thread.start()

    def set_view(self, view: View) -> None:
        """Takes the following snapshots in this view."""
        self._view = view
        self._wake_up.set()

    def request(self, run: int, action: Literal["stop", "save"]) -> None:
        """Asks a run to stop or to save; the answer is reported when the disk has taken the request."""
        self._requests.put((run, action))
        self._wake_up.set()

    def close(self) -> None:
        """Ends the thread without waiting for it."""
        self._closed = True
        self._wake_up.set()

    @property
    def seconds_stalled(self) -> float:
        """The seconds that the disk has not answered; 0 if that is not unusually long."""
        since = self._reading_since
        waited = time.monotonic() - since if since is not None else 0.0
        return waited if waited > _STALLED_AFTER else 0.0

    def _run(self) -> None:
        shown: Snapshot | None = None
        try:
            while not self._closed:
                self._wake_up.clear()
                self._reading_since = time.monotonic()
                self._send_requests()
                changed = [follower.refresh(seconds=_SLICE) for follower in self.followers]
                view = self._view
                snapshot = None
                if any(changed) or shown is None or view != shown.view:
                    snapshot = take_snapshot(self.followers, view).keep_speeds(shown)
                self._reading_since = None
                if snapshot is not None:
                    shown = snapshot
                    self._on_snapshot(snapshot)
                if not any(follower.has_unread for follower in self.followers):
                    self._wake_up.wait(_INTERVAL)
        except BaseException as error:
            self._on_failure(error)

    def _send_requests(self) -> None:
        while True:
            try:
                run, action = self._requests.get_nowait()
            except Empty:
                return
            follower = self.followers[run]
            try:
                follower.request(action, by="watch")
                self._on_answer(f"asked {follower.name} to {action} after the current update", False)
            except (StokerError, OSError) as error:
                self._on_answer(str(error), True)
