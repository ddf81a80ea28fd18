"""Tensors that are sharded over several processes (DTensor): the part that is here, where it belongs, and the whole.

Nothing of torch's is imported before there is such a tensor: its DTensor takes half a second.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from stoker.errors import InvalidArgument


def is_sharded(tensor: Tensor) -> bool:
    """Whether a tensor is spread over several processes; DTensor alone has this method."""
    return hasattr(tensor, "full_tensor")


def local_of(tensor: Tensor) -> Tensor:
    """The part of a tensor that is here, in the same memory; all of it where it is not sharded."""
    sharded: Any = tensor
    return sharded.detach().to_local() if is_sharded(tensor) else tensor


def whole_of(tensor: Tensor) -> Tensor:
    """All of a tensor; every process that holds a part of it has to ask."""
    sharded: Any = tensor
    return sharded.detach().full_tensor() if is_sharded(tensor) else tensor


def region_of(name: str, tensor: Tensor) -> tuple[slice, ...]:
    """Where the part that is here stands in the whole; what is a sum still to be made, or in pieces, is refused."""
    found: Any = tensor
    if any(placement.is_partial() for placement in found.placements):
        raise InvalidArgument(f"{name!r} is a sum that its processes have not made yet (a partial DTensor)")
    (chunk,) = found.__create_chunk_list__()
    region = tuple(slice(start, start + size) for start, size in zip(chunk.offsets, chunk.sizes, strict=True))
    for dimension, place in enumerate(region):
        if not _in_a_row(found, dimension, place):
            raise InvalidArgument(
                f"{name!r} is sharded twice along dimension {dimension} in parts that are not in a row: "
                "choose a size that all of its processes divide"
            )
    return region


def _in_a_row(tensor: Any, dimension: int, place: slice) -> bool:
    """Whether this process holds these rows. Only sharding over sharding, in reverse order, may hold others."""
    if not any("Strided" in type(placement).__name__ for placement in tensor.placements):
        return True
    from torch.distributed.tensor import Replicate, distribute_tensor

    rows = torch.arange(tensor.shape[dimension], device=tensor.device_mesh.device_type)
    placements = [_along(placement, dimension) or Replicate() for placement in tensor.placements]
    held: Any = distribute_tensor(rows, tensor.device_mesh, placements, src_data_rank=None)
    return bool(torch.equal(held.to_local(), rows[place]))


def _along(placement: Any, dimension: int) -> Any:
    """How rows are placed by what places a tensor; None where that splits another dimension."""
    if placement.is_replicate() or placement.dim != dimension:
        return None
    factor = getattr(placement, "split_factor", None)
    return type(placement)(0) if factor is None else type(placement)(0, split_factor=factor)


def with_local(local: Tensor, like: Tensor) -> Tensor:
    """A tensor that is sharded as another one is, of a part that is here; nothing is sent, checked or moved."""
    from torch.distributed.tensor import DTensor

    spec = like._spec  # pyright: ignore[reportAttributeAccessIssue]  from_local would move the part to the mesh's GPU
    if local.dtype != like.dtype:
        spec = replace(spec, tensor_meta=spec.tensor_meta._replace(dtype=local.dtype))
    return DTensor(local.detach(), spec, requires_grad=False)  # pyright: ignore[reportCallIssue]


def part_for(name: str, whole: Tensor, like: Tensor) -> Tensor:
    """A whole tensor, which every process has, sharded as another one is: each keeps a copy of its part."""
    return with_local(whole.detach()[region_of(name, like)].clone(), like)


def fill(name: str, target: Tensor, value: Tensor) -> None:
    """Writes a value into a tensor in place; either may be sharded, and of a whole one each process takes its part."""
    own: Any = target
    given: Any = value
    if not is_sharded(target):
        target.copy_(whole_of(value))
    elif not is_sharded(value):
        local_of(target).copy_(value[region_of(name, target)])
    else:
        alike = given.placements == own.placements
        local_of(target).copy_(local_of(given if alike else given.redistribute(placements=own.placements)))


def settle_shards(model: nn.Module) -> None:
    """Has FSDP put its shards back into place: after a forward without a backward, whole parameters may stand there."""
    for module in model.modules():
        if hasattr(module, "reshard") and hasattr(module, "unshard"):
            module.reshard()  # pyright: ignore[reportCallIssue]
