"""Models, steps, losses, metrics and data that a random program chooses from, by name.

The first entry of a table is the default, to which a failing program is simplified. A new entry needs nothing else.
"""

import math

import numpy
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import stoker
from stoker import Objective, data, metrics

WIDTH, CLASSES, LONGEST = 6, 3, 12

# --- models: from [batch, WIDTH] to features [batch, 5]


class LinearOf(nn.Module):
    """A module between a reshaped input and a linear layer."""

    def __init__(self, shape, module, width, take=lambda out: out):
        super().__init__()
        self.shape, self.module, self.out, self.take = shape, module, nn.Linear(width, 5), take

    def forward(self, x):
        return self.out(self.take(self.module(x.reshape(len(x), *self.shape))).flatten(1))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 5)
        self.two.weight = self.one.weight

    def forward(self, x):
        return self.out(self.two(self.one(x).tanh()).tanh())


class Embedded(nn.Module):
    def __init__(self, **settings):
        super().__init__()
        self.table, self.out = nn.Embedding(10, 4, **settings), nn.Linear(4 * WIDTH, 5)

    def forward(self, x):
        return self.out(self.table((x * 3).nan_to_num().clamp(-5, 4).long() + 5).flatten(1))


class RunningMean(nn.Module):
    """Keeps a running mean in a buffer, which it writes in place, and counts its batches in another one."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(WIDTH, 5)
        self.register_buffer("mean", torch.zeros(5))
        self.register_buffer("batches", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        features = self.body(x)
        if self.training:
            with torch.no_grad():
                self.mean.lerp_(features.mean(0).to(self.mean), 0.25)
                self.batches.add_(1)
        return features - self.mean / (1 + self.batches)


class NewBuffer(nn.Module):
    """Replaces a buffer by a new tensor in every step."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(WIDTH, 5)
        self.register_buffer("mean", torch.zeros(5))

    def forward(self, x):
        features = self.body(x)
        if self.training:
            self.mean = 0.5 * self.mean + 0.5 * features.detach().mean(0).to(self.mean)
        return features - self.mean


class Noise(nn.Module):
    """Draws random numbers on the device in several ways."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(WIDTH, 5)

    def forward(self, x):
        features = self.body(x)
        if not self.training:
            return features
        drawn = torch.randn_like(features) + torch.rand(5, device=x.device).to(features.dtype)
        return F.dropout(features + 0.1 * drawn, 0.2) * torch.bernoulli(torch.full_like(features, 0.8))


class HostRandom(nn.Module):
    """Draws random numbers on the host."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(WIDTH, 5)

    def forward(self, x):
        return self.body(x) * (1.0 + torch.rand(5)).to(x) if self.training else self.body(x)


