"""Sharding a model with torch's FSDP2, and the ranks among which a batch is split."""

import math
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from stoker.distributed._dtensor import is_dtensor
from stoker.distributed._join import ensure_group, local_device
from stoker.distributed._parallel import Classes, Parallel
from stoker.distributed._world import Group, World
from stoker.errors import InvalidArgument

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, None: None}
_CONTAINERS = (nn.ModuleList, nn.ModuleDict)  # they have no forward of their own
_WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule")


def is_sharded(model: nn.Module) -> bool:
    """Whether `fully_shard` was applied to the model."""
    return any(_inherits(module, ("FSDPModule",)) for module in model.modules())


def is_distributed(model: nn.Module) -> bool:
    """Whether the model has DTensors, or is wrapped for DDP or FSDP."""
    is_wrapped = any(_inherits(module, _WRAPPERS) for module in model.modules())
    return is_wrapped or any(is_dtensor(parameter) for parameter in model.parameters())


def _inherits(thing: object, names: tuple[str, ...]) -> bool:
    """By name, because importing torch's distributed tensors takes half a second."""
    return any(base.__name__ in names for base in type(thing).__mro__)


def shard_model(model: nn.Module, parallel: Parallel, world: World) -> None:
    """Shards a model in place with torch's `fully_shard`, and sets up recomputation of activations.

    All ranks must have the same weights. A model that is sharded already is left as it is.
    """
    if is_sharded(model):
        return
    # This one keeps the names of parameters.
    from torch.distributed._composable.checkpoint_activation import checkpoint as recompute
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

    _check_memory_format(model)
    device = next((parameter.device for parameter in model.parameters()), local_device(world))
    ensure_group(device)
    blocks = find_blocks(model, parallel.wrap)
    if parallel.recompute is True:
        recomputed = blocks
    else:
        recomputed = _find_classes(model, parallel.recompute, "recompute") if parallel.recompute else []
    for module in recomputed:
        recompute(module)
    options: dict[str, Any] = {
        "mesh": _sharding_mesh(parallel, world, device),
        "reshard_after_forward": None if parallel.reshard else False,  # None: torch keeps the outermost one gathered
        "mp_policy": MixedPrecisionPolicy(_DTYPES[parallel.param_dtype], _DTYPES[parallel.reduce_dtype]),
        "offload_policy": CPUOffloadPolicy(pin_memory=device.type == "cuda") if parallel.offload else OffloadPolicy(),
    }
    for module in (*reversed(blocks), model):  # inner before outer
        fully_shard(module, **options)


def _check_memory_format(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if not parameter.is_contiguous():
            raise InvalidArgument(
                f"{name} is not contiguous in memory (channels-last, for example), and torch can't shard it: call "
                "model.to(memory_format=torch.contiguous_format) first; inputs may stay channels-last"
            )


def _sharding_mesh(parallel: Parallel, world: World, device: torch.device) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    if parallel.mesh is None:
        return init_device_mesh(device.type, (world.size,), mesh_dim_names=("shard",))
    names = parallel.data_names
    if len(names) not in (1, 2):
        raise InvalidArgument(
            f'mode="fsdp" needs one dimension of the mesh that splits the batch, or two (replicas, then shards), and '
            f"not {', '.join(names) or 'none'}: select them with data="
        )
    return parallel.mesh[names]


def find_blocks(model: nn.Module, wrap: Classes | int | None) -> list[nn.Module]:
    """The modules below a model that are gathered one at a time, outer before inner.

    >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 1))
    >>> find_blocks(model, None), find_blocks(model, 50)
    ([Linear(...), Linear(...), Linear(...)], [Linear(in_features=8, out_features=8, bias=True)])
    """
    if wrap is None:
        return _find_repeated(model)
    return _find_large(model, wrap) if isinstance(wrap, int) else _find_classes(model, wrap, "wrap")


def _find_classes(model: nn.Module, classes: Any, argument: str) -> list[nn.Module]:
    found = [module for module in model.modules() if isinstance(module, classes) and module is not model]
    if not found:
        expected = ", ".join(each.__name__ for each in (classes if isinstance(classes, tuple) else (classes,)))
        present = ", ".join(sorted({type(module).__name__ for module in model.modules()} - {type(model).__name__}))
        raise InvalidArgument(f"{argument}: the model has no module of class {expected}; it has {present or 'none'}")
    return found


def _find_repeated(model: nn.Module) -> list[nn.Module]:
    """The children of lists and sequences that hold a class more than once, without those inside of them."""
    if isinstance(model, nn.ModuleList | nn.ModuleDict | nn.Sequential):
        children = [child for child in model.children() if next(child.parameters(), None) is not None]
        repeats = len({type(child) for child in children}) < len(children)
        if repeats and not any(isinstance(child, _CONTAINERS) for child in children):
            return children
    return [block for child in model.children() for block in _find_repeated(child)]


def _find_large(model: nn.Module, least: int) -> list[nn.Module]:
    """The smallest modules with at least so many parameters, not counting those in other such modules."""
    found: list[nn.Module] = []
    seen: set[int] = set()

    def count_remaining(module: nn.Module) -> int:
        own = [p for p in module.parameters(recurse=False) if id(p) not in seen]
        seen.update(map(id, own))
        count = sum(p.numel() for p in own) + sum(count_remaining(child) for child in module.children())
        if count < least or module is model or isinstance(module, _CONTAINERS):
            return count
        found.insert(0, module)
        return 0

    count_remaining(model)
    return found


def data_world(world: World, parallel: Parallel) -> World:
    """The ranks among which a batch is split: all, or those along the mesh's data dimensions.

    Ranks that differ only along the other dimensions (tensor parallelism, for example) get the same rows.
    """
    if parallel.mesh is None or world.size == 1:
        return world
    names = list(parallel.mesh.mesh_dim_names)
    ranks = parallel.mesh.mesh
    if ranks.numel() != world.size:
        raise InvalidArgument(f"the mesh has {ranks.numel()} ranks, and there are {world.size}; it must have them all")
    along = [names.index(name) for name in parallel.data_names]
    across = [dimension for dimension in range(ranks.ndim) if dimension not in along]
    size = math.prod(ranks.shape[dimension] for dimension in along)
    if size == world.size:
        return world
    rows = ranks.permute(*across, *along).reshape(-1, size).tolist()
    own = next(row for row in rows if world.rank in row)
    timeout = timedelta(seconds=world.timeout)
    group, _ = dist.new_subgroups_by_enumeration(rows, timeout=timeout)
    control, _ = dist.new_subgroups_by_enumeration(rows, timeout=timeout, backend="gloo")
    return replace(world, rank=own.index(world.rank), size=size, group=group, control=Group(control))
