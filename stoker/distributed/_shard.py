"""A model in shards: which of its modules are gathered at once, and torch's FSDP2 on them, in place."""

from typing import Any

import torch
from torch import nn

from stoker.distributed._join import device_of, grouped
from stoker.distributed._parallel import Classes, Parallel
from stoker.distributed._world import World
from stoker.errors import InvalidArgument

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, None: None}
_CONTAINERS = (nn.ModuleList, nn.ModuleDict)  # they have no forward of their own
_WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule")


def is_sharded(model: nn.Module) -> bool:
    """Whether `fully_shard` has been at the model."""
    return any(_inherits(module, ("FSDPModule",)) for module in model.modules())


def is_distributed(model: nn.Module) -> bool:
    """Whether the model is distributed already: it has DTensors, or somebody has wrapped it for DDP or FSDP."""
    wrapped = any(_inherits(module, _WRAPPERS) for module in model.modules())
    return wrapped or any(_inherits(parameter, ("DTensor",)) for parameter in model.parameters())


def sharded(model: nn.Module, parallel: Parallel, world: World) -> None:
    """Shards a model in place, by torch's `fully_shard`, and recomputes activations where that is asked for.

    All ranks have the same weights before. A model that is sharded already is left as it is.
    """
    if is_sharded(model):
        return
    from torch.distributed._composable.checkpoint_activation import (
        checkpoint as recomputed,
    )  # keeps the names of parameters
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

    _check_layout(model)
    device = next((parameter.device for parameter in model.parameters()), device_of(world))
    grouped(device)
    blocks = blocks_of(model, parallel.wrap)
    again = parallel.recompute
    for module in blocks if again is True else _of_classes(model, again, "recompute") if again else ():
        recomputed(module)
    options: dict[str, Any] = {
        "mesh": _mesh(parallel, world, device),
        "reshard_after_forward": None if parallel.reshard else False,  # None: torch keeps the outermost gathered
        "mp_policy": MixedPrecisionPolicy(_DTYPES[parallel.param_dtype], _DTYPES[parallel.reduce_dtype]),
        "offload_policy": CPUOffloadPolicy(pin_memory=device.type == "cuda") if parallel.offload else OffloadPolicy(),
    }
    for module in (*reversed(blocks), model):  # inner before outer
        fully_shard(module, **options)


def _check_layout(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if not parameter.is_contiguous():
            raise InvalidArgument(
                f"{name} is not contiguous in memory (channels-last, say), and torch can't shard such parameters: "
                "model.to(memory_format=torch.contiguous_format) makes it so; inputs may stay channels-last"
            )


def blocks_of(model: nn.Module, wrap: Classes | int | None) -> list[nn.Module]:
    """The modules below a model that are gathered one at a time, outer before inner.

    >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 1))
    >>> blocks_of(model, None), blocks_of(model, 50)
    ([Linear(...), Linear(...), Linear(...)], [Linear(in_features=8, out_features=8, bias=True)])
    """
    if wrap is None:
        return _repeated(model)
    return _large(model, wrap) if isinstance(wrap, int) else _of_classes(model, wrap, "wrap")


def _of_classes(model: nn.Module, classes: Classes, argument: str) -> list[nn.Module]:
    found = [module for module in model.modules() if isinstance(module, classes) and module is not model]
    if not found:
        named = ", ".join(each.__name__ for each in (classes if isinstance(classes, tuple) else (classes,)))
        there = ", ".join(sorted({type(module).__name__ for module in model.modules()} - {type(model).__name__}))
        raise InvalidArgument(f"{argument}: the model has no module of class {named}; it has {there or 'none'}")
    return found


def _repeated(model: nn.Module) -> list[nn.Module]:
    """The children of lists and sequences that hold a class more than once, not looking inside them."""
    if isinstance(model, nn.ModuleList | nn.ModuleDict | nn.Sequential):
        heavy = [child for child in model.children() if next(child.parameters(), None) is not None]
        if len({type(child) for child in heavy}) < len(heavy) and not any(isinstance(c, _CONTAINERS) for c in heavy):
            return heavy
    return [block for child in model.children() for block in _repeated(child)]


def _large(model: nn.Module, least: int) -> list[nn.Module]:
    """The smallest modules that have so many parameters, not counting what is in others of them."""
    found: list[nn.Module] = []
    seen: set[int] = set()

    def left_in(module: nn.Module) -> int:
        own = [p for p in module.parameters(recurse=False) if id(p) not in seen]
        seen.update(map(id, own))
        rest = sum(p.numel() for p in own) + sum(left_in(child) for child in module.children())
        if rest < least or module is model or isinstance(module, _CONTAINERS):
            return rest
        found.insert(0, module)
        return 0

    left_in(model)
    return found


def _mesh(parallel: Parallel, world: World, device: torch.device) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    if parallel.mesh is None:
        return init_device_mesh(device.type, (world.size,), mesh_dim_names=("shard",))
    names = parallel.data_names
    if len(names) not in (1, 2):
        raise InvalidArgument(
            f'mode="fsdp" needs one dimension of the mesh that splits the batch, or two (replicas, then shards), and '
            f"not {', '.join(names) or 'none'}: say which with data="
        )
    return parallel.mesh[names]


def _inherits(thing: object, names: tuple[str, ...]) -> bool:
    """By name, because importing torch's distributed tensors takes half a second."""
    return any(base.__name__ in names for base in type(thing).__mro__)
