"""Gradient descent: plain, averaged, by sign, and orthogonalised."""

from typing import Any

import torch
from torch import Tensor
from torch.optim._muon import muon  # torch exports the class only
from torch.optim.asgd import asgd
from torch.optim.rprop import rprop
from torch.optim.sgd import sgd

from stoker.errors import InvalidArgument
from stoker.gradients import spread
from stoker.optim._algorithm import Algorithm, Columns, Rate, State, any_sparse, counter, number, unshared, zeros

_MOST = 48  # parameters that the fused kernel takes in one launch, at least


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

    takes_sparse = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and (self.momentum <= 0 or self.dampening != 0):
            raise InvalidArgument("SGD: nesterov needs a momentum above 0 and no dampening")

    def keeps(self) -> tuple[str, ...]:
        return ("momentum_buffer",) if self.momentum else ()

    def fresh(self, parameter: Tensor, lr: Rate) -> State:
        return {}  # the first gradient becomes the buffer, undampened

    def update(
        self, parameters: list[Tensor], grads: list[Tensor], state: Columns, lr: Rate, *, has_complex: bool
    ) -> None:
        buffers: list[Any] = state.get("momentum_buffer", [])  # None where the first gradient is still to come
        if self.nesterov:
            grads = unshared(grads)  # torch's foreach form adds the momentum into them
        if not (self.fused and any(buffer is None for buffer in buffers)):
            self._apply(parameters, grads, buffers, lr)
            return
        # The fused form takes either first steps or later ones.
        first = [position for position, buffer in enumerate(buffers) if buffer is None]
        later = [position for position, buffer in enumerate(buffers) if buffer is not None]
        for some in (first, later):
            own = [buffers[each] for each in some]
            self._apply([parameters[each] for each in some], [grads[each] for each in some], own, lr)
            for position, buffer in zip(some, own, strict=True):
                buffers[position] = buffer

    def skippable(self, parameters: list[Tensor], grads: list[Tensor], state: Columns, lr: Rate, skip: Tensor) -> bool:
        buffers: list[Any] = state.get("momentum_buffer", [])
        if any(buffer is None for buffer in buffers):
            return False  # a first step makes them
        grads = unshared(grads) if self.nesterov else grads
        parameters, grads, *kept = spread([parameters, grads, *([buffers] if buffers else [])], _MOST)
        self._apply(parameters, grads, kept[0] if kept else [], lr, skip)
        return True

    def _apply(
        self, parameters: list[Tensor], grads: list[Tensor], buffers: list[Any], lr: Rate, skip: Tensor | None = None
    ) -> None:
        sgd(
            parameters,
            grads,
            buffers,
            has_sparse_grad=any_sparse(grads),
            foreach=self.foreach,
            fused=self.fused,
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            lr=lr,  # pyright: ignore[reportArgumentType]
            dampening=self.dampening,
            nesterov=self.nesterov,
            maximize=self.maximize,
            found_inf=skip,
        )


class ASGD(Algorithm):
    """Averaged gradient descent, as `torch.optim.ASGD`; the average is the state `ax`."""

    lambd: float = 1e-4
    alpha: float = 0.75
    t0: float = 1e6
    weight_decay: float = 0.0
    foreach: bool | None = None
    maximize: bool = False
    capturable: bool = False

    def keeps(self) -> tuple[str, ...]:
        return ("step", "eta", "mu", "ax")

    def fresh(self, parameter: Tensor, lr: Rate) -> State:
        return {
            "step": counter(parameter, on_device=True),
            "eta": counter(parameter, on_device=True, value=number(lr)),
            "mu": counter(parameter, on_device=True, value=1.0),
            "ax": zeros(parameter),
        }

    def update(
        self, parameters: list[Tensor], grads: list[Tensor], state: Columns, lr: Rate, *, has_complex: bool
    ) -> None:
        asgd(
            parameters,
            grads,
            state["ax"],
            state["mu"],
            state["eta"],
            state["step"],
            foreach=self.foreach,
            maximize=self.maximize,
            capturable=self.capturable,
            has_complex=has_complex,
            lambd=self.lambd,
            lr=lr,  # pyright: ignore[reportArgumentType]
            t0=self.t0,
            alpha=self.alpha,
            weight_decay=self.weight_decay,
        )


class Rprop(Algorithm):
    """Steps by the sign of the gradient, as `torch.optim.Rprop`.

    The learning rate of a parameter's first step is where its step size starts; later ones change nothing.
    """

    etas: tuple[float, float] = (0.5, 1.2)
    step_sizes: tuple[float, float] = (1e-6, 50.0)
    capturable: bool = False
    foreach: bool | None = None
    maximize: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.etas[0] < 1 < self.etas[1]:
            raise InvalidArgument(f"Rprop: etas must be below and above 1, got {self.etas!r}")

    def keeps(self) -> tuple[str, ...]:
        return ("step", "prev", "step_size")

    def fresh(self, parameter: Tensor, lr: Rate) -> State:
        size = number(lr)
        return {
            "step": counter(parameter, on_device=self.capturable),
            "prev": zeros(parameter),
            "step_size": torch.full_like(parameter, complex(size, size) if parameter.is_complex() else size),
        }

    def update(
        self, parameters: list[Tensor], grads: list[Tensor], state: Columns, lr: Rate, *, has_complex: bool
    ) -> None:
        rprop(
            parameters,
            grads,
            state["prev"],
            state["step_size"],
            state["step"],
            foreach=self.foreach,
            capturable=self.capturable,
            maximize=self.maximize,
            has_complex=has_complex,
            step_size_min=self.step_sizes[0],
            step_size_max=self.step_sizes[1],
            etaminus=self.etas[0],
            etaplus=self.etas[1],
        )


class Muon(Algorithm):
    """Momentum whose matrix is orthogonalised before the step, as `torch.optim.Muon`; for matrices only.

    Other parameters go to another algorithm: `init({"*.bias": AdamW(), "*": Muon()}, model)`.
    """

    weight_decay: float = 0.1
    momentum: float = 0.95
    nesterov: bool = True
    ns_coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315)
    eps: float = 1e-7
    ns_steps: int = 5
    adjust_lr_fn: str | None = None

    needs_whole = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.adjust_lr_fn not in (None, "original", "match_rms_adamw"):
            raise InvalidArgument(
                f'Muon: adjust_lr_fn is "original", "match_rms_adamw" or None, got {self.adjust_lr_fn!r}'
            )

    def keeps(self) -> tuple[str, ...]:
        return ("momentum_buffer",)

    def fresh(self, parameter: Tensor, lr: Rate) -> State:
        return {"momentum_buffer": zeros(parameter)}

    def update(
        self, parameters: list[Tensor], grads: list[Tensor], state: Columns, lr: Rate, *, has_complex: bool
    ) -> None:
        muon(
            parameters,
            grads,
            state["momentum_buffer"],
            lr=lr,  # pyright: ignore[reportArgumentType]
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            nesterov=self.nesterov,
            ns_coefficients=self.ns_coefficients,
            ns_steps=self.ns_steps,
            eps=self.eps,
            adjust_lr_fn=self.adjust_lr_fn,
            has_complex=has_complex,
        )

    def refusal(self, parameter: Tensor) -> str | None:
        if parameter.dim() == 2 and not parameter.is_complex():
            return None
        return (
            "Muon is for real matrices; give the rest to another: optim.init({'*.bias': AdamW(), '*': Muon()}, model)"
        )
