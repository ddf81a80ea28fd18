"""Adam and its relatives: moments of the gradient and of its square."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.adamax import adamax
from torch.optim.nadam import nadam
from torch.optim.radam import radam

from stoker.gradients import spread
from stoker.optim._algorithm import Algorithm, Columns, Rate, State, counter, zeros

_add_all: Any = torch._foreach_add_  # pyright: ignore[reportPrivateImportUsage]
_subtract_all: Any = torch._foreach_sub_  # pyright: ignore[reportPrivateImportUsage]
_adam: Any = torch._fused_adam_  # pyright: ignore[reportPrivateImportUsage]
_adamw: Any = torch._fused_adamw_  # pyright: ignore[reportPrivateImportUsage]

_MOST = 30  # parameters that the fused kernels take in one launch, at least

_FOREACH_RATE = (
    "with foreach=True torch needs a number: give float(lr), or leave foreach out (on a GPU: capturable=True)"
)


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

    def keeps(self) -> tuple[str, ...]:
        return ("step", "exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if self.amsgrad else ()))

    def fresh(self, parameter: Tensor, lr: Rate) -> State:
        step = counter(parameter, fused=self.fused, on_device=self.capturable)
        return {"step": step} | {name: zeros(parameter) for name in self.keeps()[1:]}

    def update(
        self, parameters: list[Tensor], grads: list[Tensor], state: Columns, lr: Rate, *, has_complex: bool
    ) -> None:
        self._apply(parameters, grads, state, lr, has_complex=has_complex)

    def skippable(self, parameters: list[Tensor], grads: list[Tensor], state: Columns, lr: Rate, skip: Tensor) -> bool:
        kinds = {(each.device, each.dtype) for each in (*parameters, *grads)}
        places = {parameters[0].device, skip.device} | ({lr.device} if isinstance(lr, Tensor) and lr.is_cuda else set())
        if len(kinds) > 1 or len(places) > 1:  # torch sorts them, and moves what is elsewhere
            self._apply(parameters, grads, state, lr, has_complex=False, skip=skip)  # nothing complex is fused
            return True
        _add_all(state["step"], 1)
        self._fused(spread([parameters, grads, *(state[name] for name in self.keeps())], _MOST), lr, skip)
        _subtract_all(state["step"], [skip] * len(parameters))
        return True

    def _apply(
        self,
        parameters: list[Tensor],
        grads: list[Tensor],
        state: Columns,
        lr: Rate,
        *,
        has_complex: bool,
        skip: Any = None,
    ) -> None:
        adam(
            parameters,
            grads,
            state["exp_avg"],
            state["exp_avg_sq"],
            state.get("max_exp_avg_sq", []),
            state["step"],
            foreach=self.foreach,
            capturable=self.capturable,
            fused=self.fused,
            has_complex=has_complex,
            decoupled_weight_decay=self.decoupled_weight_decay,
            amsgrad=self.amsgrad,
            beta1=self.betas[0],
            beta2=self.betas[1],
            lr=lr,
            weight_decay=self.weight_decay,
            eps=self.eps,
            maximize=self.maximize,
            found_inf=skip,
        )

    def at_once(self, parameters: list[Tensor], grads: list[Tensor], state: Columns, lr: float) -> bool:
        _add_all(state["step"], 1)
        self._fused([parameters, grads, *(state[name] for name in self.keeps())], lr)
        return True

    def _fused(self, columns: Sequence[list[Tensor]], lr: Rate, skip: Tensor | None = None) -> None:
        """The kernel alone, on parameters of one kind."""
        parameters, grads, steps, means, squares, *largest = columns
        kernel = _adamw if self.decoupled_weight_decay else _adam
        kernel(
            parameters,
            grads,
            means,
            squares,
            largest[0] if largest else [],
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

    def rate_refusal(self) -> str | None:
        return _FOREACH_RATE if self.foreach and not self.capturable else None


class AdamW(Algorithm):
    """Adam with weight decay that is decoupled from the gradient, as `torch.optim.AdamW`."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 1e-2
    amsgrad: bool = False
    maximize: bool = False
    foreach: bool | None = None
    capturable: bool = False
    fused: bool | None = None

    decoupled_weight_decay: ClassVar[bool] = True
    # All else is Adam's, as in torch.
    keeps = Adam.keeps  # pyright: ignore[reportAssignmentType]
    fresh = Adam.fresh  # pyright: ignore[reportAssignmentType]
    update = Adam.update  # pyright: ignore[reportAssignmentType]
    skippable = Adam.skippable  # pyright: ignore[reportAssignmentType]
    _apply = Adam._apply  # pyright: ignore[reportAssignmentType]
    at_once = Adam.at_once  # pyright: ignore[reportAssignmentType]
    _fused = Adam._fused  # pyright: ignore[reportAssignmentType]
    rate_refusal = Adam.rate_refusal  # pyright: ignore[reportAssignmentType]


