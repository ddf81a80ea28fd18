"""The sum of every process's gradients, with one `all_reduce` for each flat bucket of them."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

# What DDP uses; private. In C++, for they run at every update: a third of the time of `cat`, `split` and `view`.
from torch._utils import _flatten_dense_tensors as flatten
from torch._utils import _unflatten_dense_tensors as unflatten

from stoker._dispatch import NoGrad
from stoker.distributed import World, from_local, group_into_buckets, is_dtensor, to_local
from stoker.errors import InvalidArgument
from stoker.gradients._backward import match_layout
from stoker.gradients._gradients import as_scalar

Weight = float | Tensor

_PARTS = 3  # float32 numbers that hold a float64 number exactly
_OF_A_RANK = _PARTS + 1  # numbers that a process sends: its weight, and whether its loss is a sum


class FlatSum:
    """Adds up the gradients of all processes, each multiplied by a factor, and divides them by the sum of the weights.

    Every process sends zeros for a parameter without a gradient, so that the buffers are alike. Behind the gradients of
    the first bucket come numbers that all processes have to know: the weights, and which parameters have a gradient.
    Gradients travel as float32, or as float64 if a parameter has 64 bits: 16 bits would round the sums and the weights.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], world: World, bucket_mb: float) -> None:
        self.names = list(parameters)
        self._parameters, self._world = list(parameters.values()), world
        wide = (torch.float64, torch.complex128)
        self._dtype = torch.float64 if any(each.dtype in wide for each in self._parameters) else torch.float32
        stored = [to_local(each).detach() for each in self._parameters]
        real = [torch.view_as_real(each) if each.is_complex() else each for each in stored]
        # Of the shape and type that is sent, without memory
        self._zeros = [torch.zeros((), dtype=self._dtype, device=each.device).expand(each.shape) for each in real]
        self._buckets = list(group_into_buckets([each.device for each in real], self._zeros, bucket_mb)) or [[]]
        self._device = self._zeros[0].device if self._zeros else torch.device("cpu")
        self._plain = [
            type(each) is nn.Parameter and each.is_contiguous() and each.dtype == self._dtype
            for each in self._parameters
        ]
        self._numbers: tuple[Any, Tensor] | None = None  # those of the last call, and what they are made from

    def add_up(
        self, tensors: Mapping[str, Tensor], weight: Weight, factor: Weight, reduction: Literal["mean", "sum"]
    ) -> tuple[dict[str, Tensor], Weight]:
        """The mean (or sum), for parameters that any process has a gradient of, and the weight of all processes.

        A process with weight 0 counts for nothing, even if its gradients are NaN. If the weights are 0 everywhere, the
        result is zero. On a GPU this waits for the device only if a parameter has no gradient in this process.
        """
        with NoGrad():
            sent = self._prepare(tensors, weight)
            numbers = self._make_numbers(weight, tensors, is_sum=reduction == "sum")
            flats, waits = list[Tensor](), list[Callable[[], Any]]()
            for indices in self._buckets:
                own = [sent[index] for index in indices]
                if flats:
                    flat = gradients = flatten(own)
                else:
                    flat = flatten([*own, numbers])
                    gradients, numbers = flat.split_with_sizes((flat.numel() - numbers.numel(), numbers.numel()))
                _multiply(gradients, factor, weight)
                flats.append(gradients)
                waits.append(self._world.start_sum(flat))
            for wait in waits:
                wait()
            total, reduction = self._read_weight(numbers, reduction)
            if reduction == "mean":
                for gradients in flats:
                    gradients.div_(_divisor(total, gradients.device))
            return self._split(flats, self._read_reached(numbers, tensors)), total

    def _prepare(self, tensors: Mapping[str, Tensor], weight: Weight) -> list[Tensor]:
        """The gradients as they are sent: zeros for those that do not exist, or count for nothing."""
        if not isinstance(weight, Tensor) and weight == 0:
            return self._zeros
        found = list[Tensor]()
        for index, name in enumerate(self.names):
            tensor = tensors.get(name)
            if tensor is None:
                tensor = self._zeros[index]
            elif not (self._plain[index] and tensor.dtype is self._dtype and tensor.layout is torch.strided):
                tensor = to_local(tensor.to_dense() if tensor.is_sparse else tensor)
                tensor = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
                tensor = tensor.to(self._dtype)
            found.append(tensor)
        return found

    def _split(self, flats: list[Tensor], reached: list[bool]) -> dict[str, Tensor]:
        """The gradients by name: views of the buckets where a parameter is like them."""
        found: dict[int, Tensor] = {}
        for indices, flat in zip(self._buckets, flats, strict=True):
            parts = unflatten(flat, [self._zeros[index] for index in indices])
            for index, part in zip(indices, parts, strict=True):
                found[index] = part if self._plain[index] else _restore(part, self._parameters[index])
        return {name: found[index] for index, name in enumerate(self.names) if reached[index]}

    # --- the numbers behind the gradients

    def _make_numbers(self, weight: Weight, tensors: Mapping[str, Tensor], *, is_sum: bool) -> Tensor:
        """What is sent behind the gradients: [4 * processes + parameters].

        The weight of this process and whether its loss is a sum, among the zeros of the others; then 1 for each
        parameter with a gradient. Kept for the next batch, which has the same numbers unless the weight is a tensor.
        """
        size, is_tensor = _OF_A_RANK * self._world.size, isinstance(weight, Tensor)
        complete = len(tensors) == len(self.names)
        missing = () if complete else tuple(index for index, name in enumerate(self.names) if name not in tensors)
        made_from = (None if is_tensor else weight, missing, is_sum)
        if self._numbers is None or self._numbers[0] != made_from:
            numbers = torch.ones(size + len(self.names), dtype=self._dtype, device=self._device)
            numbers[:size] = 0
            numbers[_OF_A_RANK * self._world.rank + _PARTS] = is_sum
            for index in missing:
                numbers[size + index] = 0
            if not is_tensor:
                self._write_weight(numbers, as_tensor(weight, self._device))
            self._numbers = made_from, numbers
        numbers = self._numbers[1]
        if isinstance(weight, Tensor):
            numbers = numbers.clone()
            self._write_weight(numbers, as_tensor(weight, self._device))
        return numbers

    def _write_weight(self, numbers: Tensor, weight: Tensor) -> None:
        """Writes a float64 number as float32 numbers that add up to it exactly."""
        parts, rest = list[Tensor](), weight
        for _ in range(_PARTS):
            parts.append(rest.float())
            rest = rest - parts[-1]
        start = _OF_A_RANK * self._world.rank
        numbers[start : start + _PARTS] = torch.stack(parts)

    def _read_weight(self, numbers: Tensor, reduction: Literal["mean", "sum"]) -> tuple[Weight, Literal["mean", "sum"]]:
        """The weight of all processes, a number on the CPU; and the reduction of those whose weight is not 0.

        On a GPU that one is not read, which would wait for the device. Ranks that differ get different weights then,
        which is noticed at the end of the epoch.
        """
        of_ranks = numbers[: _OF_A_RANK * self._world.size].view(-1, _OF_A_RANK)
        if of_ranks.device.type != "cpu":
            return of_ranks[:, :_PARTS].sum(dtype=torch.float64), reduction
        rows = of_ranks.tolist()
        are_sums = {bool(is_sum) for *weight, is_sum in rows if any(weight)}
        if len(are_sums) > 1:
            raise different_reductions()
        if are_sums:
            reduction = "sum" if are_sums.pop() else "mean"
        return sum(sum(weight) for *weight, _ in rows), reduction

    def _read_reached(self, numbers: Tensor, tensors: Mapping[str, Tensor]) -> list[bool]:
        """Whether any process has a gradient for each parameter."""
        if len(tensors) == len(self.names):
            return [True] * len(self.names)
        return [count > 0 for count in numbers[_OF_A_RANK * self._world.size :].tolist()]