class ReadsValue(nn.Module):
    """Reads a value on the host in every step, so that it can't be captured."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, 5), nn.Dropout(0.2))

    def forward(self, x):
        features = self.body(x)
        return features * (1.0 + features.detach().abs().mean().item())


def _attention():
    layer = nn.TransformerEncoderLayer(2, 1, dim_feedforward=4, dropout=0.1, batch_first=True)
    return LinearOf((3, 2), layer, WIDTH)


def _last(out):
    return out[0][:, -1]


MODELS = {
    "linear": lambda: nn.Linear(WIDTH, 5),
    "deep": lambda: nn.Sequential(nn.Linear(WIDTH, 5), nn.Tanh(), nn.Linear(5, 5), nn.GELU(), nn.Linear(5, 5)),
    "dropout": lambda: nn.Sequential(nn.Linear(WIDTH, 5), nn.Dropout(0.3), nn.Tanh(), nn.Dropout(0.1)),
    "batch norm": lambda: nn.Sequential(nn.Linear(WIDTH, 5, bias=False), nn.BatchNorm1d(5), nn.Tanh()),
    "batch norm with cumulative means": lambda: nn.Sequential(nn.Linear(WIDTH, 5), nn.BatchNorm1d(5, momentum=None)),
    "layer norm": lambda: nn.Sequential(nn.Linear(WIDTH, 5), nn.LayerNorm(5), nn.SiLU()),
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, 5)),
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, 5)),
    "tied": Tied,
    "embedding": Embedded,
    "embedding with a largest norm": lambda: Embedded(max_norm=1.0),
    "convolution": lambda: LinearOf((1, 2, 3), nn.Sequential(nn.Conv2d(1, 2, 2, padding=1), nn.BatchNorm2d(2)), 24),
    "LSTM": lambda: LinearOf((3, 2), nn.LSTM(2, 3, batch_first=True), 3, _last),
    "GRU": lambda: LinearOf((3, 2), nn.GRU(2, 3, 2, batch_first=True, dropout=0.2), 3, _last),
    "RNN": lambda: LinearOf((3, 2), nn.RNN(2, 3, batch_first=True, bidirectional=True), 6, _last),
    "attention": _attention,
    "running mean": RunningMean,
    "new buffer": NewBuffer,
    "noise": Noise,
    "random numbers of the host": HostRandom,
    "reads a value": ReadsValue,
}


WITHOUT_RANDOM_NUMBERS = {"linear", "deep", "batch norm", "layer norm", "weight norm", "tied", "embedding", "RNN"}
WITHOUT_RANDOM_NUMBERS |= {"convolution", "running mean", "batch norm with cumulative means"}


class Net(nn.Module):
    """Samples of any length, one of the models above, and a linear head."""

    def __init__(self, make_body):
        super().__init__()
        self.body = nn.Sequential(Project(), make_body(), nn.Tanh())
        self.head = nn.Linear(5, CLASSES)
        self.temperature = 1.0  # callbacks change it

    def forward(self, x):
        return self.head(self.body(x)) / self.temperature


class Project(nn.Module):
    """From samples of any length to WIDTH numbers."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(LONGEST, WIDTH) + 0.1 * torch.randn(LONGEST, WIDTH))

    def forward(self, x):
        return x @ self.weight[: x.shape[1]]


# --- how the loss is computed


def columns(batch):
    return tuple(batch.values()) if isinstance(batch, dict) else tuple(batch)


class WithTrainStep(Net):
    def train_step(self, batch):
        x, y = columns(batch)
        logits = self(x)
        return stoker.ClassificationOutput(self.loss(logits, y), logits, y)


class WithOwnLoss(Net):
    """Computes its loss in `forward`, as models of Transformers do."""

    def forward(self, x, y=None):
        logits = super().forward(x)
        return {"logits": logits} if y is None else {"loss": self.loss(logits, y), "logits": logits}


class WithObjectives(Net):
    """Head and body have a loss of their own each."""

    def train_step(self, batch):
        x, y = columns(batch)
        features = self.body(x)
        yield Objective("head", self.loss(self.head(features.detach()), y))
        logits = self.head(features)
        yield Objective("body", self.loss(logits, y) + 0.01 * features.square().mean())

    def valid_step(self, batch):
        x, y = columns(batch)
        logits = self(x)
        return stoker.ClassificationOutput(self.loss(logits, y), logits, y)


def _step_function(model, batch):
    x, y = columns(batch)
    logits = model(x)
    return {"loss": model.loss(logits, y), "size": logits.detach().square().mean(), "logits": logits}


STEPS = {  # the class of the model, and the arguments of Learner
    "loss": (Net, {}),
    "train_step": (WithTrainStep, {}),
    "step function": (Net, {"step": _step_function}),
    "forward": (WithOwnLoss, {}),
    "objectives": (WithObjectives, {}),
}


class Scaled(nn.Module):
    """A loss with a parameter-free state that callbacks change."""

    def __init__(self):
        super().__init__()
        self.factor = 1.0

    def forward(self, logits, y):
        return self.factor * F.cross_entropy(logits, y)


