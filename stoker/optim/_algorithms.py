"""The algorithms of `torch.optim` as configs. Each field is the setting of the same name in torch."""

import math
from collections.abc import Callable, Sequence
from dataclasses import field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

# torch exports only the classes of these two. The tests compare every algorithm with its class, so they notice a move.
from torch.optim._adafactor import adafactor
from torch.optim._muon import muon
from torch.optim.adadelta import adadelta
from torch.optim.adagrad import adagrad
from torch.optim.adam import adam
from torch.optim.adamax import adamax
from torch.optim.asgd import asgd
from torch.optim.nadam import nadam
from torch.optim.radam import radam
from torch.optim.rmsprop import rmsprop
from torch.optim.rprop import rprop
from torch.optim.sgd import sgd

from stoker._select import Models
from stoker.config import Config
from stoker.errors import InvalidArgument
from stoker.gradients import split_for_capture

if TYPE_CHECKING:
    from stoker.optim._optimizer import Optimizer

State = dict[str, Tensor]  # the state of one parameter
Rate = float | Tensor  # a learning rate; a 0-d tensor can change without recompilation

# The kernels behind torch's own fused Adam: calling them directly saves half of the time on small models.
_add_all: Any = torch._foreach_add_  # pyright: ignore[reportPrivateImportUsage]
_subtract_all: Any = torch._foreach_sub_  # pyright: ignore[reportPrivateImportUsage]
_fused_adam: Any = torch._fused_adam_  # pyright: ignore[reportPrivateImportUsage]
_fused_adamw: Any = torch._fused_adamw_  # pyright: ignore[reportPrivateImportUsage]

_ONE = torch.ones((), dtype=torch.float32, device="cpu")

# Parameters that a fused kernel takes in one launch, at least.
_ADAM_LAUNCH = 30
_SGD_LAUNCH = 48

# A setting has the same range in every algorithm.
_NON_NEGATIVE = ("eps", "weight_decay", "momentum", "lr_decay", "initial_accumulator_value", "momentum_decay", "alpha")

# torch's functions take the two numbers of these settings separately.
_PAIRS = {
    "betas": ("beta1", "beta2"),
    "eps": ("eps1", "eps2"),
    "etas": ("etaminus", "etaplus"),
    "step_sizes": ("step_size_min", "step_size_max"),
}


class ParameterGroup(NamedTuple):
    """Parameters that are updated in one call, and their state as the lists that torch's functions take."""

    parameters: list[Tensor]
    state: dict[str, list[Any]]  # one entry per parameter; None where it has no such state, or none yet
    has_complex: bool
    has_one_kind: bool  # one dtype and device, so that a fused kernel takes all of them at once
    has_shards: bool  # whether some are DTensors
    creates_state: bool  # whether the first update creates the state of some


class Algorithm(Config):
    """All settings of an optimizer except the learning rate, which is an argument of every step.

    Settings and arithmetic are those of the class of the same name in `torch.optim`, bit for bit. A subclass declares
    its settings as fields, torch's functional form (`function`) and the state that it takes (`state_lists`).
    """

    function: ClassVar[Callable[..., None]]
    state_lists: ClassVar[tuple[str, ...]]  # in the order in which `function` takes them
    accepts_sparse: ClassVar[bool] = False
    needs_whole_parameter: ClassVar[bool] = False  # whether an element's update depends on the others
    _elsewhere: ClassVar[dict[str, str]] = {  # arguments of torch's classes that belong to another place here
        "lr": "the learning rate is an argument of Learner(lr=...), or of every step(grads, lr=...)",
        "params": "the parameters are those of the model: Learner(model, optimizer=...), or .init(model)",
    }

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

    def update(self, group: ParameterGroup, grads: list[Tensor], lr: Rate) -> None:
        """Changes parameters and state in place. Runs under `torch.no_grad`."""
        lists = [group.state.get(name, []) for name in self.state_lists]
        sparse = {"has_sparse_grad": any_sparse(grads)} if self.accepts_sparse else {}
        self.function(group.parameters, grads, *lists, lr=lr, has_complex=group.has_complex, **sparse, **self.arguments)

    def update_fused(self, group: ParameterGroup, grads: list[Tensor], lr: Rate, skip: Tensor | None) -> bool:
        """Calls the fused kernel with less overhead than `update`; returns False, changing nothing, if it cannot.

        If `skip` is given, a 0-d float tensor on the device, the kernel changes nothing where it is 1.0.
        """
        return False

    def takes_rate_tensor(self, *, compiled: bool) -> bool:
        """Whether a step on a GPU computes with a learning rate that is a tensor, and never reads it on the host.

        `compiled`: the step is traced, or computes as if it was.
        """
        return bool(getattr(self, "fused", False) or getattr(self, "capturable", False))

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


