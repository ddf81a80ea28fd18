"""The contract of an algorithm: a frozen config that creates state and updates many parameters at once."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from stoker._select import Models
from stoker.config import Config
from stoker.errors import InvalidArgument

if TYPE_CHECKING:
    from stoker.optim._optimizer import Optimizer

State = dict[str, Tensor]  # the state of one parameter
StateLists = Mapping[str, list[Tensor]]  # the state of many parameters: for each name one tensor per parameter
Rate = float | Tensor  # a learning rate; a 0-d tensor can change without recompilation


class Algorithm(Config):
    """All settings of an optimizer except the learning rate, which is an argument of every step.

    Settings and arithmetic are those of the class of the same name in `torch.optim`, bit for bit. A subclass declares
    its settings as fields, torch's functional form (`function`) and the state that it takes (`state_lists`).
    """

    function: ClassVar[Callable[..., None]]
    state_lists: ClassVar[tuple[str, ...]]  # in the order in which `function` takes them
    accepts_sparse: ClassVar[bool] = False
    needs_whole_parameter: ClassVar[bool] = False  # whether an element's update depends on the others

    def __post_init__(self) -> None:
        settings = vars(self)
        for name in _NON_NEGATIVE:
            value = settings.get(name)
            self.require(not isinstance(value, int | float) or 0 <= value < math.inf, name, "must be at least 0")
        betas = settings.get("betas", ())
        self.require(all(0 <= beta < 1 for beta in betas), "betas", "must be at least 0 and below 1")
        self.require(0 <= settings.get("rho", 0) <= 1, "rho", "must be between 0 and 1")
        if settings.get("fused") and settings.get("foreach"):
            raise InvalidArgument(f"{type(self).__name__}: fused and foreach exclude each other; choose one")

    def require(self, holds: bool, setting: str, rule: str) -> None:
        """Raises if a setting breaks a rule: when the config is made, and not at the first step."""
        if not holds:
            raise InvalidArgument(f"{type(self).__name__}: {setting} {rule}, got {getattr(self, setting)!r}")

    def init(self, model: Models) -> "Optimizer":
        """Makes an optimizer that steps every parameter of the model; state is created by the first step."""
        from stoker.optim._optimizer import Optimizer  # it imports this module

        return Optimizer({"*": self}, model)

    def state_names(self) -> tuple[str, ...]:
        """The names of a parameter's state with these settings."""
        return self.state_lists

    def create_state(self, parameter: Tensor, lr: Rate) -> State:
        """The state of a parameter before its first update; empty if that update creates it."""
        return {
            name: self.counter(parameter) if name == "step" else zeros_like(parameter) for name in self.state_names()
        }

    def update(
        self, parameters: list[Tensor], grads: list[Tensor], state: StateLists, lr: Rate, *, has_complex: bool
    ) -> None:
        """Changes parameters and state in place. Runs under `torch.no_grad`."""
        lists = [state.get(name, []) for name in self.state_lists]
        sparse = {"has_sparse_grad": any_sparse(grads)} if self.accepts_sparse else {}
        self.function(parameters, grads, *lists, lr=lr, has_complex=has_complex, **sparse, **self.arguments)

    def update_fused(
        self, parameters: list[Tensor], grads: list[Tensor], state: StateLists, lr: Rate, skip: Tensor | None
    ) -> bool:
        """Calls the fused kernel with less overhead than `update`; returns False, changing nothing, if it cannot.

        If `skip` is given, a 0-d float tensor on the device, the kernel changes nothing where it is 1.0. Without it,
        parameters and gradients have one dtype and one device.
        """
        return False

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """The settings by the names of `function`'s arguments."""
        arguments: dict[str, Any] = {}
        for setting in fields(self):
            value = getattr(self, setting.name)
            if setting.name in _PAIRS and isinstance(value, tuple):
                arguments.update(zip(_PAIRS[setting.name], value, strict=True))
            elif setting.name != "initial_accumulator_value":  # in the state only
                arguments[setting.name] = value
        return arguments

    def parameter_problem(self, parameter: Tensor) -> str | None:
        """Why this algorithm cannot update a parameter, or None."""
        return None

    def tensor_lr_problem(self) -> str | None:
        """Why the learning rate cannot be a tensor with these settings, or None."""
        return None

    def to_code(self) -> str:
        """The config as code, with the settings that differ from the defaults.

        >>> from stoker.optim import SGD
        >>> SGD(momentum=0.9).to_code()
        'SGD(momentum=0.9)'
        """
        changed = [f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if getattr(self, f.name) != f.default]
        return f"{type(self).__name__}({', '.join(changed)})"

    def counter(self, parameter: Tensor, value: float = 0.0, *, on_device: bool = False) -> Tensor:
        """A number in the state, such as the updates so far: on the host, or on the device if kernels read it."""
        fused, capturable = getattr(self, "fused", False), getattr(self, "capturable", False)
        wide = torch.get_default_dtype() == torch.float64 and not fused  # torch's rule
        device = parameter.device if fused or capturable or on_device else torch.device("cpu")
        return torch.full((), value, dtype=torch.float64 if wide else torch.float32, device=device)


class GradientGroup(NamedTuple):
    """The gradients of a step that share a learning rate, with the names of their parameters."""

    names: tuple[str, ...]
    grads: list[Tensor]
    lr: Rate


def zeros_like(parameter: Tensor) -> Tensor:
    """Zeros in the shape, dtype and memory layout of a parameter."""
    return torch.zeros_like(parameter, memory_format=torch.preserve_format)


def any_sparse(grads: Sequence[Tensor]) -> bool:
    return any(grad.is_sparse for grad in grads)


def without_shared_memory(grads: Sequence[Tensor]) -> list[Tensor]:
    """The gradients, with copies of those that share memory, for algorithms that write into them.

    Autograd gives one tensor to two parameters that are added: `((a + b) ** 2).sum()`.
    """
    if torch.compiler.is_compiling():  # a traced program writes no memory: every result is a new value
        return list(grads)
    seen: set[int] = set()
    result: list[Tensor] = []
    for grad in grads:
        stored = grad._values() if grad.is_sparse else getattr(grad, "_local_tensor", grad)  # a DTensor's shard
        result.append(grad.clone() if stored.data_ptr() in seen else grad)
        seen.add(stored.data_ptr())
    return result


# A setting has the same range in every algorithm.
_NON_NEGATIVE = ("eps", "weight_decay", "momentum", "lr_decay", "initial_accumulator_value", "momentum_decay", "alpha")

# torch's functions take the two numbers of these settings separately.
_PAIRS = {
    "betas": ("beta1", "beta2"),
    "eps": ("eps1", "eps2"),
    "etas": ("etaminus", "etaplus"),
    "step_sizes": ("step_size_min", "step_size_max"),
}
