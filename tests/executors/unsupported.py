"""Training steps that can't be compiled or captured, with the reason for each, and every optimizer algorithm."""

import random
from dataclasses import dataclass

import numpy
import torch
import torch.nn.functional as F
from torch import nn

from stoker import callbacks, data, optim
from tests.executors.fits import SIZE, CallAt, Feature, net, samples


class Classifier(nn.Module):
    """A classifier that passes its logits through `transform`, which subclasses override."""

    def __init__(self):
        super().__init__()
        self.body = net()

    def transform(self, logits):
        return logits

    def forward(self, x):
        return self.transform(self.body(x))


class BranchesOnLoss(Classifier):
    def train_step(self, batch):
        loss = F.cross_entropy(self.body(batch[0]), batch[1])
        return loss if loss > 1 else 2 * loss


class ReadsLoss(Classifier):
    def train_step(self, batch):
        loss = F.cross_entropy(self.body(batch[0]), batch[1])
        return loss * (1.0 + loss.item())


class ReplacesBuffer(Classifier):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))

    def transform(self, logits):
        self.mean = 0.5 * self.mean + 0.5 * logits.detach().mean(0)
        return logits - self.mean


class CountsCalls(Classifier):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def transform(self, logits):
        self.calls += 1
        return logits / (1 + self.calls % 3)


class AppendsToList(Classifier):
    """Counts its calls in a list, which it changes in place."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def transform(self, logits):
        self.calls.append(1)
        return logits / (1 + len(self.calls) % 3)


class KeepsTensor(Classifier):
    """Keeps a tensor that is not a buffer."""

    def __init__(self):
        super().__init__()
        self.before = None

    def transform(self, logits):
        mean = logits.detach().mean(0)
        shift, self.before = 0.0 if self.before is None else self.before, mean
        return logits - shift


class WritesTensor(Classifier):
    """Writes to a tensor that is not a buffer."""

    def __init__(self):
        super().__init__()
        self.before = torch.zeros(3)

    def transform(self, logits):
        self.before = self.before.to(logits.device)
        self.before.mul_(0.5).add_(logits.detach().mean(0))
        return logits - self.before


class PythonRandom(Classifier):
    def transform(self, logits):
        return logits * (1.0 + random.random())


class NumpyRandom(Classifier):
    def transform(self, logits):
        return logits * float(1.0 + numpy.random.rand())


class HostRandom(Classifier):
    """Draws random numbers on the host, also if the model is on a GPU."""

    def transform(self, logits):
        return logits * (1.0 + torch.rand(3, dtype=logits.dtype)).to(logits.device)


class Sine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x.cos()


class NumpySine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_numpy(numpy.sin(x.detach().cpu().numpy())).to(x.device)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * torch.from_numpy(numpy.cos(x.detach().cpu().numpy())).to(x.device)


class CustomFunction(Classifier):
    def transform(self, logits):
        return Sine.apply(logits)


class CustomNumpyFunction(Classifier):
    def transform(self, logits):
        return NumpySine.apply(logits)


class ThroughNumpy(Classifier):
    def transform(self, logits):
        shift = logits.detach().cpu().numpy().mean(0)
        return logits - torch.from_numpy(shift).to(logits.device)


class ThroughList(Classifier):
    def transform(self, logits):
        return logits - torch.tensor(logits.detach().mean(0).tolist(), dtype=logits.dtype, device=logits.device)


class BooleanIndex(Classifier):
    """Makes a tensor whose shape depends on the data."""

    def transform(self, logits):
        return logits + logits[logits > 0].mean().nan_to_num()


class SparseEmbedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(10, 4, sparse=True), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.table((x[:, 0] * 3).long().clamp(-5, 4) + 5))


class OpaqueBatch:
    """A batch of a class that stoker can't take tensors out of."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def to(self, device, **_):
        return OpaqueBatch(self.x.to(device), self.y.to(device))


def opaque_batches():
    x, y = samples()
    return data.Loader([(x[each], y[each]) for each in range(len(x))], batch_size=SIZE, batcher=_collate)


def _collate(rows):
    return OpaqueBatch(torch.stack([x for x, _ in rows]), torch.stack([y for _, y in rows]))


class ReadsOpaqueBatch(Classifier):
    def train_step(self, batch):
        return F.cross_entropy(self.body(batch.x), batch.y)


class HalvesGradients(callbacks.Callback):
    """Halves the gradients between backward and the update."""

    def on_train_batch_after_backward(self, ctx):
        ctx.grads = ctx.grads.scale(0.5)


class Config:
    """A plain object that a model reads."""

    def __init__(self):
        self.temperature, self.calls = 1.0, 0


class CountsInConfig(Classifier):
    """Counts its calls in a plain object."""

    def __init__(self):
        super().__init__()
        self.config = Config()

    def transform(self, logits):
        self.config.calls += 1
        return logits / (1 + self.config.calls % 3)


CALLS = Config()


class CountsInGlobal(Classifier):
    """Counts its calls in a global object."""

    def transform(self, logits):
        CALLS.calls += 1
        return logits / (1 + CALLS.calls % 3)


class CountingLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, logits, targets):
        self.calls += 1
        return F.cross_entropy(logits, targets) * (1 + self.calls % 3)


def net_with_gradient_hook():
    model = net()
    model[0].weight.register_hook(lambda grad: grad * 0)
    return model


def add_forward_hook(ctx):
    """Adds a hook, as for collecting activations."""
    ctx.model[0].register_forward_hook(lambda module, args, output: None)


def net_with_forward_hook():
    """A model with a forward hook that keeps tensors outside of the model."""
    model, seen = net(), []
    model[0].register_forward_hook(lambda module, args, output: seen.append(output.detach().mean()))
    return model