class Adam(Algorithm):
    """Adam, as `torch.optim.Adam`.

    >>> Adam(weight_decay=5e-5) == Adam(weight_decay=5e-5)
    True
    """

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    amsgrad: bool = False
    foreach: bool | None = None
    maximize: bool = False
    capturable: bool = False
    fused: bool | None = None
    decoupled_weight_decay: bool = False

    function = staticmethod(adam)
    state_lists = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "step")

    def state_names(self) -> tuple[str, ...]:
        return self.state_lists if self.amsgrad else ("exp_avg", "exp_avg_sq", "step")

    def update_fused(self, group: ParameterGroup, grads: list[Tensor], lr: Rate, skip: Tensor | None) -> bool:
        parameters, state = group.parameters, group.state
        is_plain = group.has_one_kind and {grad.dtype for grad in grads} == {parameters[0].dtype}
        columns = [parameters, grads, *state.values()]  # in the order of `state_names`
        if skip is None:
            if not is_plain or (isinstance(lr, Tensor) and lr.device != parameters[0].device):
                return False
            steps = state["step"]
            # Of a number, torch makes a tensor for each counter on the CPU, which takes longer than the additions.
            _add_all(steps, [_ONE] * len(steps) if steps[0].is_cpu else 1)
            self._call_kernel(columns, lr, None)
            return True
        devices = {parameters[0].device, skip.device}
        if isinstance(lr, Tensor) and lr.is_cuda:
            devices.add(lr.device)
        if not is_plain or len(devices) > 1:  # torch's form groups them, and moves scalars between devices
            lists: Any = [state.get(name, []) for name in self.state_lists]
            adam(parameters, grads, *lists, lr=lr, found_inf=skip, has_complex=False, **self.arguments)
            return True
        _add_all(state["step"], 1)
        self._call_kernel(split_for_capture(columns, _ADAM_LAUNCH), lr, skip)
        _subtract_all(state["step"], [skip] * len(parameters))
        return True

    def _call_kernel(self, columns: Any, lr: Rate, skip: Tensor | None) -> None:
        parameters, grads, exp_avgs, exp_avg_sqs, *max_exp_avg_sqs, steps = columns
        kernel = _fused_adamw if self.decoupled_weight_decay else _fused_adam
        kernel(
            parameters,
            grads,
            exp_avgs,
            exp_avg_sqs,
            max_exp_avg_sqs[0] if max_exp_avg_sqs else [],
            steps,
            lr=lr,
            beta1=self.betas[0],
            beta2=self.betas[1],
            weight_decay=self.weight_decay,
            eps=self.eps,
            amsgrad=self.amsgrad,
            maximize=self.maximize,
            found_inf=skip,
        )


class AdamW(Adam):
    """Adam with weight decay decoupled from the gradient, as `torch.optim.AdamW`."""

    weight_decay: float = 1e-2
    decoupled_weight_decay: bool = field(default=True, init=False, repr=False)


class Adamax(Algorithm):
    """Adam with the infinity norm of the gradients, as `torch.optim.Adamax`."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    foreach: bool | None = None
    maximize: bool = False
    capturable: bool = False

    function = staticmethod(adamax)
    state_lists = ("exp_avg", "exp_inf", "step")


class NAdam(Algorithm):
    """Adam with Nesterov momentum, as `torch.optim.NAdam`."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum_decay: float = 4e-3
    decoupled_weight_decay: bool = False
    foreach: bool | None = None
    maximize: bool = False
    capturable: bool = False

    function = staticmethod(nadam)
    state_lists = ("exp_avg", "exp_avg_sq", "mu_product", "step")

    def create_state(self, parameter: Tensor, lr: Rate) -> State:
        return {**super().create_state(parameter, lr), "mu_product": self.counter(parameter, 1.0)}


