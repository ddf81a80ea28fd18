"""One number over the run, in columns."""

from dataclasses import dataclass

import numpy as np

from stoker.record._thin import thin


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """What a number was, and when: four arrays of float64 and of one length, in order of update.

    >>> points = Points(*np.array([[10.0, 20.0], [1.0, 2.0], [1.5, 2.5], [0.5, 0.25]]))
    >>> len(points), points.value.tolist()
    (2, [0.5, 0.25])

    `time` is in seconds since 1970. A `value` may be NaN or infinite.
    """

    update: np.ndarray
    epoch: np.ndarray
    time: np.ndarray
    value: np.ndarray

    def __len__(self) -> int:
        return len(self.value)

    def at(self, places: np.ndarray) -> "Points":
        """Those at some places (or where a mask is true), in the order given."""
        update, epoch, time, value = (column[places] for column in self._columns)
        return Points(update, epoch, time, value)

    def then(self, others: "Points") -> "Points":
        """These and, after them, others."""
        pairs = zip(self._columns, others._columns, strict=True)
        update, epoch, time, value = (np.concatenate(pair) for pair in pairs)
        return Points(update, epoch, time, value)

    def thinned(self, most: int) -> "Points":
        """At most about `most` of them: the first, the last, and the lowest and highest of every stretch between."""
        return self if len(self) <= most else self.at(thin(self.value, most))

    @property
    def _columns(self) -> tuple[np.ndarray, ...]:
        return self.update, self.epoch, self.time, self.value
