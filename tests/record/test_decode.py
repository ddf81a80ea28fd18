"""Lines without trust: with msgspec and without, the same events."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.record import Event, _decode
from stoker.record._decode import line_in, lines_in, whole
from stoker.record._event import from_line, to_line

EVENTS = st.builds(
    Event,
    kind=st.sampled_from(["begin", "train", "progress", "note", "é", "\x1b[2J"]),
    time=st.floats(0, 1e11),
    epoch=st.integers(-3, 2**40),
    batch=st.integers(0, 9),
    update=st.integers(0, 2**40),
    values=st.dictionaries(st.text(max_size=8), st.floats(), max_size=3),
    text=st.text(max_size=8),
    extra=st.dictionaries(st.text(max_size=4), st.integers() | st.text(max_size=4) | st.none(), max_size=2),
)


@pytest.fixture(params=["msgspec", "json"])
def decoder(request, monkeypatch):
    if request.param == "json":
        monkeypatch.setattr(_decode, "_fast", lambda: None)
    else:
        assert _decode._fast() is not None


@pytest.mark.parametrize("fast", [True, False])
@settings(max_examples=100, deadline=None)
@given(events=st.lists(EVENTS, max_size=5))
def test_what_was_written_is_read(fast, events):
    block = b"".join(map(to_line, events))
    with pytest.MonkeyPatch.context() as patch:
        if not fast:
            patch.setattr(_decode, "_fast", lambda: None)
        found = lines_in(block)
    assert [repr(whole(line)) for line in found] == [repr(from_line(to_line(event))) for event in events]


DAMAGED = {
    "torn": b'{"kind":"note","ti',
    "binary": bytes(range(128, 256)),
    "zeros": b"\0" * 40,
    "list": b"[1, 2]",
    "no kind": b'{"time":1.0}',
    "no time": b'{"kind":"note"}',
    "two in a line": b'{"kind":"note","time":1.0}{"kind":"note","time":1.0}',
    "a word for a number": b'{"kind":"train","time":1.0,"values":{"a":1.0,"b":"much"}}',
    "nothing for a number": b'{"kind":"train","time":1.0,"values":{"a":null}}',
    "a time beyond all calendars": b'{"kind":"note","time":1e300}',
    "no time at all": b'{"kind":"note","time":"NaN"}',
    "a place beyond all integers": b'{"kind":"note","time":1.0,"update":' + b"9" * 40 + b"}",
    "deep": b"[" * 100_000,
    "deep inside": b'{"kind":"note","time":1.0,"extra":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001,
}


@pytest.mark.usefixtures("decoder")
@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_line_costs_itself_only(name):
    good = b'{"kind":"note","time":1.0}\n'
    found = lines_in(good + DAMAGED[name] + b"\n" + good)
    assert [line and line.kind for line in found] == ["note", None, "note"]


@pytest.mark.usefixtures("decoder")
def test_a_blank_line_is_none():
    assert [line.kind for line in lines_in(b'\n{"kind":"note","time":1.0}\n  \n')] == ["note"]


@pytest.mark.usefixtures("decoder")
def test_an_object_over_two_lines_is_two_damaged_lines():
    assert list(lines_in(b'{"kind":"note",\n"time":1.0}\n')) == [None, None]


@pytest.mark.usefixtures("decoder")
def test_numbers_that_json_has_no_word_for():
    (line,) = lines_in(b'{"kind":"train","time":1,"values":{"a":"NaN","b":"-Infinity","c":1e999,"d":2}}\n')
    assert math.isnan(line.values["a"])
    assert [line.values[name] for name in "bcd"] == [-math.inf, math.inf, 2.0]


@pytest.mark.usefixtures("decoder")
def test_half_letters_are_replaced():
    half = b'{"kind":"note","time":1.0,"text":"\\ud800!","values":{"a\\udfff":1},"extra":{"b":"\\ud9ab"}}\n'
    (line,) = lines_in(half)
    text = json.dumps([line.text, *line.values, line.extra["b"]], ensure_ascii=False)
    assert text.encode() and "?" in text
    assert line_in(b'{"kind":"note","time":1.0,"text":"\\ud83d\\ude00"}').text == "😀"


@pytest.mark.usefixtures("decoder")
def test_an_extra_of_unexpected_types_is_left_out():
    extra = {
        "epochs": "many",
        "updates": True,
        "minutes": -1,
        "batches": float("inf"),
        "metrics": ["loss"],
        "monitor": 7,
        "losses": "abc",
        "seconds": None,
        "mine": [1],
    }
    (line,) = lines_in(json.dumps({"kind": "begin", "time": 1.0, "extra": extra}).encode() + b"\n")
    assert whole(line).extra == {"mine": [1], "updates": True}
    (line,) = lines_in(b'{"kind":"begin","time":1.0,"extra":[]}\n')
    assert whole(line).extra == {}


@pytest.mark.usefixtures("decoder")
def test_a_resume_that_does_not_say_what_stands_is_refused():
    lines = b'{"kind":"resume","time":1.0}\n{"kind":"resume","time":1.0,"extra":{"kept":-1}}\n'
    for line in lines_in(lines):
        if line is not None:
            with pytest.raises(ValueError, match="expected how many"):
                whole(line)


UNREADABLE = {
    "no utf-8": b'{"x":"\xff"}',
    "an endless integer": b'{"x":' + b"9" * 5000 + b"}",
    "deep": b'{"x":' * 900 + b"1" + b"}" * 900,
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_an_extra_that_cannot_be_read_is_empty(name, monkeypatch):
    """The fast way has left it unread; what it says must not end the reading of the file."""
    if name == "deep":  # how deep is too deep differs between versions of Python
        monkeypatch.setattr(_decode.json, "loads", too_deep)
    (line,) = lines_in(b'{"kind":"train","time":1.0,"values":{"a":1},"extra":' + UNREADABLE[name] + b"}\n")
    assert line.values == {"a": 1.0} and whole(line).extra == {}


def too_deep(text):
    raise RecursionError
