"""Fits that a program has to do exactly as the stations do: one for each feature, small enough to be traced often."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

import stoker
from stoker import Objective, callbacks, data, metrics, optim, schedule
from stoker.engine.executors import _compiled, _replay

EPOCHS, SIZE, SAMPLES = 8, 8, 52  # 7 batches an epoch, the last one short: 56 updates


class Eagerly(callbacks.Callback):
    """Listens between forward and step, and does nothing: no program is made of such a fit."""

    def on_train_batch_after_loss(self, ctx):
        """Nothing."""


class Every(callbacks.Callback):
    """Listens after every batch, so that everything is looked at again before the next one."""

    def on_train_batch_end(self, ctx):
        """Nothing."""


def samples(count=SAMPLES):
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(count, 6, generator=generator, dtype=torch.float64)
    return x.to(torch.get_default_dtype()), (x[:, :3] + 0.2 * x[:, 3:]).argmax(1)


def net(*middle):
    return nn.Sequential(nn.Linear(6, 5), *middle, nn.Tanh(), nn.Linear(5, 3))


def normed():
    """With batch norm, and no bias before it, whose gradient would be noise that Adam makes large."""
    body = nn.Linear(6, 5, bias=False)
    return nn.Sequential(body, nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3))


class Swaps(metrics.Metric):
    """Its state keeps a number of the batch before, under either name."""

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
    """What to fit, and what is special about it; everything is made anew by each fit."""

    model: object = net
    data: object = samples
    settings: object = dict  # () → more arguments of the Learner
    fit: object = dict  # () → more arguments of fit
    listeners: object = list  # () → callbacks
    programs: int = 2  # how many are made: one for each kind of batch
    graphs: int | None = None  # on a GPU, where that is another number


def run(feature, *, device="cpu", compile=True, eager=False, **more):
    """A whole fit of a feature; `eager` makes the stations run one after the other, everything else being equal."""
    torch.manual_seed(1)
    model, samples = feature.model(), feature.data()
    settings = {
        "loss": nn.CrossEntropyLoss(),
        "optimizer": optim.AdamW(),
        "lr": 0.015625,
        "seed": 3,
        **feature.settings(),
    }
    given = {"epochs": EPOCHS, "batch_size": SIZE, "keep": "last", "show": False, **feature.fit(), **more}
    listeners = [*feature.listeners(), *given.pop("callbacks", ()), *([Eagerly()] if eager else [])]
    if isinstance(samples, data.Loader) or not isinstance(samples, tuple | list):
        del given["batch_size"]
    learner = stoker.Learner(model, device=device, compile=compile, **settings)
    return learner.fit(samples, callbacks=listeners, **given)


def outcome(fitted):
    """Everything that a fit leaves, by name: weights, moments, average, numbers, generators."""
    fit = fitted._prepared.fit
    found = {f"model.{name}": value for name, value in fitted.model.state_dict().items()}
    last = fitted._prepared.ending.last_weights
    if last is not None:
        found |= {f"last.{name}": value for name, value in last.items()}
    for place, rule in enumerate(fit.state.optimizer.state_tensors()):
        found |= {f"optimizer.{place}.{name}.{key}": each for name, own in rule.items() for key, each in own.items()}
    for name, column in fitted.history.to_dict().items():
        if "second" not in name and "sample" not in name:
            values = [float("nan") if each is None else each for each in column]
            found[f"history.{name}"] = torch.tensor(values, dtype=torch.float64)
    found["updates"] = torch.tensor(fitted.updates)
    return {name: value.detach().cpu() for name, value in found.items() if value is not None}


def generators(fitted):
    """Where the random numbers stood at the end, of every kind."""
    return plain(fitted._prepared.ending.random)


def plain(value):
    """Tensors and arrays as lists, wherever they are."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, tuple | list) else value


def assert_same(left, right):
    """Bit for bit, NaN being itself."""
    assert left.keys() == right.keys()
    odd = [name for name in left if not torch.equal(bits(left[name]), bits(right[name]))]
    assert not odd, [(name, (left[name].double() - right[name].double()).abs().max().item()) for name in odd]


def bits(tensor):
    return tensor.contiguous().flatten().view(torch.uint8) if tensor.numel() else tensor


def assert_close(left, right, *, rtol, atol=0.0):
    assert left.keys() == right.keys()
    for name, value in left.items():
        torch.testing.assert_close(
            value, right[name], rtol=rtol, atol=atol, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}"
        )


def counted(monkeypatch):
    """A list that grows with every program that is made: compiled ones, or graphs."""
    made, make = [], _replay.Replay._make

    def count(self, *args):
        program = make(self, *args)
        if program is not None:
            made.append(program)
        return program

    monkeypatch.setattr(_replay.Replay, "_make", count)
    return made


