"""A script that is stopped and started again until it ends, and a comparison of everything that it produces."""

import hashlib
import os
import random
import shutil
import signal
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import torch
import torch.nn.functional as F
from torch import Tensor

import stoker
from stoker import Callback
from stoker.callbacks import HOOK_NAMES
from stoker.checkpoint import Store
from stoker.record import Run
from tests.resume.scenarios import Scenario, UserError, callbacks_of, fit_arguments, learner, training_data

CLOCKS = ("seconds", "epoch_seconds", "events")  # counters that differ after a stop
EVENTS = ("train", "valid", "epoch", "log", "note")  # events that do not depend on stops


class Killed(KeyboardInterrupt):
    """Ends an attempt after its directory was copied: what is written afterwards does not count."""


@dataclass(frozen=True)
class Stop:
    """How and where an attempt ends: raise, loss, data (an exception), int, term (a signal) or kill."""

    way: str
    at: str  # a hook
    epoch: int | None = None
    batch: int | None = None

    def __str__(self) -> str:
        place = "".join(f",{each}" for each in (self.epoch, self.batch) if each is not None)
        return f"{self.way}@{self.at.removeprefix('on_')}{place}"


class Stopper(Callback):
    """Stops the fit at the given place, once."""

    transient = True

    def __init__(self, stop: Stop | None, run: Path) -> None:
        self.stop, self.run, self.has_stopped, self.loss_fails = stop, run, False, False
        if stop is not None:
            setattr(self, stop.at, self.act)

    @property
    def flag(self) -> Path:
        return self.run.with_name(f"{self.run.name}.fault")

    @property
    def copy(self) -> Path:
        return self.run.with_name(f"{self.run.name}.copy")

    def act(self, ctx) -> None:
        stop = self.stop
        if self.has_stopped or stop.epoch not in (None, ctx.epoch) or stop.batch not in (None, ctx.batch_number):
            return
        self.has_stopped = True
        if stop.way == "raise":
            raise UserError(f"at {stop}")
        if stop.way == "kill":
            copy_run(self.run, self.copy)
            raise Killed
        if stop.way in ("int", "term"):
            os.kill(os.getpid(), {"int": signal.SIGINT, "term": signal.SIGTERM}[stop.way])
        self.loss_fails = stop.way == "loss"
        if stop.way == "data":
            self.flag.touch()

    def loss(self, predictions, targets, *, reduction="mean"):
        if self.loss_fails:
            raise UserError("this loss can't be computed")
        return F.cross_entropy(predictions, targets, reduction=reduction)


def copy_run(run: Path, to: Path) -> None:
    """Copies what a kill would leave: first the checkpoints, which a thread may be writing, then the events."""
    to.mkdir()
    with suppress(FileNotFoundError):  # there are none yet
        for folder in sorted((run / "checkpoints").iterdir()):
            with suppress(FileNotFoundError):  # deleted meanwhile
                shutil.copytree(folder, to / "checkpoints" / folder.name, copy_function=_copy_if_there)
    for file in run.iterdir():
        if file.is_file():
            shutil.copyfile(file, to / file.name)


def _copy_if_there(file, to) -> None:
    with suppress(FileNotFoundError):
        shutil.copyfile(file, to)