class RAdam(Algorithm):
    """Adam with a rectified adaptive learning rate, as `torch.optim.RAdam`."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled_weight_decay: bool = False
    foreach: bool | None = None
    maximize: bool = False
    capturable: bool = False

    function = staticmethod(radam)
    state_lists = ("exp_avg", "exp_avg_sq", "step")


class RMSprop(Algorithm):
    """Divides by the root of the mean squared gradient, as `torch.optim.RMSprop`."""

    alpha: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0
    centered: bool = False
    capturable: bool = False
    foreach: bool | None = None
    maximize: bool = False

    function = staticmethod(rmsprop)
    state_lists = ("square_avg", "grad_avg", "momentum_buffer", "step")

    def state_names(self) -> tuple[str, ...]:
        used = {"grad_avg": self.centered, "momentum_buffer": self.momentum > 0}
        return tuple(name for name in self.state_lists if used.get(name, True))

    def takes_rate_tensor(self, *, compiled: bool) -> bool:
        return self.capturable and self.foreach is not False


class Adagrad(Algorithm):
    """Divides by the root of the sum of squared gradients, as `torch.optim.Adagrad`."""

    lr_decay: float = 0.0
    weight_decay: float = 0.0
    initial_accumulator_value: float = 0.0
    eps: float = 1e-10
    foreach: bool | None = None
    maximize: bool = False
    fused: bool | None = None

    function = staticmethod(adagrad)
    state_lists = ("sum", "step")
    accepts_sparse = True

    def create_state(self, parameter: Tensor, lr: Rate) -> State:
        start = _full_value(self.initial_accumulator_value, parameter)
        total = torch.full_like(parameter, start, memory_format=torch.preserve_format)
        return {"sum": total, "step": self.counter(parameter)}

    def parameter_problem(self, parameter: Tensor) -> str | None:
        return "torch has no fused Adagrad on a GPU; omit fused" if self.fused and parameter.is_cuda else None


class Adadelta(Algorithm):
    """Steps in the units of the parameter, as `torch.optim.Adadelta`; its usual learning rate is 1."""

    rho: float = 0.9
    eps: float = 1e-6
    weight_decay: float = 0.0
    foreach: bool | None = None
    capturable: bool = False
    maximize: bool = False

    function = staticmethod(adadelta)
    state_lists = ("square_avg", "acc_delta", "step")

    def takes_rate_tensor(self, *, compiled: bool) -> bool:
        return self.capturable and self.foreach is not False


class Adafactor(Algorithm):
    """Stores only row and column sums of the squares, as `torch.optim.Adafactor`: little memory for large matrices."""

    beta2_decay: float = -0.8
    eps: tuple[float | None, float] = (None, 1e-3)
    d: float = 1.0
    weight_decay: float = 0.0
    foreach: bool | None = None
    maximize: bool = False

    state_lists = ("row_var", "col_var", "variance", "step")
    needs_whole_parameter = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(all(eps is None or 0 <= eps < math.inf for eps in self.eps), "eps", "must be at least 0")
        self.require(self.d >= 1, "d", "must be at least 1")
        self.require(self.beta2_decay <= 0, "beta2_decay", "must be at most 0")

    def create_state(self, parameter: Tensor, lr: Rate) -> State:
        step = self.counter(parameter)
        if parameter.dim() < 2:
            return {"variance": zeros_like(parameter), "step": step}
        *batch, rows, columns = parameter.shape
        blank = torch.zeros((), dtype=parameter.dtype, device=parameter.device)  # whole, even for a sharded parameter
        return {
            "row_var": blank.new_zeros([*batch, rows, 1]),
            "col_var": blank.new_zeros([*batch, 1, columns]),
            "step": step,
        }

    def update(self, group: ParameterGroup, grads: list[Tensor], lr: Rate) -> None:
        arguments = self.arguments
        if arguments["eps1"] is None and torch.compiler.is_compiling():  # torch 2.11 does not look at the dtype there
            arguments = {**arguments, "eps1": torch.finfo(group.parameters[0].dtype).eps}
        lists: Any = [group.state[name] for name in self.state_lists]  # None where a parameter has no such state
        adafactor(group.parameters, grads, *lists, lr=lr, has_complex=group.has_complex, **arguments)

    def parameter_problem(self, parameter: Tensor) -> str | None:
        return "Adafactor does not support complex parameters" if parameter.is_complex() else None


class SGD(Algorithm):
    """Gradient descent with momentum, as `torch.optim.SGD`.

    >>> SGD(momentum=0.9).replace(nesterov=True) == SGD(momentum=0.9, nesterov=True)
    True
    """

    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    maximize: bool = False
    foreach: bool | None = None
    fused: bool | None = None

    state_lists = ("momentum_buffer",)
    accepts_sparse = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and (self.momentum <= 0 or self.dampening != 0):
            raise InvalidArgument("SGD: nesterov needs a momentum above 0 and no dampening")

    def state_names(self) -> tuple[str, ...]:
        return self.state_lists if self.momentum else ()

    def create_state(self, parameter: Tensor, lr: Rate) -> State:
        return {}  # the first gradient becomes the buffer, without dampening

    def takes_rate_tensor(self, *, compiled: bool) -> bool:
        return bool(self.fused) or compiled

    def update(self, group: ParameterGroup, grads: list[Tensor], lr: Rate) -> None:
        parameters, buffers = group.parameters, group.state.get("momentum_buffer", [])
        if self.nesterov:
            grads = without_shared_memory(grads)  # torch's foreach form adds the momentum into them
        if not self.fused or all(buffer is not None for buffer in buffers):
            self._call_torch(parameters, grads, buffers, lr)
            return
        # The fused form takes either only first steps, with None as a buffer, or only later ones.
        first = [position for position, buffer in enumerate(buffers) if buffer is None]
        later = [position for position, buffer in enumerate(buffers) if buffer is not None]
        for positions in (first, later):
            own = [buffers[position] for position in positions]
            own_parameters, own_grads = ([column[each] for each in positions] for column in (parameters, grads))
            self._call_torch(own_parameters, own_grads, own, lr)
            for position, buffer in zip(positions, own, strict=True):
                buffers[position] = buffer

    def update_fused(self, group: ParameterGroup, grads: list[Tensor], lr: Rate, skip: Tensor | None) -> bool:
        if skip is None or group.creates_state:  # a first step creates buffers
            return False
        grads = without_shared_memory(grads) if self.nesterov else grads
        columns = [group.parameters, grads, *group.state.values()]
        parameters, grads, *buffers = split_for_capture(columns, _SGD_LAUNCH)
        self._call_torch(parameters, grads, buffers[0] if buffers else [], lr, skip)
        return True

    def parameter_problem(self, parameter: Tensor) -> str | None:
        if not self.fused or parameter.device.type != "cpu" or parameter.dtype not in (torch.float16, torch.bfloat16):
            return None
        # Seen with torch 2.13: each full vector of the parameter keeps its value.
        return "torch's fused SGD does not update 16-bit parameters on a CPU; omit fused"

    def _call_torch(
        self, parameters: list[Tensor], grads: list[Tensor], buffers: list[Any], lr: Rate, skip: Tensor | None = None
    ) -> None:
        sparse = any_sparse(grads)
        sgd(parameters, grads, buffers, lr=lr, has_sparse_grad=sparse, found_inf=skip, **self.arguments)  # pyright: ignore[reportArgumentType]  torch takes tensors


class ASGD(Algorithm):
    """Averaged gradient descent, as `torch.optim.ASGD`; the average is the state `ax`."""

    lambd: float = 1e-4
    alpha: float = 0.75
    t0: float = 1e6
    weight_decay: float = 0.0
    foreach: bool | None = None
    maximize: bool = False
    capturable: bool = False

    function = staticmethod(asgd)
    state_lists = ("ax", "mu", "eta", "step")

    def create_state(self, parameter: Tensor, lr: Rate) -> State:
        return {
            "ax": zeros_like(parameter),
            "mu": self.counter(parameter, 1.0, on_device=True),
            "eta": self.counter(parameter, float(lr), on_device=True),
            "step": self.counter(parameter, on_device=True),
        }


class Rprop(Algorithm):
    """Steps by the sign of the gradient, as `torch.optim.Rprop`.

    The learning rate of a parameter's first step is its initial step size; later learning rates have no effect.
    """

    etas: tuple[float, float] = (0.5, 1.2)
    step_sizes: tuple[float, float] = (1e-6, 50.0)
    capturable: bool = False
    foreach: bool | None = None
    maximize: bool = False

    state_lists = ("prev", "step_size", "step")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(0 < self.etas[0] < 1 < self.etas[1], "etas", "must be below and above 1")

    def create_state(self, parameter: Tensor, lr: Rate) -> State:
        step_size = torch.full_like(parameter, _full_value(float(lr), parameter))
        return {**super().create_state(parameter, lr), "step_size": step_size}

    def update(self, group: ParameterGroup, grads: list[Tensor], lr: Rate) -> None:
        lists: Any = [group.state[name] for name in self.state_lists]
        rprop(group.parameters, grads, *lists, has_complex=group.has_complex, **self.arguments)


class Muon(Algorithm):
    """Momentum that is orthogonalised before the step, as `torch.optim.Muon`; for matrices only.

    Other parameters need another algorithm: `init({"*.bias": AdamW(), "*": Muon()}, model)`.
    """

    weight_decay: float = 0.1
    momentum: float = 0.95
    nesterov: bool = True
    ns_coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315)
    eps: float = 1e-7
    ns_steps: int = 5
    adjust_lr_fn: str | None = None

    function = staticmethod(muon)
    state_lists = ("momentum_buffer",)
    needs_whole_parameter = True

    def __post_init__(self) -> None:
        super().__post_init__()
        known = self.adjust_lr_fn in (None, "original", "match_rms_adamw")
        self.require(known, "adjust_lr_fn", 'is "original", "match_rms_adamw" or None')
        self.require(self.ns_steps < 100, "ns_steps", "must be below 100")

    def parameter_problem(self, parameter: Tensor) -> str | None:
        if parameter.dim() == 2 and not parameter.is_complex():
            return None
        return (
            "Muon is for real matrices; use another algorithm for other parameters: "
            "optim.init({'*.bias': AdamW(), '*': Muon()}, model)"
        )


def _full_value(value: float, parameter: Tensor) -> complex | float:
    """What torch fills the state of a parameter with: both parts of a complex one get the value."""
    return complex(value, value) if parameter.is_complex() else value


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