def interpreted(monkeypatch):
    """Traces run node by node and are not compiled: the same program, without the seconds that a compiler takes."""
    monkeypatch.setattr(_compiled, "compile_graph", lambda graph, inputs, **_: lambda tensors: graph(*tensors))
    monkeypatch.setattr(_compiled, "_REPLACEMENTS", {})  # dropout draws what it draws eagerly


def said(fitted, kind="warning"):
    return [event.text for event in fitted.record.events_of(kind)]


# --- models


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.LSTM(2, 3, batch_first=True), nn.Linear(3, 3)

    def forward(self, x):
        return self.head(self.body(x.reshape(-1, 3, 2))[0][:, -1])


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.two.weight = self.one.weight

    def forward(self, x):
        return self.head(self.two(self.one(x).tanh()).tanh())


class GAN(nn.Module):
    """The one of the tour, smaller."""

    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(2, 4), nn.LeakyReLU(0.2), nn.Linear(4, 2))
        self.critic = nn.Sequential(nn.Linear(2, 4), nn.LeakyReLU(0.2), nn.Linear(4, 1))

    def train_step(self, batch):
        (real,) = batch
        fake = self.generator(torch.randn(len(real), 2, device=real.device, dtype=real.dtype))
        yield Objective("critic", F.softplus(-self.critic(real)).mean() + F.softplus(self.critic(fake.detach())).mean())
        yield Objective("generator", F.softplus(-self.critic(fake)).mean())


class Stepping(nn.Module):
    """With a step of its own, which gives a whole output."""

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


class Flat(nn.CrossEntropyLoss):
    """Over places as over samples: torch's kernel for several dimensions does not add up the same twice on a GPU."""

    def forward(self, input, target):
        return super().forward(input.transpose(1, 2).flatten(0, 1), target.flatten())


class Weightless(Tagger):
    """Its loss is finite where nothing counts."""

    def train_step(self, batch):
        x, y = batch
        logits, mask = self(x), y >= 0
        losses = F.cross_entropy(logits, y.clamp(min=0), reduction="none") * mask
        loss = losses.sum() / mask.sum().clamp(min=1)
        return stoker.SequenceOutput(loss, logits.transpose(1, 2), y.clamp(min=0), mask=mask)


def masked():
    """Three places a sample, some masked; the second batch and the sixth are nothing but masked ones."""
    x, _ = samples()
    generator = torch.Generator().manual_seed(6)
    y = torch.randint(0, 3, (SAMPLES, 3), generator=generator)
    y[torch.rand(SAMPLES, 3, generator=generator) < 0.4] = -100
    y[8:16] = y[40:48] = -100
    return data.Loader((x, y), batch_size=SIZE)


def weighted():
    x, y = samples()
    return {"input": x, "target": y, "weight": torch.linspace(0.0, 2.0, SAMPLES)}


def frozen():
    model = normed()
    model[0].requires_grad_(False)
    return model


class Thaw(callbacks.Callback):
    """Trains the first layer from the fourth epoch on."""

    def on_epoch_begin(self, ctx):
        if ctx.epoch == 4:
            ctx.model[0].requires_grad_(True)


class Scale(callbacks.Callback):
    """A plateau, decided in advance."""

    def on_epoch_end(self, ctx):
        ctx.lr_scale *= 0.5


class Rate(callbacks.Callback):
    """Sets the learning rate of every batch by hand."""

    def on_train_batch_begin(self, ctx):
        ctx.lr = 2.0 ** -(4 + ctx.batch_number % 3)


class Negate(callbacks.Callback):
    """Replaces the batch."""

    def on_train_batch_begin(self, ctx):
        x, y = ctx.batch
        ctx.batch = (-x, y) if ctx.batch_number % 2 else (x, y)


class Attribute(callbacks.Callback):
    """Changes something that the model's Python reads, at a milestone."""

    def __init__(self, change, milestone):
        self.change = change
        setattr(self, milestone, lambda ctx: self.change(ctx))


class Warm(nn.Module):
    """Reads a plain number in every forward."""

    def __init__(self):
        super().__init__()
        self.body, self.temperature = net(), 1.0

    def forward(self, x):
        return self.body(x) / self.temperature


def _cool(ctx):
    ctx.model.temperature = 1.0 + ctx.epoch % 3


def _cool_often(ctx):
    ctx.model.temperature = 1.0 + ctx.batch_number % 2


class Configured(Warm):
    """Reads it from an object that is no module."""

    def __init__(self):
        super().__init__()
        self.config = SimpleNamespace(inner={"temperature": 1.0})

    def forward(self, x):
        return self.body(x) / self.config.inner["temperature"]


class Focal:
    """A loss that is a plain object."""

    def __init__(self):
        self.gamma = 1.0

    def __call__(self, logits, targets):
        return self.gamma * F.cross_entropy(logits, targets)


