"""Events and their lines: what goes in comes out, to the bit."""

import json
import math
from dataclasses import FrozenInstanceError, asdict, dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.errors import WrongType
from stoker.record import Event, Record
from stoker.record._event import from_line, plain, to_line

plain_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
events = st.builds(
    Event,
    kind=st.text(min_size=1),
    time=st.floats(0, 1e12),
    epoch=st.integers(0, 10**9),
    batch=st.integers(0, 10**9),
    update=st.integers(0, 10**12),
    values=st.dictionaries(st.text(), st.floats()),
    text=st.text(),
    extra=st.dictionaries(st.text(), plain_values, max_size=3),
)


@settings(deadline=None)
@given(events)
def test_an_event_survives_its_line_to_the_bit(event):
    line = to_line(event)
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    back = from_line(line)
    assert {**asdict(back), "values": 0} == {**asdict(event), "values": 0}
    assert {name: value.hex() for name, value in back.values.items()} == {
        name: float(value).hex() for name, value in event.values.items()
    }


def test_a_line_is_json_by_the_letter_with_what_is_empty_left_out():
    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    values = {"a": math.nan, "b": math.inf, "c": -math.inf, "d": 0.1}
    line = to_line(Event("valid", 2.0, epoch=1, values=values, extra={"best": math.inf}))
    assert json.loads(line, parse_constant=refuse) == {
        "kind": "valid",
        "time": 2.0,
        "epoch": 1,
        "values": {"a": "NaN", "b": "Infinity", "c": "-Infinity", "d": 0.1},
        "extra": {"best": "Infinity"},
    }


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"[]",
        b"3",
        b'{"kind": 3, "time": 1}',
        b'{"kind": "x"}',
        b'{"kind":"x","time":1,"values":3}',
        b"\0\0\0",
    ]
    + [b'{"kind":"x","time":1,"values":{"a":null}}', b'{"kind":"x","time":"soon"}', b"\xff"],
)
def test_what_is_no_event_is_a_value_error(line):
    with pytest.raises(ValueError):
        from_line(line)


def test_fields_of_a_later_version_are_passed_over():
    assert from_line(b'{"kind":"new","time":1,"colour":"red"}') == Event("new", 1.0)


def test_an_event_is_a_value():
    with pytest.raises(FrozenInstanceError):
        Event("note").text = "other"  # type: ignore
    assert Event("note", 1.0) == Event("note", 1.0)
    assert Event("note").time > 1.7e9


def test_numbers_become_floats_and_other_things_are_refused():
    record = Record()
    record.append(Event("log", epoch=1, values={"a": 3, "b": np.float32(0.5), "c": np.int64(2), "d": True}))
    assert [type(value) for value in record.events[0].values.values()] == [float] * 4
    assert dict(record.events[0].values) == {"a": 3.0, "b": 0.5, "c": 2.0, "d": 1.0}
    with pytest.raises(
        WrongType, match=r"the value of 'train/loss' is a Tensor; expected a number \(read a tensor with"
    ):
        record.append(Event("log", epoch=1, values={"train/loss": torch.tensor(0.5)}))
    with pytest.raises(WrongType, match="the value of 'a' is a str"):
        record.append(Event("log", epoch=1, values={"a": "0.5"}))
    assert len(record.events) == 1


def test_plain_knows_what_people_put_into_configs():
    @dataclass
    class Inner:
        path: Path
        betas: tuple

    given = {
        "inner": Inner(Path("a/b"), (0.9, math.inf)),
        3: {1},
        "type": torch.float32,
        "n": np.int64(4),
        "x": np.float32(1),
    }
    expected = {
        "inner": {"path": "a/b", "betas": [0.9, "Infinity"]},
        "3": [1],
        "type": "torch.float32",
        "n": 4,
        "x": 1.0,
    }
    assert plain(given) == expected
