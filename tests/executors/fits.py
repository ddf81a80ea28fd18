"""Small fits, one for each feature of training, that every executor runs with the results of the eager one."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stoker
from stoker import Objective, callbacks, data, metrics, optim, schedule
from stoker.engine.executors import _compiled, _programs

EPOCHS, SIZE, SAMPLES = 8, 8, 52  # 7 batches an epoch, the last one short: 56 updates


class ForceEager(callbacks.Callback):
    """A callback between forward and update that does nothing; with it, every step runs eagerly."""

    def on_train_batch_after_loss(self, ctx):
        """Nothing."""


class AfterEveryBatch(callbacks.Callback):
    """A callback after every batch that does nothing; the executor has to look for changes before the next batch."""

    def on_train_batch_end(self, ctx):
        """Nothing."""


def samples(count=SAMPLES):
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(count, 6, generator=generator, dtype=torch.float64)
    return x.to(torch.get_default_dtype()), (x[:, :3] + 0.2 * x[:, 3:]).argmax(1)


def net(*middle):
    return nn.Sequential(nn.Linear(6, 5), *middle, nn.Tanh(), nn.Linear(5, 3))


def deep_net():
    """A model with so many parameters that its update is one fused kernel, which is not compiled."""
    layers = [layer for _ in range(17) for layer in (nn.Linear(256, 256), nn.Tanh())]
    return nn.Sequential(nn.Linear(6, 256), *layers, nn.Linear(256, 3))


def batch_norm_net():
    """A model with batch norm, without the bias before it: its gradient is noise, which Adam would amplify."""
    body = nn.Linear(6, 5, bias=False)
    return nn.Sequential(body, nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3))


class SwappedState(metrics.Metric):
    """A metric whose new state holds a tensor of its old state under another name."""

    names: tuple[str, ...] = ()

    def init(self, device):
        return {name: torch.zeros((), device=device) for name in self.names}

    def update(self, state, output):
        new = {"last": output.loss.detach() * 1, "before": state["last"]}
        return {name: new[name] for name in self.names}

    def compute(self, state):
        return float(state["before"])


@dataclass
class Feature:
    """The arguments of a fit, as functions that each fit calls."""

    model: object = net
    data: object = samples
    settings: object = dict  # arguments of Learner
    fit: object = dict  # arguments of Learner.fit
    callbacks: object = list
    programs: int = 2  # how many are compiled: full batches, and the short last one
    graphs: int | None = None  # how many CUDA graphs are recorded, if it differs


def run(feature, *, device="cpu", compile=True, eager=False, **more):
    """Fits a feature; `eager` forces eager steps and changes nothing else."""
    torch.manual_seed(1)
    model, samples = feature.model(), feature.data()
    settings = {
        "loss": nn.CrossEntropyLoss(),
        "optimizer": optim.AdamW(),
        "lr": 0.015625,
        "seed": 3,
        **feature.settings(),
    }
    arguments = {"epochs": EPOCHS, "batch_size": SIZE, "keep": "last", "show": False, **feature.fit(), **more}
    hooks = [*feature.callbacks(), *arguments.pop("callbacks", ()), *([ForceEager()] if eager else [])]
    if isinstance(samples, data.Loader) or not isinstance(samples, tuple | list):
        del arguments["batch_size"]
    learner = stoker.Learner(model, device=device, compile=compile, **settings)
    return learner.fit(samples, callbacks=hooks, **arguments)


def results_of(fitted):
    """The results of a fit by name: weights, EMA, optimizer state and history."""
    state = fitted._prepared.fit.state
    found = {f"model.{name}": value for name, value in fitted.model.state_dict().items()}
    last = last_weights(fitted)
    if last is not None:
        found |= {f"last.{name}": value for name, value in last.items()}
    for place, rule in enumerate(state.optimizer.state_tensors()):
        found |= {f"optimizer.{place}.{name}.{key}": each for name, own in rule.items() for key, each in own.items()}
    for name, column in fitted.history.to_dict().items():
        if "second" not in name and "sample" not in name:
            values = [float("nan") if each is None else each for each in column]
            found[f"history.{name}"] = torch.tensor(values, dtype=torch.float64)
    found["updates"] = torch.tensor(fitted.updates)
    return {name: value.detach().cpu() for name, value in found.items() if value is not None}


def rng_states(fitted):
    """The states of all random number generators at the end of a fit."""
    return to_lists(fitted._prepared.ending.random)


def to_lists(value):
    """Replaces tensors and arrays in a nested structure by lists."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return {name: to_lists(each) for name, each in value.items()}
    return [to_lists(each) for each in value] if isinstance(value, tuple | list) else value


