"""Whole trainings as scripts have them, small: everything is made anew in each call, as in a process that starts."""

import random
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import schedulefree
import torch
import torch.nn.functional as F
import torchmetrics
from torch import nn

import stoker
from stoker import Checkpoint, Objective, data, metrics, optim, schedule
from stoker.callbacks import CSV, EarlyStopping, FreezeUntil, MixUp, ReduceLROnPlateau

COUNT, SIZE = 61, 8  # samples: 8 batches, the last a short one; and the second number is a batch's size
ALWAYS = "0.0000001 minutes"  # saves after every batch, those inside a window included
SHAKY = 7  # the sample that fails where a fault is wanted


class Boom(RuntimeError):
    """What went wrong in the user's part."""


@dataclass(frozen=True)
class Scene:
    """What may differ from one training to the other."""

    kind: str = "plain"  # or groups, objectives, ema, bf16, fp16, schedulefree, counting, odd
    samples: bool = False  # one by one, through a transform that draws from all three generators; else columns
    workers: int = 0
    draws: bool = False  # the model draws from Python's and numpy's generators too
    mix: bool = False
    compiled: str | None = None
    accumulate: int = 1
    validate_every: Any = "epoch"
    sets: int = 1  # of validation
    keep: str = "best"
    callbacks: bool = False  # those of stoker that count
    metrics: bool = False
    nan: bool = False  # one sample is not finite, and such batches are skipped
    seed: int | None = 3
    epochs: int = 3
    every: Any = "epoch"
    keep_last: int = 2
    keep_best: str | None = None
    background: bool = False

    def __str__(self) -> str:
        own = {name: value for name, value in vars(self).items() if value != getattr(Scene, name)}
        return "-".join(f"{name}={value}" if type(value) is not bool else name for name, value in own.items())


class Net(nn.Module):
    """Batch norm, dropout, a buffer that no state_dict has, and a count that is no tensor."""

    def __init__(self, draws: bool = False) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(12, 3)
        self.draws = draws
        self.register_buffer("drift", torch.zeros(6), persistent=False)

    def forward(self, x):
        if self.training:
            self.drift.mul_(0.9).add_(x.detach().nan_to_num().mean(0))
            if self.draws:
                x = x * (1 + 0.1 * random.random() + 0.1 * numpy.random.rand())
        return self.head(self.body(x + 0.1 * self.drift))


class Counting(nn.Module):
    """Holds how often it was trained outside of tensors, as `get_extra_state` allows."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.forwards = Net(), 0

    def forward(self, x):
        self.forwards += self.training
        return self.inner(x) / (1 + 0.01 * self.forwards)

    def get_extra_state(self):
        return {"forwards": self.forwards}

    def set_extra_state(self, state):
        self.forwards = state["forwards"]


class Odd(nn.Module):
    """Two layers with one weight, and a buffer that is only there once a batch was seen."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.first, self.second = Net(), nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.register_buffer("late", None)

    def forward(self, x):
        x = self.inner(x)
        if self.training:
            self.late = x.detach().mean(0) if self.late is None else self.late * 0.5 + x.detach().mean(0)
        return self.second(self.first(x)) + (0 if self.late is None else self.late)


