"""Tensors of many processes, by parameter, added up in few messages."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from stoker.distributed import World, from_local, is_dtensor, to_local
from stoker.gradients._accumulate import widened
from stoker.gradients._backward import owned
from stoker.gradients._parts import are_same, check_same, marks_of


def summed(
    tensors: Mapping[str, Tensor],
    parameters: Mapping[str, nn.Parameter],
    world: World,
    *,
    bucket_mb: float = 25,
    wide: bool = False,
    part: str | None = None,
) -> dict[str, Tensor]:
    """Every process's tensors, added up; what only some of them have counts as zero in the others.

    `wide` says that they are sums, which are kept in 32 bits where the parameter has 16. `part` is what they are the
    gradients of, where that is a part of the model; all processes have to be at the same.
    """
    flags = torch.tensor([*marks_of(part), *(name in tensors for name in parameters)])
    added = world.sum(flags).tolist()
    marks, counts = added[:2], added[2:]
    if not are_same(marks, world):
        check_same(part, world)
    held = [name for name, count in zip(parameters, counts, strict=True) if count]
    own = [to_local(tensors[name] if name in tensors else _zeros(parameters[name], wide)) for name in held]
    totals = world.summed(own, bucket_mb=bucket_mb)
    return {name: _laid(total, parameters[name]) for name, total in zip(held, totals, strict=True)}


def own_values(tensor: Tensor) -> Tensor:
    """A dense copy of a gradient, of a sharded one of the part that is here."""
    return tensor.detach().to_dense() if tensor.is_sparse else to_local(tensor).detach().clone()


def _zeros(parameter: nn.Parameter, wide: bool) -> Tensor:
    zeros = torch.zeros_like(parameter, requires_grad=False)
    return widened(zeros) if wide else zeros


def _laid(total: Tensor, parameter: nn.Parameter) -> Tensor:
    """A sum as its parameter lies: in its order of memory, and sharded as it is."""
    return from_local(total, parameter) if is_dtensor(parameter) else owned(total, parameter)
