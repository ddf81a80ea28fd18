"""A script that is stopped and started again until it is over, and everything that came out of it, to compare."""

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
from tests.resume.scenes import Boom, Scene, callbacks_of, fit_settings, learner, training_data

WALL_CLOCK = ("seconds", "epoch_seconds", "events")  # of the loop's state; the last counts what was told of stops too
TOLD = ("train", "valid", "epoch", "log", "note")  # events that a resumed run has as if it had never stopped


class Killed(KeyboardInterrupt):
    """Ends a part without a word, once its directory was copied: nothing is saved any more after this."""


@dataclass(frozen=True)
class Stop:
    """Where a part ends, and how: raise, loss, data (an exception), int, term (a signal) or kill."""

    way: str
    at: str  # a milestone
    epoch: int | None = None
    batch: int | None = None

    def __str__(self) -> str:
        place = "".join(f",{each}" for each in (self.epoch, self.batch) if each is not None)
        return f"{self.way}@{self.at.removeprefix('on_')}{place}"


class Trouble(Callback):
    """Does at its place what a stop says, once."""

    transient = True

    def __init__(self, stop: Stop | None, run: Path) -> None:
        self.stop, self.run, self.struck, self.lossy = stop, run, False, False
        if stop is not None:
            setattr(self, stop.at, self.strike)

    @property
    def flag(self) -> Path:
        return self.run.with_name(f"{self.run.name}.fault")

    @property
    def copy(self) -> Path:
        return self.run.with_name(f"{self.run.name}.copy")

    def strike(self, ctx) -> None:
        stop = self.stop
        if self.struck or stop.epoch not in (None, ctx.epoch) or stop.batch not in (None, ctx.batch_number):
            return
        self.struck = True
        if stop.way == "raise":
            raise Boom(f"at {stop}")
        if stop.way == "kill":
            copied(self.run, self.copy)
            raise Killed
        if stop.way in ("int", "term"):
            os.kill(os.getpid(), {"int": signal.SIGINT, "term": signal.SIGTERM}[stop.way])
        self.lossy = stop.way == "loss"
        if stop.way == "data":
            self.flag.touch()

    def loss(self, predictions, targets, *, reduction="mean"):
        if self.lossy:
            raise Boom("this loss can't be computed")
        return F.cross_entropy(predictions, targets, reduction=reduction)


def copied(run: Path, to: Path) -> None:
    """What a kill leaves: the checkpoints first, which a thread may be writing, then what they count lines of."""
    to.mkdir()
    with suppress(FileNotFoundError):  # there are none yet
        for folder in sorted((run / "checkpoints").iterdir()):
            with suppress(FileNotFoundError):  # deleted meanwhile
                shutil.copytree(folder, to / "checkpoints" / folder.name, copy_function=_copied_if_there)
    for file in run.iterdir():
        if file.is_file():
            shutil.copyfile(file, to / file.name)


def _copied_if_there(file, to) -> None:
    with suppress(FileNotFoundError):
        shutil.copyfile(file, to)


class Seen(Callback):
    """What the data gave, as a log that belongs to the run, and another of this part alone."""

    def __init__(self) -> None:
        self.part: list[tuple[int, int, str]] = []
        self.log: list[Any] = []

    def on_fit_begin(self, ctx) -> None:
        self.log = []

    def on_train_batch_begin(self, ctx) -> None:
        x, y = ctx.batch
        print_ = hashlib.sha1(x.numpy().tobytes() + y.numpy().tobytes()).hexdigest()
        self.part.append((ctx.epoch, ctx.batch_number, print_))
        self.log.append([ctx.epoch, (x[:, 0] * 64).round().int().tolist(), print_])

    def state_dict(self):
        return {"log": self.log}

    def load_state_dict(self, state) -> None:
        self.log = state["log"]


class Counter(Callback):
    """Counts every milestone, in a mapping, in a tensor that it changes in place, and in `ctx.state`."""

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
        ctx.state["calls"].append(name) if len(ctx.state["calls"]) < 30 else ctx.state["calls"].clear()
        if name == "on_update":
            ctx.log("drawn", torch.rand(()))  # from the run's own random numbers

    def state_dict(self):
        return {"calls": self.calls, "total": self.total}

    def load_state_dict(self, state) -> None:
        self.calls, self.total = dict(state["calls"]), state["total"].clone()


