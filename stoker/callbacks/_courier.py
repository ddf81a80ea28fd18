"""A thread that brings numbers to a sink, so that nobody else waits for it."""

import math
import threading
from collections import deque
from collections.abc import Callable, Mapping
from queue import SimpleQueue

from stoker.callbacks._sink import Ending, Known, Sink, Tracked

_MOST = 1_000  # letters that wait before those that may be dropped are
_FULL = 100_000  # letters that wait before all are dropped: a tracker that hangs must not fill the memory


class Courier:
    """Brings what it is given to a sink, in order; giving never blocks and never fails.

    What goes wrong is a text in `problems`, once for each way of going wrong.
    """

    def __init__(self, sink: Sink, run: Tracked, *, who: str) -> None:
        self._sink, self._run, self._who = sink, run, who
        self._letters: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._problems: deque[str] = deque()
        self._told: set[str] = set()
        self._known: Known = {}
        self._refuses = False  # nothing more is brought: the sink is broken or closed
        # A daemon: a tracker that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._work, name=f"stoker-{who}", daemon=True)
        if not self._try("open", self._thread.start):
            self._refuses = True

    def write(
        self, values: Mapping[str, float], *, update: int, epoch: int, time: float, on_the_way: bool = False
    ) -> None:
        """Numbers; those that are only on the way are the first to be dropped, where the sink is too slow."""

        def bring() -> None:
            new = {name: value for name, value in values.items() if not _same(self._known.get((update, name)), value)}
            if new:
                self._sink.write(new, update=update, epoch=epoch, time=time)

        self._give(bring, room=_MOST if on_the_way else _FULL)

    def text(self, text: str, *, update: int, time: float) -> None:
        """What the run said."""
        self._give(lambda: self._sink.text(text, update=update, time=time), room=_FULL)

    def close(self, ending: Ending, *, patience: float) -> None:
        """Waits until everything is brought and the sink is closed, but no longer than these seconds."""
        self._give(lambda: self._sink.close(ending), room=math.inf)
        self._refuses = True
        self._letters.put(None)
        if self._thread.is_alive():  # one that never started can't be joined
            self._thread.join(patience)
        if self._thread.is_alive():
            rest = self._letters.qsize()
            self._tell("late", f"was not done {patience:g} seconds after the end; {rest} things are not there yet")

    def problems(self) -> list[str]:
        """What went wrong since this was asked last."""
        return [self._problems.popleft() for _ in range(len(self._problems))]

    def _give(self, letter: Callable[[], object], *, room: float) -> None:
        if self._refuses:
            return
        if self._letters.qsize() < room:
            self._letters.put(letter)
        else:
            left_out = f"numbers on the way are left out, and while {_FULL:,} things wait for it, all that comes"
            self._tell("slow", f"is too slow for everything: {left_out}")

    def _work(self) -> None:
        if not self._try("open", self._open):
            self._refuses = True
            return
        while (letter := self._letters.get()) is not None:
            self._try("write", letter)

    def _open(self) -> None:
        self._known = self._sink.open(self._run) or {}

    def _try(self, what: str, letter: Callable[[], object]) -> bool:
        try:
            letter()
        except (Exception, SystemExit) as error:  # the training is worth more than its tracker
            lost = "it gets nothing" if what == "open" else "what it could not take is missing there"
            self._tell(what, f"failed, and the run goes on; {lost}: {type(error).__name__}: {error}")
            return False
        return True

    def _tell(self, what: str, text: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self._problems.append(f"{self._who} {text}")


def _same(a: float | None, b: float) -> bool:
    return a is not None and (a == b or (math.isnan(a) and math.isnan(b)))
