"""Steps that no program can stand for, or only with care; and every algorithm there is."""

import random
from dataclasses import dataclass

import numpy
import torch
import torch.nn.functional as F
from torch import nn

from stoker import callbacks, data, optim
from tests.executors.fits import SIZE, Attribute, Feature, net, samples


class Around(nn.Module):
    """A classifier with a step that calls `odd` on its logits; subclasses say what is odd about it."""

    def __init__(self):
        super().__init__()
        self.body = net()

    def odd(self, logits):
        return logits

    def forward(self, x):
        return self.odd(self.body(x))


class Branching(Around):
    def train_step(self, batch):
        loss = F.cross_entropy(self.body(batch[0]), batch[1])
        return loss if loss > 1 else 2 * loss


class Reading(Around):
    def train_step(self, batch):
        loss = F.cross_entropy(self.body(batch[0]), batch[1])
        return loss * (1.0 + loss.item())


class Replacing(Around):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))

    def odd(self, logits):
        self.mean = 0.5 * self.mean + 0.5 * logits.detach().mean(0)
        return logits - self.mean


class Counting(Around):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def odd(self, logits):
        self.calls += 1
        return logits / (1 + self.calls % 3)


class Listing(Around):
    """Counts in a list that it changes in place."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def odd(self, logits):
        self.calls.append(1)
        return logits / (1 + len(self.calls) % 3)


class Keeping(Around):
    """Keeps a tensor that is no buffer."""

    def __init__(self):
        super().__init__()
        self.before = None

    def odd(self, logits):
        mean = logits.detach().mean(0)
        shift, self.before = 0.0 if self.before is None else self.before, mean
        return logits - shift


class Changing(Around):
    """Changes a tensor in place that is no buffer."""

    def __init__(self):
        super().__init__()
        self.before = torch.zeros(3)

    def odd(self, logits):
        self.before = self.before.to(logits.device)
        self.before.mul_(0.5).add_(logits.detach().mean(0))
        return logits - self.before


class PythonRandom(Around):
    def odd(self, logits):
        return logits * (1.0 + random.random())


class NumpyRandom(Around):
    def odd(self, logits):
        return logits * float(1.0 + numpy.random.rand())


class HostRandom(Around):
    """Draws on the host, whatever device it is on."""

    def odd(self, logits):
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


class OwnFunction(Around):
    def odd(self, logits):
        return Sine.apply(logits)


class OwnFunctionInNumpy(Around):
    def odd(self, logits):
        return NumpySine.apply(logits)


class ThroughNumpy(Around):
    def odd(self, logits):
        shift = logits.detach().cpu().numpy().mean(0)
        return logits - torch.from_numpy(shift).to(logits.device)


class ThroughList(Around):
    def odd(self, logits):
        return logits - torch.tensor(logits.detach().mean(0).tolist(), dtype=logits.dtype, device=logits.device)


class Nonzero(Around):
    """Gives as many values as the data says."""

    def odd(self, logits):
        return logits + logits[logits > 0].mean().nan_to_num()


class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(10, 4, sparse=True), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.table((x[:, 0] * 3).long().clamp(-5, 4) + 5))


class Boxed:
    """A batch that hides its tensors."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def to(self, device, **_):
        return Boxed(self.x.to(device), self.y.to(device))


def boxes():
    x, y = samples()
    return data.Loader([(x[each], y[each]) for each in range(len(x))], batch_size=SIZE, batcher=_boxed)


def _boxed(rows):
    return Boxed(torch.stack([x for x, _ in rows]), torch.stack([y for _, y in rows]))


class Unboxing(Around):
    def train_step(self, batch):
        return F.cross_entropy(self.body(batch.x), batch.y)


class Listening(callbacks.Callback):
    """Shrinks the gradients between forward and step."""

    def on_train_batch_after_backward(self, ctx):
        ctx.grads = ctx.grads.scale(0.5)


class Settings:
    """What a model reads, and is no module."""

    def __init__(self):
        self.temperature, self.calls = 1.0, 0


class Configured(Around):
    """Counts in an object that it holds."""

    def __init__(self):
        super().__init__()
        self.config = Settings()

    def odd(self, logits):
        self.config.calls += 1
        return logits / (1 + self.config.calls % 3)


class CountingLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, logits, targets):
        self.calls += 1
        return F.cross_entropy(logits, targets) * (1 + self.calls % 3)


def masked_weight():
    model = net()
    model[0].weight.register_hook(lambda grad: grad * 0)
    return model


def listen(ctx):
    """As people collect activations."""
    ctx.model[0].register_forward_hook(lambda module, args, output: None)


def hooked():
    """A hook of torch's own that keeps a tensor outside of the model."""
    model, seen = net(), []
    model[0].register_forward_hook(lambda module, args, output: seen.append(output.detach().mean()))
    return model


@dataclass
class Awkward:
    """A fit that no program is made of."""

    feature: Feature
    reason: str  # a part of the reason
    captured: str | None = None  # of that on a GPU, where it is another; "" where it is captured all the same
    compiler: bool = False  # it can be traced, and the compiler refuses it


def _own_step(model, **settings):
    return Feature(model, settings=lambda: {"loss": None, **settings})


AWKWARD = {
    "branch on a tensor": Awkward(_own_step(Branching), "the step reads a value on the host (awkward.py, line"),
    "item": Awkward(_own_step(Reading), "the step reads a value on the host", compiler=True),
    "listener in between": Awkward(
        Feature(listeners=lambda: [Listening()]),
        "Listening.on_train_batch_after_backward comes between forward and step",
    ),
    "wrapped optimizer": Awkward(
        Feature(settings=lambda: {"optimizer": optim.wrap(torch.optim.Adam)}), "wraps an optimizer"
    ),
    "sparse": Awkward(Feature(Sparse, settings=lambda: {"optimizer": optim.SGD()}), "are sparse"),
    "replaced buffer": Awkward(Feature(Replacing), "Replacing replaces its buffer `mean` in every step"),
    "counted calls": Awkward(Feature(Counting), "Counting sets its attribute `calls` in every step"),
    "list of calls": Awkward(Feature(Listing), "Listing sets its attribute `calls` in every step"),
    "kept tensor": Awkward(
        Feature(Keeping),
        "the step reads a tensor that is neither a parameter nor a buffer (awkward.py, line",
        "Keeping sets its",
    ),
    "changed tensor": Awkward(
        Feature(Changing),
        "the step reads a tensor that is neither a parameter nor a buffer (awkward.py, line",
        "Changing sets",
    ),
    "counted calls in a config": Awkward(Feature(Configured), "Configured sets its attribute `config` in every step"),
    "counted calls in the loss": Awkward(
        Feature(settings=lambda: {"loss": CountingLoss()}), "CountingLoss ('loss') sets its attribute `calls`"
    ),
    "random": Awkward(Feature(PythonRandom), "draws from Python's or numpy's random numbers"),
    "numpy random": Awkward(Feature(NumpyRandom), "draws from Python's or numpy's random numbers"),
    "function in numpy": Awkward(Feature(OwnFunctionInNumpy), "awkward.py, line", "the step reads a value on the host"),
    "through numpy": Awkward(Feature(ThroughNumpy), "awkward.py, line", "the step reads a value on the host"),
    "through a list": Awkward(Feature(ThroughList), "the step reads a value on the host (awkward.py, line"),
    "as many as the data says": Awkward(
        Feature(Nonzero),
        "DynamicOutputShapeException: aten.nonzero",
        "the step reads a value on the host",
        compiler=True,
    ),
    "batches of a class": Awkward(
        Feature(Unboxing, boxes, lambda: {"loss": None}), "a batch holds a Boxed, which can't be separated"
    ),
    "hook on a gradient": Awkward(Feature(masked_weight), "a hook on the gradient of '0.weight' runs Python code"),
    "hook of a callback": Awkward(
        Feature(listeners=lambda: [Attribute(listen, "on_fit_begin")]), "a hook of Linear runs Python code"
    ),
    "hook outside": Awkward(Feature(hooked), "a hook of Linear runs Python code"),
    "skip": Awkward(Feature(settings=lambda: {"on_nan": "skip"}), "on_nan='skip' reads every batch"),
}

# What a program can stand for, though it looks as if not.
FINE = {"own function": Feature(OwnFunction)}

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


def algorithm(name):
    return Feature(settings=lambda: {"optimizer": ALGORITHMS[name]()})