def _cool_inside(ctx):
    ctx.model.config.inner["temperature"] = 1.0 + ctx.epoch % 3


FOCAL = Focal()


def _focus(ctx):
    FOCAL.gamma = 1.0 + ctx.epoch % 2


def _less_dropout(ctx):
    ctx.model[1].p = 0.5 / ctx.epoch


class Closed:
    """A loss that is a function and has closed over a number which a callback changes."""

    def __init__(self):
        factor = 1.0

        def loss(logits, targets):
            return factor * F.cross_entropy(logits, targets)

        def change(ctx):
            nonlocal factor
            factor = 1.0 + ctx.epoch % 2

        self.loss, self.change = loss, change


CLOSED = Closed()


class Slotted:
    __slots__ = ("temperature",)


class Held(Warm):
    """Reads the number from an object without a dict."""

    def __init__(self):
        super().__init__()
        self.config = Slotted()
        self.config.temperature = 1.0

    def forward(self, x):
        return self.body(x) / self.config.temperature


def _cool_slot(ctx):
    ctx.model.config.temperature = 1.0 + ctx.epoch % 3


def _replace_module(ctx):
    ctx.model[1] = nn.ReLU() if ctx.epoch % 2 else nn.Tanh()


class OneMapping(callbacks.Callback):
    """Changes one and the same mapping of rates in place."""

    def __init__(self):
        self.rates = {"*": 0.0}

    def on_train_batch_begin(self, ctx):
        self.rates["*"] = 2.0 ** -(4 + ctx.batch_number % 3)
        ctx.lr = self.rates


FEATURES = {
    "plain": Feature(),
    "schedule": Feature(settings=lambda: {"lr": schedule.cosine(0.02, steps=56)}),
    "batch norm": Feature(normed),
    "clip norm": Feature(settings=lambda: {"clip_norm": 0.05}),
    "clip value": Feature(settings=lambda: {"clip_value": 0.01}),
    "accumulate": Feature(settings=lambda: {"accumulate": 3}, programs=4),
    "average": Feature(settings=lambda: {"ema": 0.75}, fit=lambda: {"valid": samples()}),
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
    "own step": Feature(Stepping, settings=lambda: {"loss": None, "metrics": [metrics.Accuracy()]}),
    "masked": Feature(Tagger, masked, lambda: {"metrics": [metrics.GradientNorm()], "loss": Flat()}),
    "masked accumulated": Feature(Tagger, masked, lambda: {"accumulate": 2, "loss": Flat()}, programs=3),
    "weightless": Feature(Weightless, masked, lambda: {"loss": None}),
    "weights of samples": Feature(data=weighted),
    "sum": Feature(settings=lambda: {"loss": nn.CrossEntropyLoss(reduction="sum"), "accumulate": 2}, programs=3),
    "recurrent": Feature(Recurrent),
    "tied": Feature(Tied),
    "frozen": Feature(frozen),
    "unfrozen": Feature(frozen, listeners=lambda: [Thaw()], programs=4),
    "dropout": Feature(lambda: net(nn.Dropout(0.3))),
    "listener": Feature(listeners=lambda: [Every()]),
    "plateau": Feature(listeners=lambda: [Scale()], graphs=12),
    "rate": Feature(listeners=lambda: [Rate()]),
    "batch": Feature(listeners=lambda: [Negate()]),
    "mixup": Feature(listeners=lambda: [callbacks.MixUp(0.4)]),
    "attribute of an epoch": Feature(Warm, listeners=lambda: [Attribute(_cool, "on_epoch_begin")], programs=6),
    "attribute of a config": Feature(
        Configured, listeners=lambda: [Attribute(_cool_inside, "on_epoch_begin")], programs=6
    ),
    "attribute of the loss": Feature(
        settings=lambda: {"loss": FOCAL}, listeners=lambda: [Attribute(_focus, "on_epoch_begin")], programs=4
    ),
    "attribute of a batch": Feature(
        Warm, listeners=lambda: [Attribute(_cool_often, "on_train_batch_begin")], programs=3
    ),
    "closed over by the loss": Feature(
        settings=lambda: {"loss": CLOSED.loss},
        listeners=lambda: [Attribute(CLOSED.change, "on_epoch_begin")],
        programs=4,
    ),
    "attribute in a slot": Feature(Held, listeners=lambda: [Attribute(_cool_slot, "on_epoch_begin")], programs=6),
    "replaced module": Feature(listeners=lambda: [Attribute(_replace_module, "on_epoch_begin")], programs=12),
    "rates changed in place": Feature(listeners=lambda: [OneMapping()], programs=2),
    "dropout of an epoch": Feature(
        lambda: net(nn.Dropout(0.3)), listeners=lambda: [Attribute(_less_dropout, "on_epoch_begin")], programs=12
    ),
}
