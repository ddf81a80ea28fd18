"""One number over the run."""

import numpy as np

from stoker.record import Points


def some(count):
    return Points(*(np.arange(count, dtype=float) + start for start in (0, 100, 200, 300)))


def test_all_columns_stay_together():
    points = some(1000).thinned(10)
    assert 2 <= len(points) <= 10
    assert (points.update[0], points.update[-1]) == (0, 999)
    for column, start in ((points.epoch, 100), (points.time, 200), (points.value, 300)):
        assert (column - start).tolist() == points.update.tolist()


def test_few_points_are_the_same_points():
    points = some(10)
    assert points.thinned(10) is points
    assert len(some(0).thinned(5)) == 0


def test_at_and_then():
    points = some(4)
    assert points.at(np.array([2, 0])).value.tolist() == [302, 300]
    assert points.at(points.update > 1).then(points.at(points.update < 1)).time.tolist() == [202, 203, 200]
