"""Whatever a config holds comes back from JSON: random values of random types."""

import dataclasses
import enum
import json
import tempfile
from pathlib import Path
from typing import Any, Literal, Union

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


def grown(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    """Containers and unions of what there is."""
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


typed_values = st.recursive(st.sampled_from(leaves), grown, max_leaves=6).flatmap(
    lambda one: st.tuples(st.just(one[0]), one[1])
)


@settings(max_examples=300, deadline=None)
@given(typed_values)
def test_every_value_of_every_type_comes_back(typed):
    hint, value = typed
    cls: Any = type("Random", (Config,), {"__annotations__": {"field": hint}})
    config = cls(value)
    data = config.to_dict()
    back = cls.from_dict(json.loads(json.dumps(data, allow_nan=False)))
    assert repr(back) == repr(config)  # the repr, in which NaN equals itself and 1 is not 1.0
    assert repr(cls.from_dict(data)) == repr(config) and back.to_dict() == data


class Everything(Config):
    numbers: dict[str, float | None]
    optimizers: list[A | B | None]
    where: Path | str
    color: Color
    inner: A = A()


@settings(max_examples=30, deadline=None)
@given(
    st.builds(
        Everything,
        st.dictionaries(words, st.none() | finite),
        st.lists(st.none() | leaves[9][1] | leaves[10][1], max_size=3),
        leaves[5][1] | words,
        st.sampled_from(Color),
        leaves[9][1],
    )
)
def test_files_bring_back_an_equal_config(config):
    with tempfile.TemporaryDirectory() as folder:
        assert Everything.load(config.save(Path(folder) / "c.json")) == config


def test_the_tag_is_written_only_where_it_is_needed():
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


def test_classes_that_a_tag_can_not_tell_apart_are_refused():
    class Named(Config):
        kind: str = "a"

    class Other(Config):
        either: Named | A

    twin: Any = type("A", (Config,), {"__annotations__": {"z": int}, "z": 1})
    twins: Any = type("Twins", (Config,), {"__annotations__": {"either": A | twin}})
    with pytest.raises(ConfigError, match='either: "kind" tells Named and A apart.*no field called kind'):
        Other(Named()).to_dict()
    with pytest.raises(ConfigError, match="give them different names"):
        twins(twin()).to_dict()

    class Alone(Config):
        only: Named | None = None

    assert Alone.from_dict(Alone(Named("Named")).to_dict()) == Alone(Named("Named"))


def test_keys_that_json_can_not_have_are_refused():
    class Keyed(Config):
        table: dict[tuple[int, int], str]

    with pytest.raises(ConfigError, match=r"table: the keys of a dict in a config are str, int, paths or enums"):
        Keyed({(1, 2): "a"}).to_dict()