class Adamax(Algorithm):
    """Adam with the largest gradient in place of the second moment, as `torch.optim.Adamax`."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    foreach: bool | None = None
    maximize: bool = False
    capturable: bool = False

    def keeps(self) -> tuple[str, ...]:
        return ("step", "exp_avg", "exp_inf")

    def fresh(self, parameter: Tensor, lr: Rate) -> State:
        step = counter(parameter, on_device=self.capturable)
        return {"step": step, "exp_avg": zeros(parameter), "exp_inf": zeros(parameter)}

    def update(
        self, parameters: list[Tensor], grads: list[Tensor], state: Columns, lr: Rate, *, has_complex: bool
    ) -> None:
        adamax(
            parameters,
            grads,
            state["exp_avg"],
            state["exp_inf"],
            state["step"],
            foreach=self.foreach,
            maximize=self.maximize,
            capturable=self.capturable,
            has_complex=has_complex,
            eps=self.eps,
            beta1=self.betas[0],
            beta2=self.betas[1],
            lr=lr,  # pyright: ignore[reportArgumentType]  torch takes tensors here
            weight_decay=self.weight_decay,
        )


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

    def keeps(self) -> tuple[str, ...]:
        return ("step", "mu_product", "exp_avg", "exp_avg_sq")

    def fresh(self, parameter: Tensor, lr: Rate) -> State:
        return {
            "step": counter(parameter, on_device=self.capturable),
            "mu_product": counter(parameter, on_device=self.capturable, value=1.0),
            "exp_avg": zeros(parameter),
            "exp_avg_sq": zeros(parameter),
        }

    def update(
        self, parameters: list[Tensor], grads: list[Tensor], state: Columns, lr: Rate, *, has_complex: bool
    ) -> None:
        nadam(
            parameters,
            grads,
            state["exp_avg"],
            state["exp_avg_sq"],
            state["mu_product"],
            state["step"],
            decoupled_weight_decay=self.decoupled_weight_decay,
            foreach=self.foreach,
            capturable=self.capturable,
            has_complex=has_complex,
            maximize=self.maximize,
            beta1=self.betas[0],
            beta2=self.betas[1],
            lr=lr,  # pyright: ignore[reportArgumentType]
            weight_decay=self.weight_decay,
            momentum_decay=self.momentum_decay,
            eps=self.eps,
        )


class RAdam(Algorithm):
    """Adam that trusts its second moment only once it is known well, as `torch.optim.RAdam`."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled_weight_decay: bool = False
    foreach: bool | None = None
    maximize: bool = False
    capturable: bool = False

    def keeps(self) -> tuple[str, ...]:
        return ("step", "exp_avg", "exp_avg_sq")

    def fresh(self, parameter: Tensor, lr: Rate) -> State:
        step = counter(parameter, on_device=self.capturable)
        return {"step": step, "exp_avg": zeros(parameter), "exp_avg_sq": zeros(parameter)}

    def update(
        self, parameters: list[Tensor], grads: list[Tensor], state: Columns, lr: Rate, *, has_complex: bool
    ) -> None:
        radam(
            parameters,
            grads,
            state["exp_avg"],
            state["exp_avg_sq"],
            state["step"],
            decoupled_weight_decay=self.decoupled_weight_decay,
            foreach=self.foreach,
            capturable=self.capturable,
            has_complex=has_complex,
            maximize=self.maximize,
            beta1=self.betas[0],
            beta2=self.betas[1],
            lr=lr,  # pyright: ignore[reportArgumentType]
            weight_decay=self.weight_decay,
            eps=self.eps,
        )
