"""The page in the room that it has."""

from stoker.record import Follower
from stoker.view.watch._written import written
from tests.view.watch.scenes import make


def test_no_line_is_wider_than_it_may_be(tmp_path):
    make(tmp_path / "digits", epochs=2, end=True)
    follower = Follower(tmp_path / "digits")
    follower.refresh()
    for width in (40, 120):
        heading, *lines = written([follower], width, ascii_only=False).splitlines()
        assert heading.endswith(": stopped (Net, 1,234 parameters, on cpu)")
        assert max(len(line) for line in lines if "  stopped: " not in line) <= width
        assert all(line == line.rstrip() for line in lines)