def different_reductions() -> InvalidArgument:
    return InvalidArgument(
        "the loss is a sum on some ranks and a mean on others, as far as their batches show: what shares weigh is not "
        "clear. Return an output with a .count from a step, or use the same loss function on every rank"
    )


def as_tensor(weight: Weight, device: torch.device) -> Tensor:
    """A weight as a float64 tensor, in which counts of tokens are exact."""
    if isinstance(weight, Tensor):
        return as_scalar(weight.detach(), "a weight").to(device, torch.float64)
    return torch.full((), weight, dtype=torch.float64, device=device)  # a copy from the host would synchronise


def _multiply(gradients: Tensor, factor: Weight, weight: Weight) -> None:
    """Multiplies gradients in place; those that count for nothing become zeros, even if they or the factor are NaN."""
    device, may_count = gradients.device, isinstance(weight, Tensor) or weight != 0
    if isinstance(factor, Tensor):
        factor = factor.to(device)
    if may_count and (isinstance(factor, Tensor) or factor != 1):
        gradients.mul_(factor)
    if isinstance(weight, Tensor):
        gradients.masked_fill_(weight.to(device) == 0, 0)


def _divisor(total: Weight, device: torch.device) -> Weight:
    if isinstance(total, Tensor):
        return torch.where(total == 0, 1, total).to(device)
    return total if total else 1


def _restore(whole: Tensor, parameter: nn.Parameter) -> Tensor:
    """A sum with its parameter's type and strides, sharded like it."""
    if parameter.is_complex():
        whole = torch.view_as_complex(whole.clone())  # it may start at an odd position
    whole = whole.to(parameter.dtype)
    return from_local(whole, parameter) if is_dtensor(parameter) else match_layout(whole, parameter)