class Pair(nn.Module):
    """Two parts against each other, which yield their losses in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.maker = nn.Linear(6, 6)
        self.judge = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))

    def train_step(self, batch):
        x, _ = batch
        made = self.maker(torch.randn_like(x))
        yield Objective("judge", F.softplus(-self.judge(x)).mean() + F.softplus(self.judge(made.detach())).mean())
        yield Objective("maker", F.softplus(-self.judge(made)).mean())

    def valid_step(self, batch):
        return F.softplus(-self.judge(batch[0])).mean()


def columns(count=COUNT, seed=5):
    """Inputs and classes; the first input says which sample it is."""
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(count, 6, generator=generator), torch.randint(0, 3, (count,), generator=generator)
    x[:, 0] = torch.arange(count) / 64
    return x, y


def shaken(x, y, *, flag: Path, nan: bool):
    """A sample with noise of all three generators; one of them fails while the flag is there."""
    number = round(x[0].item() * 64)
    if number == SHAKY and flag.exists():
        raise Boom("this sample can't be read")
    x = x.clone()
    x[1:] += 0.1 * torch.randn(5) + 0.1 * random.random() + 0.1 * numpy.random.rand()
    if nan and number == 3:
        x[2] = float("nan")
    return x, y


def training_data(scene: Scene, flag: Path) -> data.Loader:
    x, y = columns()
    if scene.samples:
        transform = partial(shaken, flag=flag, nan=scene.nan)
        rows = list(zip(x, y, strict=True))
        return data.Loader(rows, batch_size=SIZE, shuffle=1, transform=transform, workers=scene.workers)
    if scene.nan:
        x[3, 2] = float("nan")
    return data.Loader((x, y), batch_size=SIZE, shuffle=1)


def learner(scene: Scene, loss=F.cross_entropy) -> stoker.Learner:
    decay = schedule.cosine(2e-2, steps=8 * scene.epochs // scene.accumulate, warmup=4)
    settings: dict[str, Any] = {"optimizer": optim.AdamW(), "lr": decay, "loss": loss}
    if scene.kind == "groups":
        settings |= {
            "optimizer": {"head": optim.SGD(momentum=0.9), "*": optim.AdamW()},
            "lr": {"head": decay, "*": 1e-2},
        }
    elif scene.kind == "objectives":
        settings |= {"loss": None, "optimizer": {"maker": optim.Adam(), "judge": optim.RMSprop()}, "lr": 1e-2}
    elif scene.kind == "ema":
        settings |= {"ema": 0.9}
    elif scene.kind in ("bf16", "fp16"):
        settings |= {"precision": scene.kind}
    elif scene.kind == "schedulefree":
        settings |= {"optimizer": optim.wrap(schedulefree.AdamWScheduleFree), "lr": 1e-2}
    made = {"objectives": Pair, "counting": Counting, "odd": Odd}.get(scene.kind) or partial(Net, scene.draws)
    model = made if scene.compiled is None else partial(compiled, made, scene.compiled)
    return stoker.Learner(
        model,
        **settings,
        metrics=_metrics(scene),
        accumulate=scene.accumulate,
        clip_norm=1.0,
        seed=scene.seed,
        device="cpu",
        on_nan="skip" if scene.nan else "stop",
    )


def compiled(made, backend) -> Any:
    """A compiled model, each shape by itself; by default the code depends on the shapes that the process saw before."""
    return torch.compile(made(), backend=backend, dynamic=False)


def _metrics(scene: Scene) -> list[Any]:
    if not scene.metrics:
        return []
    found: list[Any] = [metrics.GradientNorm(), metrics.LearningRate()]
    if scene.kind != "objectives":
        found += [metrics.Accuracy(), metrics.AUROC(), torchmetrics.classification.MulticlassF1Score(3)]
    return found


def callbacks_of(scene: Scene, run: Path) -> list[stoker.Callback]:
    found: list[stoker.Callback] = [MixUp(0.4)] if scene.mix else []
    if scene.callbacks:
        found += [
            EarlyStopping(patience=2, min_delta=0.02, warmup=1),
            ReduceLROnPlateau(patience=0, factor=0.5, min_delta=0.05),
            CSV(run / "epochs.csv"),
        ]
        if scene.kind != "objectives":  # a loss with nothing to train is an error
            found.append(FreezeUntil("inner.head" if scene.kind in ("counting", "odd") else "head", epoch=2))
    return found


def fit_settings(scene: Scene) -> dict[str, Any]:
    valid, other = (data.Loader(columns(count, seed=count), batch_size=7) for count in (17, 9))
    return {
        "valid": valid if scene.sets == 1 else {"valid": valid, "other": other},
        "epochs": scene.epochs,
        "validate_every": scene.validate_every,
        "keep": scene.keep,
        "checkpoint": Checkpoint(
            every=scene.every, keep_last=scene.keep_last, keep_best=scene.keep_best, background=scene.background
        ),
    }
