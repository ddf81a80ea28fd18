"""The values that a field may hold: what they convert to, their JSON, and the errors for everything else."""

import dataclasses
import enum
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NewType, Union

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.config import Config
from stoker.errors import ConfigError


class Color(enum.Enum):
    RED = 1
    NaN = 2  # also what JSON writes for a float


class A(Config):
    x: float = 0.0
    y: tuple[int, ...] = ()


class B(Config):
    x: float = 0.0


@dataclasses.dataclass
class Plain:
    name: str = ""


finite = st.floats(allow_nan=False, allow_infinity=False)
words = st.sampled_from(["", "a", "RED", "NaN", "kind", "value", "Path", "é\n", '"']) | st.text(max_size=5)
leaves: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (bool, st.booleans()),
    (int, st.integers()),
    (float, st.floats()),
    (str, words),
    (type(None), st.none()),
    (Path, words.map(lambda word: Path(word.replace("\x00", "")))),
    (Color, st.sampled_from(Color)),
    (Literal["RED", 1, None], st.sampled_from(["RED", 1, None])),
    (Literal[Color.RED], st.just(Color.RED)),
    (A, st.builds(A, finite, st.lists(st.integers(), max_size=2))),
    (B, st.builds(B, finite)),
    (Plain, st.builds(Plain, words)),
    (Any, st.recursive(st.none() | finite | words, lambda each: st.lists(each, max_size=2), max_leaves=4)),
]
Typed = tuple[Any, st.SearchStrategy[Any]]