class RunningScale(nn.Module):
    """A loss with a buffer, which it writes in place."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(()))

    def forward(self, logits, y):
        loss = F.cross_entropy(logits, y)
        if self.training:
            self.scale.lerp_(loss.detach().nan_to_num().to(self.scale), 0.1)
        return loss / (0.5 + self.scale)


def _wide(logits):
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def _squares(logits, y):
    return F.mse_loss(_wide(logits).softmax(-1), F.one_hot(y.clamp(min=0), CLASSES).to(_wide(logits).dtype))


def _focal(logits, y):
    chosen = F.log_softmax(_wide(logits), -1).gather(1, y.clamp(min=0)[:, None])[:, 0]
    return -((1 - chosen.exp()) ** 2 * chosen).mean()


LOSSES = {
    "cross-entropy": nn.CrossEntropyLoss,
    "function": lambda: F.cross_entropy,
    "label smoothing": lambda: nn.CrossEntropyLoss(label_smoothing=0.1),
    "class weights": lambda: nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5])),
    "sum": lambda: nn.CrossEntropyLoss(reduction="sum"),
    "squares": lambda: _squares,
    "focal": lambda: _focal,
    "margin": nn.MultiMarginLoss,
    "scaled": Scaled,
    "with a buffer": RunningScale,
}

MIXABLE = {"cross-entropy", "function", "label smoothing"}  # losses that MixUp can weigh

# --- metrics


class Largest(metrics.Metric):
    """A metric that is not static: it keeps a tensor of every batch."""

    static = False

    def init(self, device):
        return {"largest": torch.full((), -math.inf, device=device), "seen": torch.zeros(0, device=device)}

    def update(self, state, output):
        loss = output.loss.detach().reshape(1).float()
        return {"largest": torch.maximum(state["largest"], loss[0]), "seen": torch.cat([state["seen"], loss])}

    def merge(self, a, b):
        return {"largest": torch.maximum(a["largest"], b["largest"]), "seen": torch.cat([a["seen"], b["seen"]])}

    def compute(self, state):
        return {"largest": state["largest"].item(), "losses": float(len(state["seen"]))}


METRICS = {
    "Accuracy": metrics.Accuracy,
    "Recall": lambda: metrics.Recall(average="macro"),
    "AUROC": metrics.AUROC,
    "AUROC in bins": lambda: metrics.AUROC(bins=20, name="binned"),
    "GradientNorm": metrics.GradientNorm,
    "LearningRate": metrics.LearningRate,
    "ConfusionMatrix": metrics.ConfusionMatrix,
    "Largest": Largest,
}

# --- data


def samples(count, seed=5, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, WIDTH, generator=generator, dtype=torch.float64).to(dtype)
    return x, (x[:, :CLASSES] + 0.2 * x[:, CLASSES:]).argmax(1)


def with_bad_samples(x, y, bad):
    """Puts values into samples that are not finite, or targets that do not count."""
    what, place = bad
    x, y, row = x.clone(), y.clone(), place % len(x)
    if what == "ignored":
        y[row : row + len(y) // 3] = -100
    elif what != "none":
        x[row, place % WIDTH] = float(what)
    return x, y


BAD = ["none", "nan", "inf", "ignored"]


def _rows(x, y):
    return [(x[each], y[each]) for each in range(len(x))]


def _ragged(x, y, *, shorten):
    """Samples of several lengths: some are longer than WIDTH."""
    lengths = [2 + (7 * each + len(x)) % (LONGEST - 1) for each in range(len(x))]
    rows = [(torch.cat([x[each], x[each] * 0.5])[:length], y[each]) for each, length in enumerate(lengths)]
    return [(row[:WIDTH], target) for row, target in rows] if shorten else rows


class Stream(IterableDataset):
    def __init__(self, x, y):
        self.rows = _rows(x, y)

    def __iter__(self):
        return iter(self.rows)


class Samples(torch.utils.data.Dataset):
    """A data set that draws noise for every sample it reads."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, place):
        return self.x[place] + 0.01 * torch.randn(WIDTH), self.y[place]


def add_noise(x, y):
    return x + 0.1 * torch.randn(x.shape, dtype=x.dtype) + 0.01 * float(numpy.random.rand()), y


def negate(x, y):
    return -x, y


@data.batchable
def flip_batch(x, y):
    return x.flip(1), y


def _stack(rows):
    return torch.stack([x for x, _ in rows]), torch.stack([y for _, y in rows])


