"""Algorithms that divide by a running size of the gradient, without Adam's first moment."""

import torch
from torch import Tensor
from torch.optim._adafactor import adafactor  # torch exports the class only
from torch.optim.adadelta import adadelta
from torch.optim.adagrad import adagrad
from torch.optim.rmsprop import rmsprop

from stoker.optim._algorithm import Algorithm, Columns, Rate, State, any_sparse, counter, zeros


class RMSprop(Algorithm):
    """Divides by the root of the mean square, as `torch.optim.RMSprop`."""

    alpha: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0
    centered: bool = False
    capturable: bool = False
    foreach: bool | None = None
    maximize: bool = False

    def keeps(self) -> tuple[str, ...]:
        momentum = ("momentum_buffer",) if self.momentum > 0 else ()
        return ("step", "square_avg", *momentum, *(("grad_avg",) if self.centered else ()))

    def fresh(self, parameter: Tensor, lr: Rate) -> State:
        step = counter(parameter, on_device=self.capturable)
        return {"step": step} | {name: zeros(parameter) for name in self.keeps()[1:]}

    def update(
        self, parameters: list[Tensor], grads: list[Tensor], state: Columns, lr: Rate, *, has_complex: bool
    ) -> None:
        rmsprop(
            parameters,
            grads,
            state["square_avg"],
            state.get("grad_avg", []),
            state.get("momentum_buffer", []),
            state["step"],
            foreach=self.foreach,
            maximize=self.maximize,
            capturable=self.capturable,
            has_complex=has_complex,
            lr=lr,  # pyright: ignore[reportArgumentType]  torch takes tensors here
            alpha=self.alpha,
            eps=self.eps,
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            centered=self.centered,
        )


class Adagrad(Algorithm):
    """Divides by the root of the sum of squares, as `torch.optim.Adagrad`."""

    lr_decay: float = 0.0
    weight_decay: float = 0.0
    initial_accumulator_value: float = 0.0
    eps: float = 1e-10
    foreach: bool | None = None
    maximize: bool = False
    fused: bool | None = None

    takes_sparse = True

    def keeps(self) -> tuple[str, ...]:
        return ("step", "sum")

    def fresh(self, parameter: Tensor, lr: Rate) -> State:
        start = self.initial_accumulator_value
        value = complex(start, start) if parameter.is_complex() else start
        total = torch.full_like(parameter, value, memory_format=torch.preserve_format)
        return {"step": counter(parameter, fused=self.fused), "sum": total}

    def update(
        self, parameters: list[Tensor], grads: list[Tensor], state: Columns, lr: Rate, *, has_complex: bool
    ) -> None:
        adagrad(
            parameters,
            grads,
            state["sum"],
            state["step"],
            fused=self.fused,
            has_sparse_grad=any_sparse(grads),
            foreach=self.foreach,
            has_complex=has_complex,
            lr=lr,  # pyright: ignore[reportArgumentType]
            weight_decay=self.weight_decay,
            lr_decay=self.lr_decay,
            eps=self.eps,
            maximize=self.maximize,
        )

    def refusal(self, parameter: Tensor) -> str | None:
        return "torch has no fused Adagrad on a GPU; leave fused out" if self.fused and parameter.is_cuda else None


class Adadelta(Algorithm):
    """Steps in the units of the parameter, as `torch.optim.Adadelta`; its usual learning rate is 1."""

    rho: float = 0.9
    eps: float = 1e-6
    weight_decay: float = 0.0
    foreach: bool | None = None
    capturable: bool = False
    maximize: bool = False

    def keeps(self) -> tuple[str, ...]:
        return ("step", "square_avg", "acc_delta")

    def fresh(self, parameter: Tensor, lr: Rate) -> State:
        step = counter(parameter, on_device=self.capturable)
        return {"step": step, "square_avg": zeros(parameter), "acc_delta": zeros(parameter)}

    def update(
        self, parameters: list[Tensor], grads: list[Tensor], state: Columns, lr: Rate, *, has_complex: bool
    ) -> None:
        adadelta(
            parameters,
            grads,
            state["square_avg"],
            state["acc_delta"],
            state["step"],
            capturable=self.capturable,
            foreach=self.foreach,
            has_complex=has_complex,
            lr=lr,  # pyright: ignore[reportArgumentType]
            rho=self.rho,
            eps=self.eps,
            weight_decay=self.weight_decay,
            maximize=self.maximize,
        )


class Adafactor(Algorithm):
    """Keeps only row and column sums of the squares, as `torch.optim.Adafactor`: little memory for large matrices."""

    beta2_decay: float = -0.8
    eps: tuple[float | None, float] = (None, 1e-3)
    d: float = 1.0
    weight_decay: float = 0.0
    foreach: bool | None = None
    maximize: bool = False

    needs_whole = True

    def keeps(self) -> tuple[str, ...]:
        return ("step", "row_var", "col_var", "variance")

    def fresh(self, parameter: Tensor, lr: Rate) -> State:
        step = counter(parameter)
        if parameter.dim() < 2:
            return {"step": step, "variance": zeros(parameter)}
        *batch, rows, columns = parameter.shape
        blank = torch.zeros((), dtype=parameter.dtype, device=parameter.device)  # whole, also beside a sharded one
        return {
            "step": step,
            "row_var": blank.new_zeros([*batch, rows, 1]),
            "col_var": blank.new_zeros([*batch, 1, columns]),
        }

    def update(
        self, parameters: list[Tensor], grads: list[Tensor], state: Columns, lr: Rate, *, has_complex: bool
    ) -> None:
        least = self.eps[0]
        if least is None and torch.compiler.is_compiling():  # where torch 2.11 does not look at the type
            least = torch.finfo(parameters[0].dtype).eps
        adafactor(
            parameters,
            grads,
            state["row_var"],  # pyright: ignore[reportArgumentType]  None where a parameter has no rows
            state["col_var"],  # pyright: ignore[reportArgumentType]
            state["variance"],  # pyright: ignore[reportArgumentType]
            state["step"],
            foreach=self.foreach,
            has_complex=has_complex,
            d=self.d,
            lr=lr,
            beta2_decay=self.beta2_decay,
            weight_decay=self.weight_decay,
            eps1=least,  # pyright: ignore[reportArgumentType]  None: the type's own smallest step
            eps2=self.eps[1],
            maximize=self.maximize,
        )

    def refusal(self, parameter: Tensor) -> str | None:
        return "Adafactor does not take complex parameters" if parameter.is_complex() else None
