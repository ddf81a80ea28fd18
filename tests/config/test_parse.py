"""What a field may hold: every kind of annotation, what it takes, and what it says to the rest."""

import enum
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NewType, Optional

import numpy as np
import pytest

from stoker.config import Config
from stoker.config._parse import Reading, read, spelled
from stoker.errors import ConfigError


class Color(enum.Enum):
    RED = "r"
    BLUE = "b"


class Level(enum.IntEnum):
    LOW = 1


class Word(str, enum.Enum):  # noqa: UP042 - the older spelling, whose str() is not its value
    HI = "hi"


class A(Config):
    x: int = 0


class B(Config):
    x: int = 0


Meters = NewType("Meters", float)


def take(value: Any, hint: Any, *, json: bool) -> Any:
    how = Reading(json=json)
    found = read(value, hint, "f", how)
    how.check("F")
    return found


@pytest.mark.parametrize(
    ("hint", "value", "expected"),
    [
        (float, 3, 3.0),
        (float, np.float32(0.5), 0.5),
        (float, Fraction(1, 4), 0.25),
        (int, np.int64(3), 3),
        (int, Level.LOW, 1),
        (str, Word.HI, "hi"),
        (bool, True, True),
        (None, None, None),
        (Optional[int], None, None),  # noqa: UP045
        (int | None, 3, 3),
        (int | float, 3, 3),
        (float | int, 3, 3),
        (float | None, 3, 3.0),
        (int | Level, Level.LOW, Level.LOW),
        (Meters, 3, 3.0),
        (Path, "a/b", Path("a/b")),
        (str | Path, "a", "a"),
        (Path | str, "a", "a"),
        (PurePosixPath, PurePosixPath("a"), PurePosixPath("a")),
        (Color, Color.RED, Color.RED),
        (Literal["a", 1, None], 1, 1),
        (Literal[Color.RED], Color.RED, Color.RED),
        (list[float], [1, 2.5], [1.0, 2.5]),
        (list[int], (1, 2), [1, 2]),
        (list[float] | list[int], [1], [1]),
        (tuple[float, int], [1, 2], (1.0, 2)),
        (tuple[float, ...], (), ()),
        (tuple[()], (), ()),
        (tuple, (1, "a"), (1, "a")),
        (Sequence[int], [1], (1,)),
        (dict[str, float], {"a": 1}, {"a": 1.0}),
        (Mapping[Color, int], {Color.RED: 1}, {Color.RED: 1}),
        (dict, {"a": [1, None]}, {"a": [1, None]}),
        (Any, [1, {"a": "b"}], [1, {"a": "b"}]),
        (A | B | None, B(2), B(2)),
        (list[tuple[int, A]], [(1, A(2))], [(1, A(2))]),
    ],
)
def test_what_fits_a_field(hint, value, expected):
    found = take(value, hint, json=False)
    assert found == expected and type(found) is type(expected)


@pytest.mark.parametrize(
    ("hint", "value", "expected"),
    [
        (Color, "RED", Color.RED),
        (float, "-Infinity", float("-inf")),
        (Path | None, "a", Path("a")),
        (str | Path, "a", "a"),
        (Path | str, "a", Path("a")),
        (str | Path, {"kind": "Path", "value": "a"}, Path("a")),
        (tuple[int, ...], [1, 2], (1, 2)),
        (dict[int, str], {"-3": "a"}, {-3: "a"}),
        (dict[Color, float], {"RED": 1}, {Color.RED: 1.0}),
        (Literal[Color.RED, "x"], "RED", Color.RED),
        (A, {"kind": "A", "x": 1}, A(1)),
        (A | None, {"x": 1}, A(1)),
        (A | B, {"kind": "B", "x": 1}, B(1)),
        (A | dict[str, int], {"y": 1}, {"y": 1}),
    ],
)
def test_what_json_writes_for_it(hint, value, expected):
    found = take(value, hint, json=True)
    assert found == expected and type(found) is type(expected)


