"""Small trainings with all kinds of features; every call creates all objects again, as a new process does."""

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

COUNT, SIZE = 61, 8  # samples, and samples to a batch: 8 batches, of which the last is short
EVERY_BATCH = "0.0000001 minutes"  # also inside an accumulation window
FAILING_SAMPLE = 7  # the sample that raises while the flag file exists


class UserError(RuntimeError):
    """An exception of the user's code."""


@dataclass(frozen=True)
class Scenario:
    """The features of a training."""

    kind: str = "plain"  # or groups, objectives, ema, bf16, fp16, schedulefree, extra_state, tied
    samples: bool = False  # a list of samples with a transform that draws from all three generators; otherwise columns
    workers: int = 0
    draws: bool = False  # the model draws from Python's and numpy's generators too
    mix: bool = False
    compiled: str | None = None
    accumulate: int = 1
    validate_every: Any = "epoch"
    sets: int = 1  # number of validation sets
    keep: str = "best"
    callbacks: bool = False  # callbacks of stoker that have a state
    metrics: bool = False
    nan: bool = False  # one sample is NaN, with on_nan="skip"
    seed: int | None = 3
    epochs: int = 3
    every: Any = "epoch"
    keep_last: int = 2
    keep_best: str | bool | None = None
    monitor: str | None = None  # if given, the schedule is also as long as the fit
    background: bool = False
    frozen: bool = False  # checkpoints leave out a frozen layer, and what the callback FreezeUntil freezes

    def __str__(self) -> str:
        own = {name: value for name, value in vars(self).items() if value != getattr(Scenario, name)}
        return "-".join(f"{name}={value}" if type(value) is not bool else name for name, value in own.items())


class Net(nn.Module):
    """Batch norm, dropout, and a buffer that is not persistent."""

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


class WithExtraState(nn.Module):
    """Counts its forwards outside of tensors, with `get_extra_state`."""

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


class Tied(nn.Module):
    """Two layers with the same weight, and a buffer that is created by the first batch."""

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