def containers(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    """Containers and unions of the given types."""
    keys = st.sampled_from([leaf for leaf in leaves if leaf[0] in (str, int, Path, Color)])
    return st.one_of(
        inner.map(lambda one: (list[one[0]], st.lists(one[1], max_size=3))),
        inner.map(lambda one: (tuple[one[0], ...], st.lists(one[1], max_size=3).map(tuple))),
        st.tuples(inner, inner).map(lambda two: (tuple[two[0][0], two[1][0]], st.tuples(two[0][1], two[1][1]))),
        st.tuples(keys, inner).map(
            lambda two: (dict[two[0][0], two[1][0]], st.dictionaries(two[0][1], two[1][1], max_size=3))
        ),
        st.lists(inner, min_size=2, max_size=4).map(
            lambda some: (Union[tuple(one[0] for one in some)], st.one_of([one[1] for one in some]))  # noqa: UP007
        ),
    )


typed_values = st.recursive(st.sampled_from(leaves), containers, max_leaves=6).flatmap(
    lambda one: st.tuples(st.just(one[0]), one[1])
)


@settings(max_examples=100, deadline=None)
@given(typed_values)
def test_every_value_of_every_type_survives_json(typed):
    hint, value = typed
    cls: Any = type("Random", (Config,), {"__annotations__": {"field": hint}})
    config = cls(value)
    data = config.to_dict()
    back = cls.from_dict(json.loads(json.dumps(data, allow_nan=False)))
    assert repr(back) == repr(config)  # the repr, in which NaN equals itself and 1 is not 1.0
    assert repr(cls.from_dict(data)) == repr(config) and back.to_dict() == data


def test_kind_is_written_only_where_it_is_needed():
    class Mixed(Config):
        a: A | None
        b: A | B
        c: str | Path
        d: str | Path

    assert Mixed(A(), B(), "x", Path("x")).to_dict() == {
        "a": {"x": 0.0, "y": []},
        "b": {"kind": "B", "x": 0.0},
        "c": "x",
        "d": {"kind": "Path", "value": "x"},
    }


def test_classes_that_kind_cannot_distinguish_are_an_error():
    class Named(Config):
        kind: str = "a"

    class Other(Config):
        either: Named | A

    twin: Any = type("A", (Config,), {"__annotations__": {"z": int}, "z": 1})
    twins: Any = type("Twins", (Config,), {"__annotations__": {"either": A | twin}})
    with pytest.raises(ConfigError, match='either: JSON distinguishes Named and A by a "kind".*no field called kind'):
        Other(Named()).to_dict()
    with pytest.raises(ConfigError, match="give them different names"):
        twins(twin()).to_dict()

    class Alone(Config):
        only: Named | None = None

    assert Alone.from_dict(Alone(Named("Named")).to_dict()) == Alone(Named("Named"))


def test_keys_that_json_cannot_hold_are_an_error():
    class Keyed(Config):
        table: dict[tuple[int, int], str]

    with pytest.raises(ConfigError, match=r"table: the keys of a dict in a config are str, int, paths or enums"):
        Keyed({(1, 2): "a"}).to_dict()


class Level(enum.IntEnum):
    LOW = 1


class Word(str, enum.Enum):  # noqa: UP042 - the older spelling, whose str() is not its value
    HI = "hi"


class Left(Config):
    x: int = 0


class Right(Config):
    x: int = 0


Meters = NewType("Meters", float)


class Paint(enum.Enum):
    RED = "r"
    BLUE = "b"


def take(value: Any, hint: Any, *, json: bool) -> Any:
    """The value of a field with this annotation, from code or from JSON."""
    cls: Any = type("F", (Config,), {"__annotations__": {"f": hint}})
    return (cls.from_dict({"f": value}) if json else cls(value)).f


@pytest.mark.parametrize(
    ("hint", "value", "expected"),
    [
        (float, 3, 3.0),
        (int, np.int64(3), 3),
        (int, Level.LOW, 1),
        (str, Word.HI, "hi"),
        (None, None, None),
        (int | float, 3, 3),
        (float | int, 3, 3),
        (float | None, 3, 3.0),
        (int | Level, Level.LOW, Level.LOW),
        (Meters, 3, 3.0),
        (Path, "a/b", Path("a/b")),
        (str | Path, "a", "a"),
        (Path | str, "a", "a"),
        (list[float], [1, 2.5], [1.0, 2.5]),
        (list[int], (1, 2), [1, 2]),
        (list[float] | list[int], [1], [1]),
        (tuple[float, int], [1, 2], (1.0, 2)),
        (tuple, (1, "a"), (1, "a")),
        (Sequence[int], [1], (1,)),
        (dict, {"a": [1, None]}, {"a": [1, None]}),
    ],
)
def test_a_value_converts_to_the_type_of_its_field(hint, value, expected):
    found = take(value, hint, json=False)
    assert found == expected and type(found) is type(expected)


@pytest.mark.parametrize(
    ("hint", "value", "expected"),
    [
        (Paint, "RED", Paint.RED),
        (Path | None, "a", Path("a")),
        (str | Path, "a", "a"),
        (Path | str, "a", Path("a")),
        (dict[int, str], {"-3": "a"}, {-3: "a"}),
        (Literal[Paint.RED, "x"], "RED", Paint.RED),
        (Left, {"kind": "Left", "x": 1}, Left(1)),
        (Left | None, {"x": 1}, Left(1)),
        (Left | dict[str, int], {"y": 1}, {"y": 1}),
    ],
)
def test_json_converts_to_the_type_of_its_field(hint, value, expected):
    found = take(value, hint, json=True)
    assert found == expected and type(found) is type(expected)


@pytest.mark.parametrize(
    ("hint", "value", "text"),
    [
        (int, "512", 'f: expected int, got "512"'),
        (int, True, "f: expected int, got True"),
        (bool, 1, "f: expected bool, got 1"),
        (str, None, "f: expected str, got None"),
        (float, "nan", 'f: expected float, got "nan"'),
        (float, 10**400, "exceeds the largest float"),
        (Paint, "RDE", "f: expected Paint (RED, BLUE), got \"RDE\"; did you mean 'RED'?"),
        (Literal["flat", 1], "flatt", 'f: expected "flat" | 1, got "flatt"; did you mean \'flat\'?'),
        (Literal[1], True, "f: expected 1, got True"),
        (list[int], "ab", 'f: expected list[int], got "ab"'),
        (list[int], [1, "x", None], '  f[1]: expected int, got "x"\n  f[2]: expected int, got None'),
        (tuple[float, float], [1], "f: expected tuple[float, float], 2 values; got [1], 1"),
        (dict[str, int], {"*.bias": "a"}, 'f["*.bias"]: expected int, got "a"'),
        (dict[int, int], {"01": 1}, 'f["01"]: expected int, got "01"'),
        (int | None, "a", 'f: expected int | None, got "a"'),
        (list[int] | None, ["a"], 'f[0]: expected int, got "a"'),
        (list[int] | list[str], [None], "f: expected list[int] | list[str], got [None]"),
        (Left | Right, {"kind": "Right", "x": "a"}, 'f.x: expected int, got "a"'),
        (Left | Right, {"x": 1}, 'f.kind: missing, expected "Left" or "Right"'),
        (Left | Right, {"kind": "b"}, 'f.kind: expected "Left" or "Right", got "b"'),
        (Left, {"y": 1}, "f.y: unknown field; Left has x"),
        (Any, float("nan"), "f: expected a value that JSON can hold, got nan"),
        (int, "x" * 200, "xxx..."),
    ],
)
def test_a_value_that_does_not_fit_is_an_error(hint, value, text):
    with pytest.raises(ConfigError) as caught:
        take(value, hint, json=True)
    assert text in str(caught.value)


@pytest.mark.parametrize("hint", [set[int], bytes, complex, list[set[str]], enum.Flag, type])
def test_an_unsupported_type_is_an_error(hint):
    with pytest.raises(ConfigError, match="a config can't hold .*it holds bool, int, float"):
        take([1], hint, json=False)
