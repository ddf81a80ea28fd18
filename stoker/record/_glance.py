"""A large file of events at a glance: its beginning, its end, and a sample of what is between, in a moment."""

from pathlib import Path

from stoker.record._columns import Columns
from stoker.record._decode import lines_in
from stoker.record._tail import Tail, lines_between, next_line

_HEAD, _END = 1 << 17, 1 << 18  # bytes
_STRETCHES, _STRETCH = 60, 1 << 15  # how many between, and the bytes of each


class Glance:
    """Some of the events of a large file, and all that come after; the curves look as they will, with fewer points.

    A `short` one leaves out what is between, which is enough to say how a run stands.
    """

    def __init__(self, path: Path, size: int, *, short: bool = False, inside: Path | None = None) -> None:
        self.short = short
        self.columns = Columns(sample=True)
        head = max(min(_HEAD, size // 8), next_line(path, 0, inside=inside))  # with the first event, however long
        last = max(head, size - min(_END, size // 4))
        every = (last - head) // _STRETCHES
        starts = [] if short else [head + every * part for part in range(_STRETCHES)]
        for start, end in [(0, head), *((start, start + min(_STRETCH, every // 2)) for start in starts)]:
            self.columns.take(lines_in(lines_between(path, start, end, inside=inside)))
        self._tail = Tail(path, inside=inside)
        self._tail.skip_to(next_line(path, last, inside=inside))
        self.goes_on()

    def goes_on(self) -> bool:
        """Takes in what is new; whether the file is still the same."""
        if self._tail.look():
            for block in self._tail.blocks():
                if block is None:
                    return False
                self.columns.take(lines_in(block))
        return True