@pytest.mark.parametrize(
    ("hint", "value", "text"),
    [
        (int, "512", 'f: expected int, got "512"'),
        (int, 1.0, "f: expected int, got 1.0"),
        (int, True, "f: expected int, got true"),
        (bool, 1, "f: expected bool, got 1"),
        (str, None, "f: expected str, got null"),
        (None, 0, "f: expected None, got 0"),
        (float, "nan", 'f: expected float, got "nan"'),
        (float, 10**400, "beyond the largest float"),
        (Color, "RDE", "f: expected Color (RED, BLUE), got \"RDE\"; did you mean 'RED'?"),
        (Color, "r", "f: expected Color (RED, BLUE)"),
        (Literal["flat", 1], "flatt", 'f: expected "flat" | 1, got "flatt"; did you mean \'flat\'?'),
        (Literal[1], True, "f: expected 1, got true"),
        (Path, 3, "f: expected Path, got 3"),
        (list[int], "ab", 'f: expected list[int], got "ab"'),
        (list[int], [1, "x", None], '  f[1]: expected int, got "x"\n  f[2]: expected int, got null'),
        (tuple[float, float], [1], "f: expected tuple[float, float], 2 values; got [1], 1"),
        (dict[str, int], {"*.bias": "a"}, 'f["*.bias"]: expected int, got "a"'),
        (dict[int, int], {"01": 1}, 'f["01"]: expected int, got "01"'),
        (dict[str, int], [1], "f: expected dict[str, int], got [1]"),
        (int | None, "a", 'f: expected int | None, got "a"'),
        (list[int] | None, ["a"], 'f[0]: expected int, got "a"'),
        (list[int] | list[str], [None], "f: expected list[int] | list[str], got [null]"),
        (A | None, {"x": "a"}, 'f.x: expected int, got "a"'),
        (A | B, {"kind": "B", "x": "a"}, 'f.x: expected int, got "a"'),
        (A | B, {"x": 1}, 'f.kind: missing, expected "A" or "B"'),
        (A | B, {"kind": "b"}, 'f.kind: expected "A" or "B", got "b"'),
        (A | B, 3, "f: expected A | B, got 3"),
        (A, {"y": 1}, "f.y: no such field; A has x"),
        (Any, float("nan"), "f: expected what JSON can hold, got NaN"),
        (str, "x" * 200, ""),
        (int, "x" * 200, "xxx..."),
    ],
)
def test_what_does_not_fit_is_named(hint, value, text):
    if not text:
        assert take(value, hint, json=True) == value
        return
    with pytest.raises(ConfigError) as caught:
        take(value, hint, json=True)
    assert text in str(caught.value)


@pytest.mark.parametrize("hint", [set[int], bytes, complex, list[set[str]], enum.Flag, type])
def test_what_a_config_can_not_hold_is_refused_by_name(hint):
    with pytest.raises(ConfigError, match="a config can't hold .*it holds bool, int, float"):
        take([1], hint, json=False)


def test_a_value_from_code_is_shown_as_code():
    with pytest.raises(ConfigError, match="f: expected A, got {'x': 1}"):
        take({"x": 1}, A, json=False)
    with pytest.raises(ConfigError, match="f: expected int, got None"):
        take(None, int, json=False)
    with pytest.raises(ConfigError, match=r"f: expected int, got {\(1,\): 2}"):
        take({(1,): 2}, int, json=True)


@pytest.mark.parametrize(
    ("hint", "text"),
    [
        (tuple[int, ...], "tuple[int, ...]"),
        (dict[str, list[A]] | None, "dict[str, list[A]] | None"),
        (Literal["a", 2], '"a" | 2'),
        (Any, "Any"),
    ],
)
def test_annotations_are_spelled_as_people_write_them(hint, text):
    assert spelled(hint) == text