class Part(NamedTuple):
    """One start of the script: what it gave, or how it failed."""

    run: Path
    fitted: stoker.Fitted | None
    error: BaseException | None
    seen: list[tuple[int, int, str]]
    struck: bool


Script = Callable[[Path, Trouble, list[Callback]], stoker.Fitted]


def script_of(scene: Scene) -> Script:
    def script(run: Path, trouble: Trouble, watching: list[Callback]) -> stoker.Fitted:
        if scene.compiled is not None:
            torch._dynamo.reset()
        if scene.seed is None:  # then the script does it
            random.seed(11)
            numpy.random.seed(11)
            torch.manual_seed(11)
        return learner(scene, trouble.loss).fit(
            training_data(scene, trouble.flag),
            **fit_settings(scene),
            callbacks=[*watching, *callbacks_of(scene, run), trouble],
            run=run,
            resume=True,
            show=False,
        )

    return script


def start(script: Script, run: Path, stop: Stop | None = None) -> Part:
    """Runs the script once."""
    trouble, seen = Trouble(stop, run), Seen()
    fitted = error = None
    try:
        fitted = script(run, trouble, [seen, Counter()])
    except (Exception, Killed, SystemExit) as problem:
        error = problem.with_traceback(None)  # whose frames would keep workers alive
    trouble.flag.unlink(missing_ok=True)
    where = trouble.copy if isinstance(error, Killed) else run
    return Part(where, fitted, error, seen.part, trouble.struck)


def stopped(script: Script, run: Path, stops: Sequence[Stop]) -> list[Part]:
    """Runs the script with one stop after the other, and then to its end."""
    parts: list[Part] = []
    for stop in stops:
        parts.append(start(script, run, stop))
        run = parts[-1].run
    return [*parts, start(script, run)]


# --- all that came out


def outcome(part: Part) -> dict[str, Any]:
    """The whole of it, without what a clock says."""
    run, fitted = Run.open(part.run), part.fitted
    found = Store(part.run / "checkpoints", run=run.id).newest()
    assert found.saved is not None
    assert found.problems == []
    loop = {name: value for name, value in found.state["progress"].items() if name not in WALL_CLOCK}
    place = {name: getattr(found.saved, name) for name in ("epoch", "batch", "update", "ended", "resumable", "values")}
    table = part.run / "epochs.csv"
    events = [event for event in run.record.events if event.kind in TOLD and "no complete checkpoint" not in event.text]
    return {
        "checkpoint": {**found.state, "progress": loop},
        "place": place,
        "record": [[e.kind, e.epoch, e.batch, e.update, e.text, dict(e.values)] for e in events],
        "csv": table.read_text() if table.exists() else None,
        "error": None if part.error is None else f"{type(part.error).__name__}: {part.error}",
    } | ({} if fitted is None else _fitted(fitted))


def _fitted(fitted: stoker.Fitted) -> dict[str, Any]:
    return {
        "weights": dict(fitted.model.state_dict()),
        "trains": [name for name, each in fitted.model.named_parameters() if each.requires_grad],
        "history": fitted.history.to_dict(),
        "best": fitted.best and list(fitted.best),
        "told": [fitted.epochs, fitted.updates, fitted.stopped],
    }


def differences(a: Any, b: Any) -> list[str]:
    """Where two outcomes differ, by name; to the bit, in dtype and in type."""
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


def told(parts: Sequence[Part]) -> str:
    return "\n".join(f"part {number}: {part.error!r}, struck: {part.struck}" for number, part in enumerate(parts, 1))


def assert_same(parts: Sequence[Part], truth: Part) -> None:
    """That a run of several parts came to the bits of the run that was never stopped, on the same data."""
    found = differences(outcome(parts[-1]), outcome(truth))
    assert not found, f"{len(found)} parts differ: {', '.join(found[:12])}\n{told(parts)}"
    for part in parts:
        first = truth.seen.index(part.seen[0]) if part.seen else 0
        assert part.seen == truth.seen[first : first + len(part.seen)]
