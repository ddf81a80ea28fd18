"""`Program`: a fit as a plain value, drawn from a seed, printed as a script, and simplified when it fails."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any

from tests.random_programs.hooks import CALLBACKS, NOT_RESUMABLE
from tests.random_programs.models import (
    BAD,
    DATA,
    LOSSES,
    METRICS,
    MIXABLE,
    MODELS,
    SPLITTABLE,
    STEPS,
    UNKNOWN_LENGTH,
    VALID,
)
from tests.random_programs.rates import OPTIMIZERS, RATES, WHOLE_FIT

HOWS = ["exception", "KeyboardInterrupt", "SIGINT"]
STOP_HOOKS = [
    *("train_batch_begin", "train_batch_end", "update", "epoch_begin", "train_end", "epoch_end"),
    *("train_batch_after_loss", "train_batch_after_step", "valid_batch_end", "validation"),
]


def _one_of(values: Any, *, always: bool = False) -> Any:
    """A field with one of these values, the first one by default; `always`: it is drawn for every program."""
    values = list(values)
    return field(default=values[0], metadata={"draw": lambda rng: rng.choice(values), "always": always})


def _several_of(values: Any, most: int) -> Any:
    """A field with a tuple of some of these values, none by default."""
    values = list(values)

    def draw(rng: random.Random) -> tuple[Any, ...]:
        return tuple(rng.sample(values, rng.randint(1, most)))

    return field(default=(), metadata={"draw": draw})


def _drawn(default: Any, draw: Callable[[random.Random], Any]) -> Any:
    return field(default=default, metadata={"draw": draw})


def _draw_stops(rng: random.Random) -> tuple[Any, ...]:
    return tuple(
        (rng.choice(HOWS), rng.choice(STOP_HOOKS), rng.choice(range(13))) for _ in range(rng.choice([1, 1, 2, 3]))
    )


@dataclass(frozen=True)
class Program:
    """The choices that a fit is made of. A field is a dimension; its tables are in `models`, `rates` and `hooks`."""

    model: str = _one_of(MODELS, always=True)
    step: str = _one_of(STEPS)
    loss: str = _one_of(LOSSES)
    optimizer: str = _one_of(OPTIMIZERS, always=True)
    rate: str = _one_of(RATES, always=True)
    rates_of_objectives: str = _one_of(["one", "each"])  # for the step "objectives": optimizers and rates
    data: str = _one_of(DATA, always=True)
    samples: int = _drawn(26, lambda rng: rng.randint(9, 60))
    batch_size: int = _drawn(8, lambda rng: rng.choice([2, 3, 4, 5, 8, 8, 16]))
    bad: tuple[str, int] = _drawn(("none", 0), lambda rng: (rng.choice(BAD[1:]), rng.randint(0, 60)))
    bad_valid: tuple[str, int] = _drawn(("none", 0), lambda rng: (rng.choice(BAD[1:]), rng.randint(0, 60)))
    double: bool = _one_of([False, True])
    length: tuple[str, int] = _drawn(
        ("epochs", 2), lambda rng: rng.choice([("epochs", rng.randint(1, 5)), ("updates", max(3, rng.randint(1, 23)))])
    )
    accumulate: int = _one_of([1, 2, 3, 5])
    micro_batch: int | str | None = _one_of([None, 1, 3, 4, "auto"])
    clip_norm: float | None = _one_of([None, 0.05, 1.0])
    clip_value: float | None = _one_of([None, 0.01])
    ema: float | None = _one_of([None, 0.75, 0.999])
    precision: str = _one_of(["fp32", "bf16", "bf16", "fp16", "tf32"])
    on_nan: str = _one_of(["stop", "skip"])
    recompute: str | None = _one_of([None, "body", "head"])
    deterministic: bool = _one_of([False, True])
    metrics: tuple[str, ...] = _several_of(METRICS, 4)
    callbacks: tuple[str, ...] = _several_of(CALLBACKS, 3)
    more_callbacks: tuple[str, ...] = _several_of(CALLBACKS, 3)
    valid: str = _one_of(VALID)
    validate_every: int | str = _one_of(["epoch", 1, 3, 5])
    keep: str = _one_of(["best", "last"])
    monitor: str | None = _one_of([None, "train/loss"])
    seed: int | None = _one_of([3, 0, 12345])
    saved: bool = _one_of([False, True])
    checkpoint: tuple[tuple[str, Any], ...] = _drawn(
        (),
        lambda rng: tuple(
            {
                "every": rng.choice(["epoch", 1, 2, 4]),
                "keep_last": rng.choice([1, 2, 5]),
                "background": rng.random() < 0.5,
                "keep_best": rng.choice([None, True]),
            }.items()
        ),
    )
    stops: tuple[tuple[str, str, int], ...] = _drawn((), _draw_stops)  # how, at which hook, after how many updates
    memory: float | None = _drawn(None, lambda rng: round(rng.uniform(0.02, 1.0), 3))  # of what the fit takes

    def __post_init__(self) -> None:
        unsupported = next(self._what_cannot_be(), None)
        if unsupported is not None:
            object.__setattr__(self, unsupported, _DEFAULTS[unsupported])
            self.__post_init__()

    def _what_cannot_be(self) -> Iterator[str]:
        """Yields fields whose values are for another kind of program; they fall back to their defaults."""
        names = {*self.callbacks, *self.more_callbacks}
        has_metric = self.valid != "none" or self.monitor is not None
        rules = {
            "rates_of_objectives": self.step != "objectives",
            "micro_batch": self.step == "objectives",
            "precision": self.double,
            "metrics": self.double,
            "monitor": self.keep == "last" or self.step == "objectives",
            "bad": self.bad[0] == "ignored" and self.loss == "margin",
            "bad_valid": self.bad_valid[0] == "ignored" and self.loss == "margin",
            "checkpoint": not has_metric and ("keep_best", True) in self.checkpoint,
            "valid": self.valid == "fraction" and self.data not in SPLITTABLE,
            "length": self.data in UNKNOWN_LENGTH and self.length[0] == "epochs" and self.rate in WHOLE_FIT,
            "callbacks": (self.step != "loss" and "MixUp" in names)
            or (self.step == "objectives" and "FreezeUntil" in names)
            or (self.loss not in MIXABLE and "MixUp" in names)
            or {"MixUp", "half batches"} <= names
            or (not has_metric and {"EarlyStopping", "ReduceLROnPlateau"} & names)
            or (self.stops and NOT_RESUMABLE & names)
            or set(self.callbacks) & set(self.more_callbacks),
        }
        for name, is_wrong in rules.items():
            if is_wrong and getattr(self, name) != _DEFAULTS[name]:
                yield name
        if rules["callbacks"] and self.more_callbacks:
            yield "more_callbacks"
        if rules["length"]:
            yield "data"

    def changes(self) -> dict[str, Any]:
        """The fields that differ from their defaults."""
        return {each.name: value for each in fields(self) if (value := getattr(self, each.name)) != each.default}

    def __repr__(self) -> str:
        return f"Program({', '.join(f'{name}={value!r}' for name, value in self.changes().items())})"

    def script(self) -> str:
        """A Python script that runs the program; on a machine without a GPU: `python -m simulated_cuda script.py`."""
        arguments = "".join(f"    {name}={value!r},\n" for name, value in self.changes().items())
        return (
            f"from tests.random_programs import Program, check\n\nif __name__ == '__main__':\n"
            f"    check(Program(\n{arguments}    ))\n"
        )

    def simpler(self) -> Iterator["Program"]:
        """Yields programs with one difference from the defaults less."""
        for name, value in self.changes().items():
            yield replace(self, **{name: _DEFAULTS[name]})
            if isinstance(value, tuple) and name in ("metrics", "callbacks", "more_callbacks", "stops"):
                for place in range(len(value)) if len(value) > 1 else ():
                    yield replace(self, **{name: value[:place] + value[place + 1 :]})


_DEFAULTS = {each.name: each.default for each in fields(Program)}


def draw(seed: int) -> Program:
    """The program of a seed: some of its dimensions have another value than the default, now few and now many."""
    rng = random.Random(seed)
    optional = [each for each in fields(Program) if not each.metadata.get("always")]
    chosen = {each.name for each in rng.sample(optional, min(rng.choice([0, 1, 2, 2, 3, 4, 6, 9, 12]), len(optional)))}
    chosen |= {name for name, chance in (("stops", 0.35), ("memory", 0.15)) if rng.random() < chance}
    choices = {}
    for each in fields(Program):
        if each.name in chosen or (each.metadata.get("always") and rng.random() < 0.7):
            choices[each.name] = each.metadata["draw"](rng)
    return Program(**choices)


def simplify(program: Program, fails: Callable[[Program], bool]) -> Program:
    """The smallest program that still fails, found by setting one choice after another to its default."""
    tried = {program}
    while True:
        for smaller in program.simpler():
            if smaller not in tried:
                tried.add(smaller)
                if len(smaller.changes()) <= len(program.changes()) and fails(smaller):
                    program = smaller
                    break
        else:
            return program
