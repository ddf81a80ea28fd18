"""Fewer points that look the same: every peak, every dip and every gap of a long curve stays."""

import numpy as np


def thin(value: np.ndarray, most: int) -> np.ndarray:
    """The places of about `most` values to keep, in order: first and last, and the extremes of every bucket.

    >>> thin(np.array([0.0, 1.0, 9.0, 3.0, 4.0, -9.0, 6.0, 7.0, 8.0, 5.0]), 6).tolist()
    [0, 2, 5, 8, 9]

    A bucket that holds NaN keeps its first one too, so that a line is broken where it was.
    """
    count = len(value)
    if count <= max(most, 2):
        return np.arange(count)
    missing = np.isnan(value)
    buckets = max(1, (most - 2) // (3 if missing.any() else 2))
    width = -(-count // buckets)
    rows = -(-count // width)

    def first(of: np.ndarray, beyond: float) -> np.ndarray:
        """The place of the lowest in each bucket; `beyond` fills the last one up."""
        padded = np.full(rows * width, beyond)
        padded[:count] = of
        return padded.reshape(rows, width).argmin(axis=1) + np.arange(rows) * width

    lowest = first(np.where(missing, np.inf, value), np.inf)
    highest = first(np.where(missing, np.inf, -value), np.inf)
    gaps = first(np.where(missing, 0.0, 1.0), 1.0)
    gaps = gaps[missing[gaps]]
    return np.unique(np.concatenate([[0, count - 1], lowest, highest, gaps]))