@dataclass
class Unsupported:
    """A fit that falls back to eager steps when compilation or a CUDA graph is requested."""

    feature: Feature
    reason: str  # a part of the reason that the plan gives for `compile=True`
    captured: str | None = None  # a part of the reason against a CUDA graph, if it differs
    compiler: bool = False  # tracing succeeds and the compiler fails


def _custom_step(model, **settings):
    return Feature(model, settings=lambda: {"loss": None, **settings})


UNSUPPORTED = {
    "branch on a tensor": Unsupported(
        _custom_step(BranchesOnLoss), "the step reads a value on the host (unsupported.py, line"
    ),
    "loss.item()": Unsupported(_custom_step(ReadsLoss), "the step reads a value on the host", compiler=True),
    "callback between backward and update": Unsupported(
        Feature(callbacks=lambda: [HalvesGradients()]),
        "HalvesGradients.on_train_batch_after_backward comes between forward and step",
    ),
    "wrapped optimizer": Unsupported(
        Feature(settings=lambda: {"optimizer": optim.wrap(torch.optim.Adam)}), "wraps an optimizer"
    ),
    "sparse": Unsupported(Feature(SparseEmbedding, settings=lambda: {"optimizer": optim.SGD()}), "are sparse"),
    "replaced buffer": Unsupported(Feature(ReplacesBuffer), "ReplacesBuffer replaces its buffer `mean` in every step"),
    "counter attribute": Unsupported(Feature(CountsCalls), "CountsCalls sets its attribute `calls` in every step"),
    "list attribute": Unsupported(Feature(AppendsToList), "AppendsToList sets its attribute `calls` in every step"),
    "tensor attribute replaced": Unsupported(
        Feature(KeepsTensor), "KeepsTensor sets its attribute `before` in every step"
    ),
    "tensor attribute written": Unsupported(
        Feature(WritesTensor),
        "the step reads a tensor that is neither a parameter nor a buffer (unsupported.py, line",
        "WritesTensor sets",
    ),
    "counter in a config": Unsupported(
        Feature(CountsInConfig), "CountsInConfig sets its attribute `config` in every step"
    ),
    "counter in a global": Unsupported(
        Feature(CountsInGlobal, callbacks=lambda: [CallAt(lambda ctx: setattr(CALLS, "calls", 0), "on_fit_begin")]),
        "the step changes 'CALLS', which CountsInGlobal.transform reads, in Python",
    ),
    "counter in the loss": Unsupported(
        Feature(settings=lambda: {"loss": CountingLoss()}), "CountingLoss ('loss') sets its attribute `calls`"
    ),
    "random": Unsupported(Feature(PythonRandom), "draws from Python's or numpy's random numbers"),
    "numpy random": Unsupported(Feature(NumpyRandom), "draws from Python's or numpy's random numbers"),
    "autograd function in numpy": Unsupported(
        Feature(CustomNumpyFunction), "unsupported.py, line", "the step reads a value on the host"
    ),
    "through numpy": Unsupported(Feature(ThroughNumpy), "unsupported.py, line", "the step reads a value on the host"),
    "through a list": Unsupported(Feature(ThroughList), "the step reads a value on the host (unsupported.py, line"),
    "data-dependent shape": Unsupported(
        Feature(BooleanIndex),
        "DynamicOutputShapeException: aten.nonzero",
        "the step reads a value on the host",
        compiler=True,
    ),
    "batch of an unknown class": Unsupported(
        Feature(ReadsOpaqueBatch, opaque_batches, lambda: {"loss": None}),
        "a batch holds a OpaqueBatch, which can't be separated",
    ),
    "gradient hook": Unsupported(
        Feature(net_with_gradient_hook), "a hook on the gradient of '0.weight' runs Python code"
    ),
    "forward hook of a callback": Unsupported(
        Feature(callbacks=lambda: [CallAt(add_forward_hook, "on_fit_begin")]), "a hook of Linear runs Python code"
    ),
    "forward hook": Unsupported(Feature(net_with_forward_hook), "a hook of Linear runs Python code"),
    "on_nan='skip'": Unsupported(Feature(settings=lambda: {"on_nan": "skip"}), "on_nan='skip' reads every batch"),
}

# Steps that look difficult and can be compiled and captured.
SUPPORTED = {"autograd function": Feature(CustomFunction)}

ALGORITHMS = {
    "SGD": lambda: optim.SGD(),
    "SGD momentum": lambda: optim.SGD(momentum=0.5, nesterov=True, weight_decay=0.01),
    "SGD foreach": lambda: optim.SGD(momentum=0.5, foreach=True),
    "Adam": lambda: optim.Adam(amsgrad=True, weight_decay=0.01),
    "Adam fused": lambda: optim.Adam(fused=True),
    "Adam foreach": lambda: optim.Adam(foreach=True),
    "AdamW": lambda: optim.AdamW(),
    "Adamax": lambda: optim.Adamax(),
    "NAdam": lambda: optim.NAdam(),
    "RAdam": lambda: optim.RAdam(),
    "RMSprop": lambda: optim.RMSprop(momentum=0.5, centered=True),
    "Adagrad": lambda: optim.Adagrad(lr_decay=0.01),
    "Adadelta": lambda: optim.Adadelta(),
    "Adafactor": lambda: optim.Adafactor(),
    "ASGD": lambda: optim.ASGD(t0=3.0),
    "Rprop": lambda: optim.Rprop(),
    "Muon": lambda: {"*.bias": optim.AdamW(), "*": optim.Muon()},
}


def with_algorithm(name):
    return Feature(settings=lambda: {"optimizer": ALGORITHMS[name]()})
