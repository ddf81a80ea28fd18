"""The contract of an algorithm: a frozen config that makes fresh state and applies one update to many parameters."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from stoker._select import Models
from stoker.config import Config
from stoker.errors import InvalidArgument

if TYPE_CHECKING:
    from stoker.optim._optimizer import Optimizer

State = dict[str, Tensor]  # what is kept for one parameter
Columns = Mapping[str, list[Tensor]]  # the same for many: for each name that is kept, one tensor a parameter
Rate = float | Tensor  # a learning rate: a number, or a 0-d tensor that changes without recompiling


class Algorithm(Config):
    """All settings of an optimizer but the learning rate, which is an argument of every step.

    The settings and the arithmetic are those of the class of the same name in `torch.optim`, bit for bit. A subclass
    says what it keeps for a parameter (`keeps`, `fresh`) and how it updates many of them at once (`update`).
    """

    takes_sparse: ClassVar[bool] = False
    needs_whole: ClassVar[bool] = False  # whether an element's update depends on others of its parameter

    def __post_init__(self) -> None:
        _check_settings(self)

    def init(self, model: Models) -> "Optimizer":
        """An optimizer that steps every parameter of the model this way; state is made when it is first needed."""
        from stoker.optim._optimizer import Optimizer  # the one knot of the room: a config makes what is made of it

        return Optimizer({"*": self}, model)

    def keeps(self) -> tuple[str, ...]:
        """The names of the state that is kept for a parameter."""
        raise NotImplementedError

    def fresh(self, parameter: Tensor, lr: Rate) -> State:
        """The state of a parameter that was never stepped; empty where the first update makes it."""
        raise NotImplementedError

    def update(
        self, parameters: list[Tensor], grads: list[Tensor], state: Columns, lr: Rate, *, has_complex: bool
    ) -> None:
        """Changes parameters and state in place. Runs under `torch.no_grad`."""
        raise NotImplementedError

    def skippable(self, parameters: list[Tensor], grads: list[Tensor], state: Columns, lr: Rate, skip: Tensor) -> bool:
        """A fused `update` that changes nothing where `skip` is 1.0 on the device; False where there is none."""
        return False

    def at_once(self, parameters: list[Tensor], grads: list[Tensor], state: Columns, lr: float) -> bool:
        """What a fused `update` comes to, on parameters of one kind: its kernel alone; False where there is none."""
        return False

    def refusal(self, parameter: Tensor) -> str | None:
        """Why this algorithm is not made for a parameter, if it isn't."""
        return None

    def rate_refusal(self) -> str | None:
        """Why a learning rate can't be a tensor with these settings, if it can't."""
        return None

    def spelled(self) -> str:
        """The config as one would write it: what differs from the defaults.

        >>> from stoker.optim import SGD
        >>> SGD(momentum=0.9).spelled()
        'SGD(momentum=0.9)'
        """
        changed = [f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if getattr(self, f.name) != f.default]
        return f"{type(self).__name__}({', '.join(changed)})"


class Piece(NamedTuple):
    """Gradients of a step that share a learning rate, by the names of their parameters."""

    names: tuple[str, ...]
    grads: list[Tensor]
    lr: Rate


class Rule(Protocol):
    """An algorithm at work on named parameters: what an `Optimizer` holds one of for each config."""

    def check(self, pieces: list[Piece]) -> None:
        """Refuses what it can't take, before anything has changed."""
        ...

    def step(self, pieces: list[Piece], when: Tensor | None = None) -> None:
        """One update; where `when` is False on the device, none."""
        ...

    def state_dict(self) -> dict[str, object]: ...

    def prepared(self, state: Any) -> tuple[Any, list[str]]:
        """A saved state as this rule would keep it, and what does not fit, a line each; changes nothing."""
        ...

    def take_up(self, ready: Any) -> None:
        """Goes on from what `prepared` made."""
        ...


def zeros(parameter: Tensor) -> Tensor:
    """A moment of a parameter: zeros in its shape, type and layout."""
    return torch.zeros_like(parameter, memory_format=torch.preserve_format)


def counter(
    parameter: Tensor, *, fused: bool | None = False, on_device: bool | None = False, value: float = 0.0
) -> Tensor:
    """A number that is kept for a parameter, such as its updates so far; on the host unless kernels read it."""
    wide = torch.get_default_dtype() == torch.float64 and not fused  # as torch chooses it
    device = parameter.device if fused or on_device else torch.device("cpu")
    return torch.full((), value, dtype=torch.float64 if wide else torch.float32, device=device)


def any_sparse(grads: Sequence[Tensor]) -> bool:
    """Whether some gradients hold only the rows that were used."""
    return any(grad.is_sparse for grad in grads)


def unshared(grads: Sequence[Tensor]) -> list[Tensor]:
    """The gradients, for what writes into them: copies where two are one piece of memory.

    Autograd hands one tensor to two parameters where they are added: `((a + b) ** 2).sum()`.
    """
    if torch.compiler.is_compiling():  # no memory is written in what is traced: everything there is a new value
        return list(grads)
    seen: set[int] = set()
    found: list[Tensor] = []
    for grad in grads:
        stored = grad._values() if grad.is_sparse else getattr(grad, "_local_tensor", grad)  # of a DTensor: its shard
        found.append(grad.clone() if stored.data_ptr() in seen else grad)
        seen.add(stored.data_ptr())
    return found


def number(lr: Rate) -> float:
    """A learning rate as a number, for state that starts from it (waits for the device where it is a tensor)."""
    return lr.item() if isinstance(lr, Tensor) else lr


# Settings of the same name have the same range in every algorithm.
_AT_LEAST_ZERO = ("eps", "weight_decay", "momentum", "lr_decay", "initial_accumulator_value", "momentum_decay", "alpha")


def _check_settings(algorithm: Algorithm) -> None:
    """Refuses settings out of range where they are written, not at the first step."""
    who = type(algorithm).__name__
    settings = vars(algorithm)
    for name in _AT_LEAST_ZERO:
        value = settings.get(name)
        if isinstance(value, int | float) and not (value >= 0 and math.isfinite(value)):
            raise InvalidArgument(f"{who}: {name} must be at least 0, got {value!r}")
    if not all(0 <= beta < 1 for beta in settings.get("betas", ())):
        raise InvalidArgument(f"{who}: betas must be at least 0 and below 1, got {settings['betas']!r}")
    if not 0 <= settings.get("rho", 0) <= 1:
        raise InvalidArgument(f"{who}: rho must be between 0 and 1, got {settings['rho']!r}")
    if settings.get("fused") and settings.get("foreach"):
        raise InvalidArgument(f"{who}: fused and foreach are two ways to do the same; choose one")