def assert_identical(left, right):
    """Compares bit by bit, so that a NaN equals itself."""
    assert left.keys() == right.keys()
    different = [name for name in left if not torch.equal(bits(left[name]), bits(right[name]))]
    assert not different, [
        (name, (left[name].double() - right[name].double()).abs().max().item()) for name in different
    ]


def bits(tensor):
    return tensor.contiguous().flatten().view(torch.uint8) if tensor.numel() else tensor


def assert_close(left, right, *, rtol, atol=0.0):
    assert left.keys() == right.keys()
    for name, value in left.items():
        torch.testing.assert_close(
            value, right[name], rtol=rtol, atol=atol, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}"
        )


def count_programs(monkeypatch):
    """A list that grows with every compiled program or recorded CUDA graph."""
    programs, make = [], _programs.ProgramCache._make

    def count(self, *args):
        program = make(self, *args)
        if program is not None:
            programs.append(program)
        return program

    monkeypatch.setattr(_programs.ProgramCache, "_make", count)
    return programs


def interpret_graphs(monkeypatch):
    """Runs traced graphs node by node instead of compiling them, which takes seconds."""
    monkeypatch.setattr(_compiled, "compile_graph", lambda graph, inputs, **_: lambda tensors: graph(*tensors))
    monkeypatch.setattr(_compiled, "_ON_CPU", {})  # so that dropout draws the same numbers as the eager step


def warnings_of(fitted):
    return [event.text for event in fitted.record.events_of("warning")]


def plan_of(fitted):
    """The plan of the training step: its mode, and why it is not another one."""
    return fitted._prepared.fit.plan


def last_weights(fitted):
    """The weights after the last update; `fitted.model` may have the best ones."""
    last = fitted._prepared.ending.last_weights
    return None if last is None else last.tensors


# --- models, data and callbacks


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.LSTM(2, 3, batch_first=True), nn.Linear(3, 3)

    def forward(self, x):
        return self.head(self.body(x.reshape(-1, 3, 2))[0][:, -1])


class Carried(nn.Module):
    """Its state is carried from batch to batch, in a buffer that is written in place."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.GRUCell(6, 3), nn.Linear(3, 3)
        self.register_buffer("hidden", torch.zeros(SIZE, 3))

    def forward(self, x):
        hidden = self.body(x, self.hidden.clone())
        if self.training:
            self.hidden.copy_(hidden.detach())
        return self.head(hidden)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.two.weight = self.one.weight

    def forward(self, x):
        return self.head(self.two(self.one(x).tanh()).tanh())


class GAN(nn.Module):
    """A small GAN, whose step yields two objectives."""

    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(2, 4), nn.LeakyReLU(0.2), nn.Linear(4, 2))
        self.critic = nn.Sequential(nn.Linear(2, 4), nn.LeakyReLU(0.2), nn.Linear(4, 1))

    def train_step(self, batch):
        (real,) = batch
        fake = self.generator(torch.randn(len(real), 2, device=real.device, dtype=real.dtype))
        yield Objective("critic", F.softplus(-self.critic(real)).mean() + F.softplus(self.critic(fake.detach())).mean())
        yield Objective("generator", F.softplus(-self.critic(fake)).mean())


class CustomStep(nn.Module):
    """A model with a `train_step` that returns an output."""

    def __init__(self):
        super().__init__()
        self.body = net()

    def train_step(self, batch):
        x, y = batch
        logits = self.body(x)
        return stoker.ClassificationOutput(F.cross_entropy(logits, y), logits, y)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2, 3)

    def forward(self, x):
        return self.head(x.reshape(-1, 3, 2)).transpose(1, 2)


class OwnLoss(Tagger):
    """Computes its loss in `forward`, as a mean over the tokens that are not masked."""

    def forward(self, x, labels):
        logits = super().forward(x)
        loss = F.cross_entropy(logits.transpose(1, 2).flatten(0, 1), labels.flatten())
        return {"loss": loss, "logits": logits, "size": logits.square().mean()}


def step_of_net(model, batch):
    x, y = batch
    logits = model(x)
    return {"loss": F.cross_entropy(logits, y), "size": logits.square().mean()}


class FlatCrossEntropy(nn.CrossEntropyLoss):
    """Flattens positions into samples: torch's CUDA kernel for more dimensions is not deterministic."""

    def forward(self, input, target):
        return super().forward(input.transpose(1, 2).flatten(0, 1), target.flatten())


