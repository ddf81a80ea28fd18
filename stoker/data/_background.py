"""Things that a thread makes ahead of their being wanted."""

import threading
import weakref
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Background(Iterator[T], Generic[T]):
    """What an iterator gives, made by a thread, of which at most `depth` are waiting to be taken.

    >>> list(Background(iter("abc"), depth=2))
    ['a', 'b', 'c']

    An exception comes out in its place. `close`, garbage collection and the program's end stop the thread, which takes
    as long as the one that it is at; the iterator is closed by the thread, which alone ever touches it.
    """

    def __init__(self, source: Iterator[T], *, depth: int) -> None:
        self._made: SimpleQueue[tuple[bool, Any]] = SimpleQueue()  # an item, or the exception that ended it all
        self._room: SimpleQueue[None] = SimpleQueue()
        for _ in range(depth):
            self._room.put(None)
        over: list[bool] = []
        # The thread knows nothing of this object, or it would never be garbage.
        work = (source, self._made, self._room, over)
        thread = threading.Thread(target=_make, args=work, daemon=True, name="stoker-ahead")
        self.close = weakref.finalize(self, _stop, thread, self._room, over)
        thread.start()

    def __next__(self) -> T:
        if not self.close.alive:
            raise StopIteration
        is_item, value = self._made.get()
        if is_item:
            self._room.put(None)
            return value
        self.close()
        raise value


def _make(
    source: Iterator[Any], made: "SimpleQueue[tuple[bool, Any]]", room: "SimpleQueue[None]", over: list[bool]
) -> None:
    try:
        while True:
            room.get()
            if over:
                break
            made.put((True, next(source)))
    except BaseException as error:  # the end of the source is one, too
        made.put((False, error))
    finally:
        close(source)


def close(source: Iterator[Any]) -> None:
    """Closes what can be closed, as a generator can."""
    getattr(source, "close", lambda: None)()


def _stop(thread: threading.Thread, room: "SimpleQueue[None]", over: list[bool]) -> None:
    # Garbage is collected in the middle of anything, in any thread: a list and a SimpleQueue have no lock to hang in.
    over.append(True)
    room.put(None)
    if thread.is_alive() and thread is not threading.current_thread():
        thread.join(timeout=5)  # seconds; one that hangs in its source ends when that gives something
