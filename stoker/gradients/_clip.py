"""Size and limits of many tensors at once, in torch's own arithmetic. Nothing here reads a value on the host."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from stoker.distributed import map_shards, reduce_shards
from stoker.errors import InvalidArgument


def total_norm(tensors: Sequence[Tensor], kind: float = 2.0) -> Tensor:
    """The norm over all elements of all tensors, as a 0-d tensor on the device: torch's, bit for bit.

    Of sharded tensors it is a collective.
    """
    totals = reduce_shards(tensors, lambda own: torch.nn.utils.get_total_norm(own, float(kind)))
    return totals[0] if len(totals) == 1 else torch.linalg.vector_norm(torch.stack(totals), float(kind))


def norm_factor(total: Tensor, limit: float) -> Tensor:
    """What to multiply with so that the norm is at most `limit`; 1 where it already is."""
    # The small number and the clamp, instead of a branch, are torch's: a branch would wait for the device.
    return torch.clamp(limit / (total + 1e-6), max=1.0)


def scaled(tensors: Sequence[Tensor], factor: float | Tensor) -> list[Tensor]:
    """Each tensor times a number or a 0-d tensor, as new tensors.

    New ones, because autograd may hand one tensor to two parameters, or hand out one that the user still holds.
    """
    return map_shards(tensors, lambda own: _scaled(own, factor))


def _scaled(tensors: list[Tensor], factor: float | Tensor) -> list[Tensor]:
    places = {tensor.device for tensor in tensors}
    factors: dict[Any, Any] = {place: factor.to(place) if isinstance(factor, Tensor) else factor for place in places}
    if len(places) == 1 and not torch.compiler.is_compiling() and not any(tensor.is_sparse for tensor in tensors):
        changed = torch._foreach_mul(tensors, factors[tensors[0].device])  # pyright: ignore[reportPrivateImportUsage]
    else:
        changed = [tensor * factors[tensor.device] for tensor in tensors]
    return [new.to(tensor.dtype) for new, tensor in zip(changed, tensors, strict=True)]


def clamped(tensors: Sequence[Tensor], limit: float) -> list[Tensor]:
    """Each element between -limit and limit, as new tensors."""
    return map_shards(
        tensors, lambda own: [on_values(each, lambda values: torch.clamp(values, -limit, limit)) for each in own]
    )


def finite(tensors: Sequence[Tensor]) -> Tensor:
    """Whether every element of every tensor is a number, as a 0-d boolean tensor on the device.

    Of sharded tensors it is a collective.
    """
    return torch.stack(reduce_shards(tensors, _finite_here)).all()


def _finite_here(tensors: Sequence[Tensor]) -> Tensor:
    verdicts = [torch.isfinite(tensor).all() for tensor in tensors]
    return torch.stack([verdict.to(verdicts[0].device) for verdict in verdicts]).all()


def positive(limit: float, name: str) -> float:
    """A limit as a float; one that isn't above zero is refused in the caller's words."""
    if not float(limit) > 0:
        raise InvalidArgument(f"{name} needs a limit above 0, got {limit!r}")
    return float(limit)


def single(value: Tensor, what: str) -> Tensor:
    """A tensor of one element without dimensions, so that it changes no shape; more elements are refused."""
    if value.numel() != 1:
        raise InvalidArgument(f"{what} is one number, got a tensor of shape {list(value.shape)}")
    return value.reshape(())


def on_values(tensor: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """A function of the elements, of a sparse tensor only of those that it stores."""
    if not tensor.is_sparse:
        return function(tensor)
    changed = tensor.coalesce().clone()
    changed.values().copy_(function(changed.values()))
    return changed
