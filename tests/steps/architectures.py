"""Models of many kinds, each with an input: what a view must be able to look through."""

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from types import MethodType, SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

BATCH = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
IMAGES = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
SEQUENCES = torch.randn(5, 6, 8, generator=torch.Generator().manual_seed(0))


def noisy(width: int = 8) -> nn.Sequential:
    """Dropout and batch norm: all that differs between training and eval mode."""
    return nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.5))


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([noisy(), noisy()])
        self.heads = nn.ModuleDict({"a": nn.Linear(8, 2), "b": nn.Linear(8, 3)})
        self.scales = nn.ParameterList([torch.ones(8), torch.full((8,), 2.0)])

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        for scale, block in zip(self.scales, self.blocks, strict=True):
            x = x + block(x) * scale
        return {name: head(x) for name, head in self.heads.items()}


class Sliced(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*noisy(), *noisy())
        self.many = nn.ModuleList([noisy(), noisy(), noisy()])

    def forward(self, x: Tensor) -> Tensor:
        for part in self.many[1:]:
            x = part(x)
        return self.layers[4:](self.layers[:4](x))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = self.b = noisy()
        self.head = nn.Linear(8, 8)
        self.head.weight = self.a[0].weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.b(self.a(x)))


class Held(nn.Module):
    """Registered modules that are reached through plain attributes, as feature pyramids do."""

    def __init__(self):
        super().__init__()
        self.registered = nn.ModuleList([noisy(), noisy(), noisy()])
        self.order = list(self.registered)[::-1]
        self.by_name = {"last": (self.registered[2], 1.0)}
        self.__dict__["first"] = self.registered[0]

    def forward(self, x: Tensor) -> Tensor:
        for block in self.order:
            x = block(x)
        block, scale = self.by_name["last"]
        return self.first(block(x) * scale)


class Blocks(list):
    pass


class Attributes(dict):
    """Keys that are attributes as well."""

    def __init__(self, **parts: Any):
        super().__init__(**parts)
        self.__dict__ = self


class Pair(NamedTuple):
    block: nn.Module
    scale: float


@dataclass
class Record:
    block: nn.Module
    calls: int = 0


class Helper:
    """A plain object that holds modules and is callable."""

    def __init__(self, *blocks: nn.Module):
        self.blocks, self.inner = list(blocks), SimpleNamespace(block=blocks[0])

    def __call__(self, x: Tensor) -> Tensor:
        return self.apply(self.inner.block(x))

    def apply(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


HOLDERS: dict[str, Callable[[nn.Module], Any]] = {
    "object": Helper,
    "method of an object": lambda block: Helper(block).apply,
    "dataclass": Record,
    "namespace": lambda block: SimpleNamespace(block=block),
    "namedtuple": lambda block: Pair(block, 1.0),
    "subclass of list": lambda block: Blocks([block]),
    "deque": lambda block: deque([block], maxlen=3),
    "defaultdict": lambda block: defaultdict(int, block=block),
    "dict with attributes": lambda block: Attributes(block=block),
}


def taken(held: Any) -> Callable[[Tensor], Tensor]:
    """What to call with the input, out of whatever holds it."""
    if hasattr(held, "block"):
        return held.block
    if isinstance(held, dict):
        return held["block"]
    return held[0] if isinstance(held, list | deque) else held


class Indirect(nn.Module):
    """A registered module that the forward reaches through a plain object."""

    def __init__(self, hold: Callable[[nn.Module], Any]):
        super().__init__()
        self.net = noisy()
        self.held = hold(self.net)

    def forward(self, x: Tensor) -> Tensor:
        return taken(self.held)(x)


class Stored(nn.Module):
    """Methods and partials that stand on the instance."""

    def __init__(self):
        super().__init__()
        self.net = noisy()
        self.run = self._run
        self.half = partial(self._run, scale=0.5)

    def _run(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return F.dropout(self.net(x), 0.5, self.training) * scale

    def forward(self, x: Tensor) -> Tensor:
        return self.half(self.run(x))


class Cached(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = noisy()

    @cached_property
    def scale(self) -> float:
        return 2.0 if self.training else 1.0

    @cached_property
    def stem(self) -> nn.Module:
        return self.net[0]

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x * self.scale) + self.stem(x)


class Forwarding(nn.Module):
    """`__getattr__` of the user's own, falling through to what is wrapped."""

    def __init__(self):
        super().__init__()
        self.inner = Residual()

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)

    def forward(self, x: Tensor) -> Tensor:
        return self.heads["a"](self.blocks[0](x))


class Recurrent(nn.Module):
    def __init__(self, kind: type):
        super().__init__()
        self.rnn, self.head = kind(8, 5, num_layers=2, dropout=0.5, batch_first=True), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0])


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.attend(x, x, x)


