"""How often to draw: at most four times a second, and never for more than 1 % of the time."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Pace:
    """Says when a drawing is due, and measures what each costs.

    >>> pace = Pace(every=60.0)
    >>> with pace.drawing():
    ...     pass
    >>> pace.due()
    False

    After a drawing that took `cost` seconds the next is due in `cost / share` seconds, or `every`, whichever is longer:
    a terminal at the end of a slow line is drawn less often instead of holding the training up.
    """

    def __init__(
        self, *, every: float = 0.25, share: float = 0.01, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.every = every
        self.share = share
        self.clock = clock
        self.next = clock()

    def due(self) -> bool:
        """Whether it is time to draw."""
        return self.clock() >= self.next

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Around a drawing: sets when the next one is due."""
        start = self.clock()
        try:
            yield
        finally:
            now = self.clock()
            self.next = now + max(self.every, (now - start) / self.share)
