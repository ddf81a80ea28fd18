"""What is kept of the curves of a run that is over."""

import pytest
from stoker.view.ui._digest import Digest
from stoker.view.ui._points import Wish, series

from stoker.record import Follower
from tests.view.ui.serving import long_run


@pytest.mark.parametrize(
    ("wish", "served"),
    [
        (Wish(("a",)), True),
        (Wish(("a",), by="time"), True),
        (Wish(("a",), most=1001), False),
        (Wish(("a",), source="epochs"), False),
        (Wish(("a",), start=3), False),
        (Wish(("a",), end=3), False),
    ],
    ids=["plain", "by time", "more", "epochs", "from", "to"],
)
def test_which_wishes_it_serves(wish, served):
    assert Digest.serves(wish) is served


def test_it_says_what_the_run_says_with_every_peak_and_dip(tmp_path):
    run = Follower(long_run(tmp_path / "long", names=3, points=4000))
    run.refresh()
    digest = Digest(run)
    assert digest.names == run.names and digest.bytes <= 3 * 1000 * 4 * 8
    for most in (50, 1000):
        wish = Wish(("train/m0", "none"), most=most)
        found, whole = series(digest, wish), series(run, wish)
        assert found["none"] == whole["none"] == {"x": [], "y": []}
        assert len(found["train/m0"]["x"]) <= most
        for extreme in (min, max):
            assert extreme(found["train/m0"]["y"]) == extreme(whole["train/m0"]["y"])
        assert found["train/m0"]["x"][0] == 1 and found["train/m0"]["x"][-1] == 4000
