"""A sample of a large file."""

import numpy as np
import pytest

from stoker.record import Event
from stoker.record._event import to_line
from stoker.record._glance import Glance


def line(update):
    return to_line(Event("progress", float(update), epoch=1, update=update, values={"lr": float(update)}))


def test_the_ends_and_some_of_the_rest(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"".join(map(line, range(100_000))))
    glance = Glance(path, path.stat().st_size)
    points = glance.columns.all("lr")
    assert len(points) < 60_000
    assert points.value.tolist() == sorted(set(points.update.tolist())), "each once, in order"
    assert (points.update[0], points.update[-1]) == (0, 99_999)
    assert np.diff(points.update).max() < 2000
    with path.open("ab") as file:
        file.write(line(100_000))
    assert glance.goes_on() and glance.columns.all("lr").update[-1] == 100_000
    path.write_bytes(line(1))
    assert not glance.goes_on()


def test_lines_that_are_longer_than_a_stretch(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"".join(to_line(Event("note", 1.0, text="x" * 300_000)) for _ in range(8)))
    glance = Glance(path, path.stat().st_size)
    assert 0 < len(glance.columns) < 8


@pytest.mark.parametrize("count", [0, 1, 2, 50, 1000])
def test_of_a_file_of_any_size_each_line_is_taken_once_at_most(tmp_path, count):
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"".join(map(line, range(count))))
    found = Glance(path, path.stat().st_size).columns.all("lr").update.tolist()
    assert found == sorted(set(found)) and set(found) <= set(range(count))
    assert count < 50 or found[-1] == count - 1


def test_a_short_one_has_the_ends_only(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"".join(to_line(Event("note", float(place), text="x" * 400)) for place in range(20_000)))
    size = path.stat().st_size
    times = [Glance(path, size, short=short).columns.times for short in (True, False)]
    assert all(each[0] == 0.0 and each[-1] == 19_999.0 for each in times)
    between = [sum(2_000 < time < 18_000 for time in each) for each in times]
    assert between[0] == 0 < between[1]