class Forces(nn.Module):
    """Differentiates inside its own forward, in eval mode as well."""

    def __init__(self):
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return torch.autograd.grad(self.energy(x).sum(), x)[0]


def parametrized() -> nn.Module:
    net = noisy()
    parametrizations.weight_norm(net[0])
    net.append(parametrizations.spectral_norm(nn.Linear(8, 8)))
    net.append(parametrizations.orthogonal(nn.Linear(8, 8)))
    parametrize.register_parametrization(net[0], "bias", nn.Tanh())
    return net


def add(other: nn.Module, module: nn.Module, args: tuple[Tensor], out: Tensor) -> Tensor:
    return out + other(args[0])


def hooked() -> nn.Module:
    net = noisy()
    net[0].register_forward_pre_hook(lambda module, args: (args[0] * (2 if module.training else 1),))
    net[3].register_forward_hook(lambda module, args, kwargs, out: out + module.training, with_kwargs=True)
    net[1].register_forward_hook(partial(add, net[3]))
    net[2].register_full_backward_hook(lambda module, inputs, outputs: None)
    return net


def own_forward() -> nn.Module:
    net = noisy()
    net[3].forward = MethodType(lambda self, x: x * (2.0 if self.training else 1.0), net[3])
    net.forward = MethodType(lambda self, x: nn.Sequential.forward(self, x) + 1, net)
    return net


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Dropout2d(0.5), nn.InstanceNorm2d(8, track_running_stats=True),
        nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.AlphaDropout(0.3), nn.Linear(32, 4), nn.RReLU(),
    )  # fmt: skip


def encoder(norm_first: bool) -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=True, norm_first=norm_first)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first)


@dataclass(frozen=True)
class Case:
    make: Callable[[], nn.Module]
    input: Tensor = BATCH


CASES = {
    "sequential": Case(noisy),
    "residual": Case(Residual),
    "sliced": Case(Sliced),
    "tied": Case(Tied),
    "held": Case(Held),
    "stored": Case(Stored),
    "cached": Case(Cached),
    "forwarding": Case(Forwarding),
    "lstm": Case(lambda: Recurrent(nn.LSTM), SEQUENCES),
    "gru": Case(lambda: Recurrent(nn.GRU), SEQUENCES),
    "attention": Case(Attention, SEQUENCES),
    "encoder": Case(lambda: encoder(False), SEQUENCES),
    "encoder, norm first": Case(lambda: encoder(True), SEQUENCES),
    "forces": Case(Forces),
    "parametrized": Case(parametrized),
    "hooked": Case(hooked),
    "own forward": Case(own_forward),
    "convolutional": Case(convolutional, IMAGES),
    "traced by fx": Case(lambda: torch.fx.symbolic_trace(nn.Sequential(noisy(), noisy()))),
    **{f"through a {name}": Case(partial(Indirect, hold)) for name, hold in HOLDERS.items()},
    "averaged": Case(lambda: torch.optim.swa_utils.AveragedModel(noisy())),
}
