"""Numbers about tensors of which each process holds a part (`DTensor`), and about whole ones, in one way."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def over_shards(tensors: Sequence[Tensor], number: Callable[[list[Tensor]], Tensor]) -> list[Tensor]:
    """A number about the tensors that are here, and one about each process's part of those that are sharded.

    Numbers of all processes are gathered, not reduced: all come to the same bits, and a NaN is not lost in a maximum.
    """
    sharded: list[Any] = [tensor for tensor in tensors if is_dtensor(tensor)]
    here = (
        [values_of(tensor) for tensor in tensors if not is_dtensor(tensor)] if sharded else [*map(values_of, tensors)]
    )
    found = [number(here)] if here or not sharded else []
    groups: dict[Any, list[Any]] = {}
    for tensor in sharded:
        groups.setdefault((tensor.device_mesh, tensor.placements), []).append(tensor)
    for (mesh, placements), group in groups.items():
        # Elements only: a shard may be empty, of which torch knows no largest one.
        with torch.no_grad():
            own = [local for each in group if (local := each.to_local()).numel()]
        result = number(own or [torch.zeros(1, dtype=group[0].dtype, device=group[0].to_local().device)])
        found += _everyones(result, mesh, placements).unbind()
    return found


def on_shards(tensors: Sequence[Tensor], function: Callable[[list[Tensor]], list[Tensor]]) -> list[Tensor]:
    """New tensors in the place of all of these, in kind and shape as they are; of a sharded one, in place of its part.

    Element by element only: nobody is asked for the others' parts. torch's own way is slower by a lot: it works out how
    the result lies over the processes, for each tensor anew.
    """
    if not any(map(is_dtensor, tensors)):
        return function(list(tensors))
    with torch.no_grad():
        found = function([local_of(tensor) for tensor in tensors])
    return [_as(like, new) for like, new in zip(tensors, found, strict=True)]


def _as(like: Any, local: Tensor) -> Tensor:
    return type(like)(local, like._spec, requires_grad=False) if is_dtensor(like) else local


def _everyones(number: Tensor, mesh: Any, placements: Sequence[Any]) -> Tensor:
    """The numbers of all processes that hold a part, in one tensor; of those that hold the same part, one."""
    from torch.distributed.tensor import DTensor, Replicate, Shard

    spread = [Replicate() if placement.is_replicate() else Shard(0) for placement in placements]
    flag = number.to(torch.uint8) if number.dtype == torch.bool else number
    return DTensor.from_local(flag.reshape(1), mesh, spread, run_check=False).full_tensor().to(number.dtype)


def is_dtensor(tensor: Any) -> bool:
    """Whether a tensor is one of many processes, asked without importing what that takes."""
    return hasattr(tensor, "to_local")


def local_of(tensor: Any) -> Tensor:
    """What this process holds of a tensor, with its memory: all of it, or its shard."""
    return tensor.to_local() if is_dtensor(tensor) else tensor


def from_local(local: Tensor, like: Any) -> Tensor:
    """What each process holds of a tensor that is sharded as `like` is, as that tensor; `local` where it isn't."""
    if not is_dtensor(like):
        return local
    from torch.distributed.tensor import DTensor

    layout = {"shape": like.shape, "stride": like.stride()}
    return DTensor.from_local(local, like.device_mesh, like.placements, run_check=False, **layout)


def placed_as(value: Any, like: Any) -> Tensor:
    """A tensor as `like` lies over the processes, whole or sharded; it may be the same one.

    Where a sharded tensor has to be sharded in another way, it is a collective.
    """
    if is_dtensor(value):
        if is_dtensor(like) and (value.device_mesh, value.placements) == (like.device_mesh, like.placements):
            return value
        value = value.full_tensor()
    if not is_dtensor(like):
        return value
    from torch.distributed.tensor import distribute_tensor

    # Every process has all of it and takes its own part: nothing is sent.
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def values_of(tensor: Tensor) -> Tensor:
    """The elements that a tensor stores: of a sparse one, those that are not zero."""
    return tensor.coalesce().values() if tensor.is_sparse else tensor
