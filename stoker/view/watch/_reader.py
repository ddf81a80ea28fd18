"""Reading runs beside the screen: a thread that may wait for a disk as long as it likes."""

import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Literal

from stoker.errors import StokerError
from stoker.record import Follower
from stoker.view.watch._scene import Scene, scene_of
from stoker.view.watch._view import View

Wish = Literal["stop", "save"]
_EVERY = 0.5  # seconds between two looks at the disk
_SLICE = 0.2  # seconds of reading before something is shown


class Reader:
    """A thread that follows runs and hands over a scene where something changed; it dies with the process.

    `show` gets each scene, `told` each answer to a wish (and whether it went wrong), `failed` an error that nobody
    expected; all are called in this thread.
    """

    def __init__(
        self,
        followers: Sequence[Follower],
        *,
        show: Callable[[Scene], object],
        told: Callable[[str, bool], object],
        failed: Callable[[BaseException], object],
    ) -> None:
        self.followers = followers
        self.show = show
        self.told = told
        self.failed = failed
        self.view = View()
        self.busy_since: float | None = None  # by the monotonic clock: since when the disk is being read
        self._wishes: SimpleQueue[tuple[int, Wish]] = SimpleQueue()
        self._woken = threading.Event()
        self._closed = False
        # A daemon, and no worker of the screen's: those are waited for, and a dead disk would keep `q` waiting.
        self._thread = threading.Thread(target=self._run, name="stoker watch", daemon=True)

    def start(self) -> None:
        """Begins to read."""
        self._thread.start()

    def look(self, view: View) -> None:
        """From now on, scenes are of this view."""
        self.view = view
        self._woken.set()

    def ask(self, run: int, wish: Wish) -> None:
        """Asks a run to stop or to save, as soon as the disk lets it."""
        self._wishes.put((run, wish))
        self._woken.set()

    def close(self) -> None:
        """Reads no more; nothing is waited for."""
        self._closed = True
        self._woken.set()

    @property
    def hung(self) -> float:
        """For how many seconds the disk has not answered; 0 where it takes no longer than usual."""
        since = self.busy_since
        waited = time.monotonic() - since if since is not None else 0.0
        return waited if waited > 3 else 0.0

    def _run(self) -> None:
        shown: Scene | None = None
        try:
            while not self._closed:
                self._woken.clear()
                self.busy_since = time.monotonic()
                self._obey()
                changed = [follower.refresh(seconds=_SLICE) for follower in self.followers]
                view = self.view
                if any(changed) or shown is None or view != shown.view:
                    scene = scene_of(self.followers, view).after(shown)
                    self.busy_since = None
                    self.show(scene)
                    shown = scene
                self.busy_since = None
                if not any(follower.has_unread for follower in self.followers):
                    self._woken.wait(_EVERY)
        except BaseException as error:
            self.failed(error)

    def _obey(self) -> None:
        try:
            while True:
                run, wish = self._wishes.get_nowait()
                follower = self.followers[run]
                try:
                    follower.request(wish, by="watch")
                    self.told(f"{follower.name} was asked to {wish}; it does so after this update", False)
                except (StokerError, OSError) as error:
                    self.told(str(error), True)
        except Empty:
            return
