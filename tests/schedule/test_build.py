"""The builders: mistakes in their arguments, and that each makes the curve of its name."""

import inspect

import pytest

from stoker import schedule
from stoker.errors import ConfigError
from stoker.schedule import _build, _curves
from stoker.schedule._check import name_of


def test_mistyped_settings_are_named_in_the_users_spelling():
    with pytest.raises(ConfigError, match=r"^steps: expected int, got 100\.0$"):
        schedule.cosine(1e-3, steps=100.0)  # pyright: ignore
    with pytest.raises(ConfigError, match=r"^shape: expected .*got .cos.; did you mean 'cosine'\?$"):
        schedule.one_cycle(1e-3, steps=10, shape="cos")  # pyright: ignore
    with pytest.raises(ConfigError, match=r"^milestones\[1\]: expected int, got 2\.5$"):
        schedule.multistep(1e-3, milestones=[1, 2.5])  # pyright: ignore


CURVES = [
    *(_curves.Constant, _curves.Linear, _curves.Cosine, _curves.Exponential, _curves.Step, _curves.Multistep),
    *(_curves.Polynomial, _curves.OneCycle, _curves.InverseSqrt, _curves.Noam, _curves.WarmupStableDecay),
]


@pytest.mark.parametrize("cls", CURVES, ids=lambda cls: cls.__name__)
def test_a_builder_and_its_curve_have_the_same_settings(cls):
    """So that a schedule prints as the call that makes it."""
    builder = getattr(_build, name_of(cls.__new__(cls)))
    ours, theirs = inspect.signature(builder).parameters, inspect.signature(cls).parameters
    assert [(p.name, p.kind, p.default) for p in ours.values()] == [
        (p.name, p.kind, p.default) for p in theirs.values()
    ]
