"""Sharded tensors (`DTensor`) and ordinary ones behind the same functions.

Importing `torch.distributed.tensor` takes half a second, so it is imported only when there is a `DTensor`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from stoker.errors import InvalidArgument


def is_dtensor(tensor: Any) -> bool:
    """Whether a tensor is a `DTensor`: among torch's tensors only that class has this method."""
    return hasattr(tensor, "to_local")


def to_local(tensor: Any) -> Tensor:
    """The part of a tensor that this process stores, sharing its memory; an ordinary tensor is returned unchanged."""
    if not is_dtensor(tensor):
        return tensor
    with torch.no_grad():  # otherwise the result would be a node of the autograd graph
        return tensor.to_local()


def full_tensor(tensor: Any) -> Tensor:
    """The whole tensor without a graph; for a `DTensor` this is a collective."""
    return tensor.detach().full_tensor() if is_dtensor(tensor) else tensor


def from_local(local: Tensor, like: Any) -> Tensor:
    """A tensor sharded like `like` from this process's part of it; `local` itself if `like` is not a `DTensor`.

    The part keeps its dtype and device.
    """
    if not is_dtensor(like):
        return local
    from torch.distributed.tensor import DTensor

    # `_spec` and the constructor are private. `DTensor.from_local` would move the part to the mesh's device, which is
    # wrong for shards offloaded to the CPU.
    spec = like._spec
    if local.dtype != like.dtype:
        spec = replace(spec, tensor_meta=spec.tensor_meta._replace(dtype=local.dtype))
    return DTensor(local.detach(), spec, requires_grad=False)  # pyright: ignore[reportCallIssue]


def place_like(value: Any, like: Any) -> Tensor:
    """The value as a whole tensor or sharded like `like`, on the same mesh; may return `value` itself.

    Changing how a `DTensor` is sharded is a collective. Sharding a whole tensor, which every process has, is not.
    """
    if is_dtensor(value):
        if is_dtensor(like) and (value.device_mesh, value.placements) == (like.device_mesh, like.placements):
            return value
        value = value.full_tensor()
    if not is_dtensor(like):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def local_region(name: str, tensor: Any) -> tuple[slice, ...]:
    """The slices of the whole `DTensor` that this process stores; `name` is for the error if it is not one region."""
    if any(placement.is_partial() for placement in tensor.placements):
        raise InvalidArgument(
            f"{name!r} is a partial DTensor, whose parts have not been added up; redistribute it to Shard or Replicate"
        )
    (chunk,) = tensor.__create_chunk_list__()
    region = tuple(slice(start, start + size) for start, size in zip(chunk.offsets, chunk.sizes, strict=True))
    for dimension, rows in enumerate(region):
        if not _is_contiguous(tensor, dimension, rows):
            raise InvalidArgument(
                f"{name!r} is sharded twice along dimension {dimension}, and this process's rows are not contiguous; "
                "choose a size that the number of processes divides"
            )
    return region


def _is_contiguous(tensor: Any, dimension: int, rows: slice) -> bool:
    """Whether this process stores exactly these rows. With `_StridedShard` placements it may store others."""
    if not any("Strided" in type(placement).__name__ for placement in tensor.placements):
        return True
    from torch.distributed.tensor import Replicate, distribute_tensor

    def along(placement: Any) -> Any:
        if placement.is_replicate() or placement.dim != dimension:
            return Replicate()
        factor = getattr(placement, "split_factor", None)
        return type(placement)(0) if factor is None else type(placement)(0, split_factor=factor)

    numbers = torch.arange(tensor.shape[dimension], device=tensor.device_mesh.device_type)
    placements = [along(placement) for placement in tensor.placements]
    stored: Any = distribute_tensor(numbers, tensor.device_mesh, placements, src_data_rank=None)
    return bool(torch.equal(stored.to_local(), numbers[rows]))


def shard_like(name: str, whole: Tensor, like: Any) -> Tensor:
    """A whole tensor, which every process has, sharded like `like`: each process keeps a copy of its part.

    Unlike `place_like` it leaves the part on its device and refuses layouts that a checkpoint can't store.
    """
    return from_local(whole.detach()[local_region(name, like)].clone(), like)


def copy_into(name: str, target: Any, value: Any) -> None:
    """Writes a value into a tensor in place; either may be sharded. `name` is for errors."""
    if not is_dtensor(target):
        target.copy_(full_tensor(value))
    elif not is_dtensor(value):
        to_local(target).copy_(value[local_region(name, target)])
    else:
        same = value.placements == target.placements
        to_local(target).copy_(to_local(value if same else value.redistribute(placements=target.placements)))


def reshard(model: nn.Module) -> None:
    """Makes FSDP2 modules hold their shards again; after a forward without a backward they hold whole parameters."""
    for module in model.modules():
        if hasattr(module, "reshard") and hasattr(module, "unshard"):
            module.reshard()  # pyright: ignore[reportCallIssue]


def reduce_shards(tensors: Sequence[Tensor], number: Callable[[list[Tensor]], Tensor]) -> list[Tensor]:
    """Applies `number` to the elements of the ordinary tensors, and to each process's elements of sharded ones.

    Returns one 0-d tensor for the ordinary tensors and one per process and kind of sharding. The numbers of all
    processes are gathered, not reduced: every process then computes the same bits, and a maximum can't hide a NaN.
    """
    sharded: list[Any] = [tensor for tensor in tensors if is_dtensor(tensor)]
    ordinary = [tensor for tensor in tensors if not is_dtensor(tensor)] if sharded else tensors
    found = [number([stored_values(tensor) for tensor in ordinary])] if ordinary or not sharded else []
    groups: dict[Any, list[Any]] = {}
    for tensor in sharded:
        groups.setdefault((tensor.device_mesh, tensor.placements), []).append(tensor)
    for (mesh, placements), group in groups.items():
        # Without empty shards, which have no maximum.
        own = [local for tensor in group if (local := to_local(tensor)).numel()]
        result = number(own or [torch.zeros(1, dtype=group[0].dtype, device=to_local(group[0]).device)])
        found += _gather_numbers(result, mesh, placements).unbind()
    return found


def _gather_numbers(number: Tensor, mesh: Any, placements: Sequence[Any]) -> Tensor:
    """The numbers of all processes in one tensor; processes that store the same shard contribute one number."""
    from torch.distributed.tensor import DTensor, Replicate, Shard

    layout = [Replicate() if placement.is_replicate() else Shard(0) for placement in placements]
    value = number.to(torch.uint8) if number.dtype == torch.bool else number
    return DTensor.from_local(value.reshape(1), mesh, layout, run_check=False).full_tensor().to(number.dtype)


def map_shards(tensors: Sequence[Tensor], function: Callable[[list[Tensor]], list[Tensor]]) -> list[Tensor]:
    """Applies an elementwise function to a list of tensors, or to this process's parts of sharded ones.

    Much faster than the same operations on `DTensor`s, for which torch works out the sharding of every result.
    """
    if not any(map(is_dtensor, tensors)):
        return function(list(tensors))
    changed = function([to_local(tensor) for tensor in tensors])
    return [from_local(new, like) for new, like in zip(changed, tensors, strict=True)]


def stored_values(tensor: Tensor) -> Tensor:
    """The elements that a tensor stores: for a sparse tensor, its nonzero ones."""
    return tensor.coalesce().values() if tensor.is_sparse else tensor