class Weightless(Tagger):
    """A model whose loss is finite for a batch without a single unmasked token."""

    def train_step(self, batch):
        x, y = batch
        logits, mask = self(x), y >= 0
        losses = F.cross_entropy(logits, y.clamp(min=0), reduction="none") * mask
        loss = losses.sum() / mask.sum().clamp(min=1)
        return stoker.SequenceOutput(loss, logits.transpose(1, 2), y.clamp(min=0), mask=mask)


def masked_tokens():
    """Three tokens per sample, some of them masked; in the second and the sixth batch all of them."""
    x, _ = samples()
    generator = torch.Generator().manual_seed(6)
    y = torch.randint(0, 3, (SAMPLES, 3), generator=generator)
    y[torch.rand(SAMPLES, 3, generator=generator) < 0.4] = -100
    y[8:16] = y[40:48] = -100
    return data.Loader((x, y), batch_size=SIZE)


def weighted_samples():
    x, y = samples()
    return {"input": x, "target": y, "weight": torch.linspace(0.0, 2.0, SAMPLES)}


def frozen_net():
    model = batch_norm_net()
    model[0].requires_grad_(False)
    return model


class Unfreeze(callbacks.Callback):
    """Unfreezes the first layer at the fourth epoch."""

    def on_epoch_begin(self, ctx):
        if ctx.epoch == 4:
            ctx.model[0].requires_grad_(True)


class HalveLearningRate(callbacks.Callback):
    """Halves the learning rate after every epoch, as `ReduceLROnPlateau` may do."""

    def on_epoch_end(self, ctx):
        ctx.lr_scale *= 0.5


class SetLearningRate(callbacks.Callback):
    """Sets the learning rate of every batch."""

    def on_train_batch_begin(self, ctx):
        ctx.lr = 2.0 ** -(4 + ctx.batch_number % 3)


class NegateBatches(callbacks.Callback):
    """Replaces every second batch."""

    def on_train_batch_begin(self, ctx):
        x, y = ctx.batch
        ctx.batch = (-x, y) if ctx.batch_number % 2 else (x, y)


class CallAt(callbacks.Callback):
    """Calls a function at a hook, which changes something that the step's Python code reads."""

    def __init__(self, change, hook):
        setattr(self, hook, lambda ctx: change(ctx))


class Slots:
    """An object without a `__dict__`."""

    __slots__ = ("temperature",)


class Temperature:
    value = 1.0


TEMPERATURE = SimpleNamespace(value=1.0)
SCALE = 1.0


def global_temperature():
    return TEMPERATURE.value * Temperature.value * max([SCALE for _ in range(2)])


class WithTemperature(nn.Module):
    """A model whose forward reads Python numbers, here and there."""

    def __init__(self):
        super().__init__()
        self.body, self.temperature = net(), 1.0
        self.config, self.slots = SimpleNamespace(inner={"temperature": 1.0}), Slots()
        self.slots.temperature = 1.0

    def forward(self, x):
        own = self.temperature * self.config.inner["temperature"] * self.slots.temperature
        return self.body(x) / (own * global_temperature())