class GAN(nn.Module):
    """A generator and a critic with an objective each."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Linear(6, 6)
        self.critic = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))

    def train_step(self, batch):
        x, _ = batch
        fake = self.generator(torch.randn_like(x))
        yield Objective("critic", F.softplus(-self.critic(x)).mean() + F.softplus(self.critic(fake.detach())).mean())
        yield Objective("generator", F.softplus(-self.critic(fake)).mean())

    def valid_step(self, batch):
        return F.softplus(-self.critic(batch[0])).mean()


def columns(count=COUNT, seed=5):
    """Inputs and classes; the first input identifies the sample."""
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(count, 6, generator=generator), torch.randint(0, 3, (count,), generator=generator)
    x[:, 0] = torch.arange(count) / 64
    return x, y


def add_noise(x, y, *, flag: Path, nan: bool):
    """A sample with noise of all three generators; one sample raises while the flag file exists."""
    number = round(x[0].item() * 64)
    if number == FAILING_SAMPLE and flag.exists():
        raise UserError("this sample can't be read")
    x = x.clone()
    x[1:] += 0.1 * torch.randn(5) + 0.1 * random.random() + 0.1 * numpy.random.rand()
    if nan and number == 3:
        x[2] = float("nan")
    return x, y


def training_data(scenario: Scenario, flag: Path) -> data.Loader:
    x, y = columns()
    if scenario.samples:
        transform = partial(add_noise, flag=flag, nan=scenario.nan)
        rows = list(zip(x, y, strict=True))
        return data.Loader(rows, batch_size=SIZE, shuffle=1, transform=transform, workers=scenario.workers)
    if scenario.nan:
        x[3, 2] = float("nan")
    return data.Loader((x, y), batch_size=SIZE, shuffle=1)


def learner(scenario: Scenario, loss=F.cross_entropy) -> stoker.Learner:
    decay = schedule.cosine(2e-2, steps=8 * scenario.epochs // scenario.accumulate, warmup=4)
    if scenario.monitor is not None:
        decay = schedule.cosine(2e-2, warmup=0.2)
    settings: dict[str, Any] = {"optimizer": optim.AdamW(), "lr": decay, "loss": loss}
    if scenario.kind == "groups":
        settings |= {
            "optimizer": {"head": optim.SGD(momentum=0.9), "*": optim.AdamW()},
            "lr": {"head": decay, "*": 1e-2},
        }
    elif scenario.kind == "objectives":
        settings |= {"loss": None, "optimizer": {"generator": optim.Adam(), "critic": optim.RMSprop()}, "lr": 1e-2}
    elif scenario.kind == "ema":
        settings |= {"ema": 0.9}
    elif scenario.kind in ("bf16", "fp16"):
        settings |= {"precision": scenario.kind}
    elif scenario.kind == "schedulefree":
        settings |= {"optimizer": optim.wrap(schedulefree.AdamWScheduleFree), "lr": 1e-2}
    models = {"objectives": GAN, "extra_state": WithExtraState, "tied": Tied}
    create = models.get(scenario.kind) or partial(Net, scenario.draws)
    if scenario.frozen:
        create = partial(freeze_first_layer, create)
    model = create if scenario.compiled is None else partial(compile_model, create, scenario.compiled)
    return stoker.Learner(
        model,
        **settings,
        metrics=_metrics(scenario),
        accumulate=scenario.accumulate,
        clip_norm=1.0,
        seed=scenario.seed,
        device="cpu",
        on_nan="skip" if scenario.nan else "stop",
    )


def freeze_first_layer(create) -> nn.Module:
    """A model whose first layer does not train, with the weights of a file, say: the same in every process."""
    model = create()
    first = next(module for module in model.modules() if isinstance(module, nn.Linear))
    generator = torch.Generator().manual_seed(11)
    for parameter in first.requires_grad_(False).parameters():
        nn.init.normal_(parameter, generator=generator)
    return model


def compile_model(create, backend) -> Any:
    """A compiled model with static shapes: dynamic ones depend on the shapes that the process saw before."""
    return torch.compile(create(), backend=backend, dynamic=False)


def _metrics(scenario: Scenario) -> list[Any]:
    if not scenario.metrics:
        return []
    chosen: list[Any] = [metrics.GradientNorm(), metrics.LearningRate()]
    if scenario.kind != "objectives":
        chosen += [metrics.Accuracy(), metrics.AUROC(), torchmetrics.classification.MulticlassF1Score(3)]
    return chosen


def callbacks_of(scenario: Scenario, run: Path) -> list[stoker.Callback]:
    found: list[stoker.Callback] = [MixUp(0.4)] if scenario.mix else []
    if scenario.callbacks:
        found += [
            EarlyStopping(patience=2, min_delta=0.02, warmup=1),
            ReduceLROnPlateau(patience=0, factor=0.5, min_delta=0.05),
            CSV(run / "epochs.csv"),
        ]
        if scenario.kind != "objectives":  # an objective without trainable parameters is an error
            found.append(FreezeUntil("inner.head" if scenario.kind in ("extra_state", "tied") else "head", epoch=2))
    return found


def fit_arguments(scenario: Scenario) -> dict[str, Any]:
    valid, other = (data.Loader(columns(count, seed=count), batch_size=7) for count in (17, 9))
    return {
        "valid": valid if scenario.sets == 1 else {"valid": valid, "other": other},
        "epochs": scenario.epochs,
        "validate_every": scenario.validate_every,
        "keep": scenario.keep,
        "monitor": scenario.monitor,
        "checkpoint": Checkpoint(
            every=scenario.every,
            keep_last=scenario.keep_last,
            keep_best=scenario.keep_best,
            background=scenario.background,
            frozen="fingerprint" if scenario.frozen else "save",
        ),
    }
