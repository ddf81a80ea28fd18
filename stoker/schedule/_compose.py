"""Curves made of other curves, and `Curve`, which is any of them: the closed set that a file can name."""

from typing import Literal, Union

from stoker.config import Config
from stoker.schedule import _curves as curves
from stoker.schedule._check import check


class Then(Config):
    """`first` until update `at`, from where on `second` counts from its own 0."""

    first: "Curve"
    second: "Curve"
    at: int

    def __post_init__(self) -> None:
        check(self, at=0)

    def __call__(self, update: int) -> float:
        return self.first(update) if update < self.at else self.second(update - self.at)


class Warmup(Config):
    """A straight way up to where `after` begins; `after` counts from its own 0."""

    after: "Curve"
    steps: int

    def __post_init__(self) -> None:
        check(self, steps=0)

    def __call__(self, update: int) -> float:
        if update < self.steps:
            return self.after(0) * ((update + 1) / (self.steps + 1))
        return self.after(update - self.steps)


class Arithmetic(Config):
    """Two curves, combined at every update."""

    left: "Curve"
    operator: Literal["+", "-", "*", "/"]
    right: "Curve"

    def __call__(self, update: int) -> float:
        left, right, operator = self.left(update), self.right(update), self.operator
        if operator == "*":
            return left * right
        if operator == "+":
            return left + right
        return left - right if operator == "-" else left / right


Curve = Union[  # noqa: UP007 - a union of classes is written down once, not at every use
    curves.Constant,
    curves.Linear,
    curves.Cosine,
    curves.Exponential,
    curves.Step,
    curves.Multistep,
    curves.Polynomial,
    curves.OneCycle,
    curves.InverseSqrt,
    curves.Noam,
    curves.WarmupStableDecay,
    curves.Function,
    Then,
    Warmup,
    Arithmetic,
]