class ScaledLoss:
    """A loss that is a callable object."""

    def __init__(self):
        self.factor = 1.0

    def __call__(self, logits, targets):
        return self.factor * F.cross_entropy(logits, targets)


SCALED_LOSS = ScaledLoss()


def closure_loss():
    """A loss with a closure over a number, and a function that changes the number."""
    factor = 1.0

    def loss(logits, targets):
        return factor * F.cross_entropy(logits, targets)

    def change(ctx, value):
        nonlocal factor
        factor = value

    return loss, change


CLOSURE_LOSS, change_closure = closure_loss()

# Numbers that the step's Python code reads, and how a callback sets them.
PLACES = {
    "attribute": lambda ctx, value: setattr(ctx.model, "temperature", value),
    "config": lambda ctx, value: ctx.model.config.inner.update(temperature=value),
    "slot": lambda ctx, value: setattr(ctx.model.slots, "temperature", value),
    "global object": lambda ctx, value: setattr(TEMPERATURE, "value", value),
    "global class": lambda ctx, value: setattr(Temperature, "value", value),
    "global of a function": lambda ctx, value: globals().update(SCALE=value),
    "loss attribute": lambda ctx, value: setattr(SCALED_LOSS, "factor", value),
    "closure of the loss": change_closure,
}
LOSSES = {"loss attribute": SCALED_LOSS, "closure of the loss": CLOSURE_LOSS}


def changing(place):
    """A feature in which a callback changes a number at every other epoch."""
    change = CallAt(lambda ctx: PLACES[place](ctx, 1.0 + ctx.epoch % 2), "on_epoch_begin")
    loss = LOSSES.get(place, nn.CrossEntropyLoss())
    return Feature(WithTemperature, settings=lambda: {"loss": loss}, callbacks=lambda: [change], programs=4)


def _set_temperature_per_batch(ctx):
    ctx.model.temperature = 1.0 + ctx.batch_number % 2


def _lower_dropout(ctx):
    ctx.model[1].p = 0.5 / ctx.epoch


def _replace_module(ctx):
    ctx.model[1] = nn.ReLU() if ctx.epoch % 2 else nn.Tanh()


class ReusedMapping(callbacks.Callback):
    """Changes a mapping of learning rates in place."""

    def __init__(self):
        self.rates = {"*": 0.0}

    def on_train_batch_begin(self, ctx):
        self.rates["*"] = 2.0 ** -(4 + ctx.batch_number % 3)
        ctx.lr = self.rates