# From columns and a batch size to the `train` of `fit`; those that are not a Loader get `batch_size` of `fit`.
DATA = {
    "tensors": lambda x, y, size: (x, y),
    "arrays": lambda x, y, size: (x.numpy(), y.numpy()),
    "mapping": lambda x, y, size: {"x": x, "y": y},
    "TensorDataset": lambda x, y, size: TensorDataset(x, y),
    "data set that draws": lambda x, y, size: Samples(x, y),
    "list": lambda x, y, size: _rows(x, y),
    "stream": lambda x, y, size: Stream(x, y),
    "ordered": lambda x, y, size: data.Loader((x, y), batch_size=size),
    "shuffled": lambda x, y, size: data.Loader((x, y), batch_size=size, shuffle=7),
    "full batches": lambda x, y, size: data.Loader((x, y), batch_size=size, shuffle=7, drop_last=True),
    "rows": lambda x, y, size: data.Loader(_rows(x, y), batch_size=size, shuffle=3, collate_fn=_stack),
    "transform": lambda x, y, size: data.Loader((x, y), batch_size=size, shuffle=3, transform=add_noise),
    "batch transform": lambda x, y, size: data.Loader((x, y), batch_size=size, shuffle=3, transform=flip_batch),
    "weighted": lambda x, y, size: data.Loader(
        (x, y), batch_size=size, shuffle=1, sampling_weights=[1 + each % 3 for each in range(len(x))]
    ),
    "workers": lambda x, y, size: data.Loader(_rows(x, y), batch_size=size, shuffle=3, workers=2),
    "transform in a worker": lambda x, y, size: data.Loader(
        (x, y), batch_size=size, shuffle=3, transform=add_noise, workers=1
    ),
    "DataLoader": lambda x, y, size: DataLoader(TensorDataset(x, y), batch_size=size),
    "shuffled DataLoader": lambda x, y, size: DataLoader(Samples(x, y), batch_size=size, shuffle=True),
    "DataLoader with a generator": lambda x, y, size: DataLoader(
        Samples(x, y), batch_size=size, shuffle=True, generator=torch.Generator().manual_seed(4)
    ),
    "DataLoader with workers": lambda x, y, size: DataLoader(
        Samples(x, y), batch_size=size, shuffle=True, num_workers=1, drop_last=True
    ),
    "padded": lambda x, y, size: data.Loader(
        _ragged(x, y, shorten=False), batch_size=size, shuffle=2, pad_to=[4, 8, 12]
    ),
    "buckets": lambda x, y, size: data.Loader(
        _ragged(x, y, shorten=False), batch_size=size, shuffle=2, bucket_by=lambda x, y: len(x), pad_to=1
    ),
    "buckets of powers of two": lambda x, y, size: data.Loader(
        _ragged(x, y, shorten=True), batch_size=size, shuffle=2, bucket_by=lambda x, y: len(x), pad_to="power of two"
    ),
    "mixed": lambda x, y, size: data.Loader(
        data.mix(a=(x[::2], y[::2]), b=(x[1::2], y[1::2]), weights={"a": 2, "b": 1}, by="sample"),
        batch_size=size,
        shuffle=2,
    ),
    "side by side": lambda x, y, size: data.Loader(
        data.zip(x=x, y=data.cycle(y[: len(y) // 2 + 1])), batch_size=size, shuffle=2
    ),
    "views": lambda x, y, size: data.Loader(
        data.concat(data.shuffled(data.take((x, y), slice(3, None)), 5), data.take((x, y), 3)),
        batch_size=size,
        shuffle=2,
    ),
    "mapped": lambda x, y, size: data.Loader(data.mapped((x, y), negate), batch_size=size, shuffle=2, workers=1),
    "stream with workers": lambda x, y, size: data.Loader(Stream(x, y), batch_size=size, workers=2),
    "StatefulDataLoader": lambda x, y, size: StatefulDataLoader(Samples(x, y), batch_size=size, shuffle=True),
    "more in each epoch": lambda x, y, size: data.Loader(
        data.by_epoch(lambda epoch: (x[: 8 + 9 * epoch], y[: 8 + 9 * epoch])), batch_size=size, shuffle=2
    ),
}

READ_BY_POSITION = {"ordered", "shuffled", "full batches", "rows", "weighted", "padded", "buckets"}
SPLITTABLE = {"tensors", "arrays", "mapping", "TensorDataset", "data set that draws", "list"}
# The number of updates is not known before the fit.
UNKNOWN_LENGTH = {"stream", "stream with workers", "more in each epoch"}

VALID = {  # from the program's `make_samples` to the `valid` of `fit`
    "none": lambda make: None,
    "tensors": lambda make: make(19, 8),
    "fraction": lambda make: 0.2,
    "two sets": lambda make: {"a": make(12, 8), "b": make(9, 9)},
    "loader": lambda make: data.Loader(make(15, 8), batch_size=4),
}