class BatchLog(Callback):
    """The batches of the run, which are saved with it, and those of this attempt."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int, str]] = []
        self.log: list[Any] = []

    def on_fit_begin(self, ctx) -> None:
        self.log = []

    def on_train_batch_begin(self, ctx) -> None:
        x, y = ctx.batch
        digest = hashlib.sha1(x.numpy().tobytes() + y.numpy().tobytes()).hexdigest()
        self.batches.append((ctx.epoch, ctx.batch_number, digest))
        self.log.append([ctx.epoch, (x[:, 0] * 64).round().int().tolist(), digest])

    def state_dict(self):
        return {"log": self.log}

    def load_state_dict(self, state) -> None:
        self.log = state["log"]


class Counter(Callback):
    """Counts every hook in a dict, in a tensor that it changes in place, and in `ctx.state`."""

    def __init__(self) -> None:
        for name in HOOK_NAMES:
            if name not in ("on_fit_begin", "on_interrupt", "on_exception", "on_fit_end"):
                setattr(self, name, lambda ctx, name=name: self.count(name, ctx))

    def on_fit_begin(self, ctx) -> None:
        self.calls, self.total = {}, torch.zeros(2)
        ctx.state.setdefault("calls", [])
        ctx.state.setdefault("total", torch.zeros(1))

    def count(self, name, ctx) -> None:
        self.calls[name] = self.calls.get(name, 0) + 1
        self.total += torch.tensor([1.0, ctx.update])
        ctx.state["total"] += 1
        if len(ctx.state["calls"]) < 30:
            ctx.state["calls"].append(name)
        else:
            ctx.state["calls"].clear()
        if name == "on_update":
            ctx.log("drawn", torch.rand(()))  # from the run's own random numbers

    def state_dict(self):
        return {"calls": self.calls, "total": self.total}

    def load_state_dict(self, state) -> None:
        self.calls, self.total = dict(state["calls"]), state["total"].clone()


class Attempt(NamedTuple):
    """One start of the script: what it returned or raised."""

    run: Path
    fitted: stoker.Fitted | None
    error: BaseException | None
    batches: list[tuple[int, int, str]]
    has_stopped: bool


Script = Callable[[Path, Stopper, list[Callback]], stoker.Fitted]


def script_of(scenario: Scenario) -> Script:
    def script(run: Path, stopper: Stopper, watchers: list[Callback]) -> stoker.Fitted:
        if scenario.compiled is not None:
            torch._dynamo.reset()
        if scenario.seed is None:  # the script seeds instead
            random.seed(11)
            numpy.random.seed(11)
            torch.manual_seed(11)
        return learner(scenario, stopper.loss).fit(
            training_data(scenario, stopper.flag),
            **fit_arguments(scenario),
            callbacks=[*watchers, *callbacks_of(scenario, run), stopper],
            run=run,
            resume=True,
            show=False,
        )

    return script


def start(script: Script, run: Path, stop: Stop | None = None) -> Attempt:
    """Runs the script once."""
    stopper, log = Stopper(stop, run), BatchLog()
    fitted = error = None
    try:
        fitted = script(run, stopper, [log, Counter()])
    except (Exception, Killed, SystemExit) as problem:
        error = problem.with_traceback(None)  # its frames would keep worker processes alive
    stopper.flag.unlink(missing_ok=True)
    where = stopper.copy if isinstance(error, Killed) else run
    return Attempt(where, fitted, error, log.batches, stopper.has_stopped)


def run_with_stops(script: Script, run: Path, stops: Sequence[Stop]) -> list[Attempt]:
    """Runs the script with one stop after the other, and then to its end."""
    attempts: list[Attempt] = []
    for stop in stops:
        attempts.append(start(script, run, stop))
        run = attempts[-1].run
    return [*attempts, start(script, run)]


# --- comparison


def outcome(attempt: Attempt) -> dict[str, Any]:
    """Everything that an attempt produced, without clocks."""
    run, fitted = Run.open(attempt.run), attempt.fitted
    found = Store(attempt.run / "checkpoints", run=run.id).newest()
    assert found.saved is not None
    assert found.problems == []
    progress = {name: value for name, value in found.state["progress"].items() if name not in CLOCKS}
    place = {name: getattr(found.saved, name) for name in ("epoch", "batch", "update", "ended", "resumable", "values")}
    table = attempt.run / "epochs.csv"
    events = [
        event for event in run.record.events if event.kind in EVENTS and "no complete checkpoint" not in event.text
    ]
    return {
        "checkpoint": {**found.state, "progress": progress},
        "place": place,
        "record": [[e.kind, e.epoch, e.batch, e.update, e.text, dict(e.values)] for e in events],
        "csv": table.read_text() if table.exists() else None,
        "error": None if attempt.error is None else f"{type(attempt.error).__name__}: {attempt.error}",
    } | ({} if fitted is None else _result(fitted))


def _result(fitted: stoker.Fitted) -> dict[str, Any]:
    return {
        "weights": dict(fitted.model.state_dict()),
        "trains": [name for name, each in fitted.model.named_parameters() if each.requires_grad],
        "history": fitted.history.to_dict(),
        "best": fitted.best and list(fitted.best),
        "length": [fitted.epochs, fitted.updates, fitted.stopped],
    }


def differences(a: Any, b: Any) -> list[str]:
    """The names of the values that differ between two outcomes, in any bit or type."""
    left, right = dict(_leaves(a)), dict(_leaves(b))
    return [name for name in {**left, **right} if left.get(name) != right.get(name)]


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Tensor):
        yield (
            name,
            (value.dtype, value.shape, value.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()),
        )
    elif isinstance(value, Mapping):
        yield name, list(value)
        for key, each in value.items():
            yield from _leaves(each, f"{name}.{key}")
    elif isinstance(value, list | tuple):
        yield name, (type(value), len(value))
        for place, each in enumerate(value):
            yield from _leaves(each, f"{name}[{place}]")
    else:
        yield name, struct.pack(">d", value) if isinstance(value, float) else (type(value), value)


def describe(attempts: Sequence[Attempt]) -> str:
    texts = [f"{attempt.error!r}, stopped: {attempt.has_stopped}" for attempt in attempts]
    return "\n".join(f"attempt {number}: {text}" for number, text in enumerate(texts, 1))


def assert_same(attempts: Sequence[Attempt], reference: Attempt) -> None:
    """Asserts that a run of several attempts had the batches and the outcome of a run without a stop, bit for bit."""
    found = differences(outcome(attempts[-1]), outcome(reference))
    assert not found, f"{len(found)} values differ: {', '.join(found[:12])}\n{describe(attempts)}"
    for attempt in attempts:
        first = reference.batches.index(attempt.batches[0]) if attempt.batches else 0
        assert attempt.batches == reference.batches[first : first + len(attempt.batches)]