FEATURES = {
    "plain": Feature(),
    "schedule": Feature(settings=lambda: {"lr": schedule.cosine(0.02, steps=56)}),
    "batch norm": Feature(batch_norm_net),
    "clip norm": Feature(settings=lambda: {"clip_norm": 0.05}),
    "clip value": Feature(settings=lambda: {"clip_value": 0.01}),
    "accumulate": Feature(settings=lambda: {"accumulate": 3}, programs=4),
    "micro-batches": Feature(
        fit=lambda: {"micro_batch": 3}, settings=lambda: {"metrics": [metrics.Accuracy()]}, programs=4
    ),
    "recompute": Feature(lambda: batch_norm_net(), settings=lambda: {"recompute": (nn.Linear, nn.BatchNorm1d)}),
    "ema": Feature(settings=lambda: {"ema": 0.75}, fit=lambda: {"valid": samples()}),
    "groups": Feature(
        settings=lambda: {
            "optimizer": {"0": optim.SGD(momentum=0.5), "*": optim.AdamW()},
            "lr": {"0.weight": schedule.linear(0.1, 0.01, steps=56), "*": 0.01},
        }
    ),
    "objectives": Feature(
        GAN,
        lambda: (samples()[0][:, :2].contiguous(),),
        lambda: {"loss": None, "lr": {"critic": 2**-6, "generator": 2**-7}},
    ),
    "objectives accumulated": Feature(
        GAN, lambda: (samples()[0][:, :2].contiguous(),), lambda: {"loss": None, "accumulate": 2}, programs=3
    ),
    "metrics": Feature(
        settings=lambda: {
            "metrics": [
                metrics.Accuracy(),
                metrics.Recall(average="macro"),
                metrics.AUROC(),
                metrics.AUROC(bins=20, name="binned"),
            ]
        },
        fit=lambda: {"valid": samples()},
    ),
    "gradient norm": Feature(settings=lambda: {"metrics": [metrics.GradientNorm()], "clip_norm": 0.1}),
    "validate every": Feature(fit=lambda: {"valid": samples(), "validate_every": 5}),
    "train_step": Feature(CustomStep, settings=lambda: {"loss": None, "metrics": [metrics.Accuracy()]}),
    "masked": Feature(Tagger, masked_tokens, lambda: {"metrics": [metrics.GradientNorm()], "loss": FlatCrossEntropy()}),
    "masked accumulated": Feature(
        Tagger, masked_tokens, lambda: {"accumulate": 2, "loss": FlatCrossEntropy()}, programs=3
    ),
    "own loss": Feature(OwnLoss, masked_tokens, lambda: {"loss": None}, fit=lambda: {"valid": masked_tokens()}),
    "own loss accumulated": Feature(OwnLoss, masked_tokens, lambda: {"loss": None, "accumulate": 2}, programs=3),
    "step function": Feature(settings=lambda: {"loss": None, "step": step_of_net}),
    "batches without weight": Feature(Weightless, masked_tokens, lambda: {"loss": None}),
    "sample weights": Feature(data=weighted_samples),
    "sum reduction": Feature(
        settings=lambda: {"loss": nn.CrossEntropyLoss(reduction="sum"), "accumulate": 2}, programs=3
    ),
    "recurrent": Feature(Recurrent),
    "carried state": Feature(Carried, lambda: data.Loader(samples(48), batch_size=SIZE), programs=1),
    "tied weights": Feature(Tied),
    "frozen": Feature(frozen_net),
    "unfrozen": Feature(frozen_net, callbacks=lambda: [Unfreeze()], programs=4),
    "dropout": Feature(lambda: net(nn.Dropout(0.3))),
    "callback after every batch": Feature(callbacks=lambda: [AfterEveryBatch()]),
    "learning rate scaled each epoch": Feature(callbacks=lambda: [HalveLearningRate()]),
    "learning rate set each batch": Feature(callbacks=lambda: [SetLearningRate()]),
    "batch replaced": Feature(callbacks=lambda: [NegateBatches()]),
    "mixup": Feature(callbacks=lambda: [callbacks.MixUp(0.4)]),
    **{f"{place} changed each epoch": changing(place) for place in PLACES},
    "attribute changed each batch": Feature(
        WithTemperature, callbacks=lambda: [CallAt(_set_temperature_per_batch, "on_train_batch_begin")], programs=3
    ),
    "module replaced each epoch": Feature(callbacks=lambda: [CallAt(_replace_module, "on_epoch_begin")], programs=12),
    "learning rates changed in place": Feature(callbacks=lambda: [ReusedMapping()], programs=2),
    "dropout changed each epoch": Feature(
        lambda: net(nn.Dropout(0.3)), callbacks=lambda: [CallAt(_lower_dropout, "on_epoch_begin")], programs=12
    ),
}

# The others are compared in the long tests.
REPRESENTATIVE = {
    *(
        "batch norm",
        "accumulate",
        "micro-batches",
        "ema",
        "groups",
        "objectives",
        "metrics",
        "masked accumulated",
        "own loss accumulated",
        "unfrozen",
        "dropout",
    ),
    "learning rate set each batch",
    *(f"{place} changed each epoch" for place in PLACES if place not in ("config", "slot")),
}


def mark_soak(names, fast):
    """Parameters of which those that are not in `fast` run with the long tests."""
    return [name if name in fast else pytest.param(name, marks=pytest.mark.soak) for name in names]
