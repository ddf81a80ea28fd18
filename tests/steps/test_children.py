import pytest
from torch import nn

from stoker.steps._children import Children

ONE, SHADE = nn.ReLU(), nn.Tanh()


def children():
    own = {"one": ONE, "none": None, "empty": nn.Sequential()}
    there, back = {id(ONE): SHADE}, {id(SHADE): ONE}
    return own, Children(own, lambda m: there.get(id(m), m), lambda m: back.get(id(m), m))


def test_reading_sees_the_shadows():
    own, seen = children()
    assert seen["one"] is SHADE
    assert seen["none"] is None
    assert list(seen.values()) == [SHADE, None, own["empty"]]
    assert next(iter(seen.items())) == ("one", SHADE)
    assert list(seen) == list(own)
    assert len(seen) == 3
    assert "one" in seen
    assert seen.get("two") is None
    with pytest.raises(KeyError):
        seen["two"]


def test_writing_reaches_the_module():
    own, seen = children()
    seen["two"], seen["three"] = SHADE, None
    assert own["two"] is ONE
    assert own["three"] is None
    del seen["one"]
    assert "one" not in own
    seen.clear()
    assert own == {}
