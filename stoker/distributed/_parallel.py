"""How a model is trained by many processes: replicas, or shards of torch's FSDP2; and who splits the batch."""

import math
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Any, Literal, cast, get_args

import torch
import torch.distributed as dist
from torch import nn

from stoker.distributed._dtensor import is_dtensor
from stoker.distributed._join import ensure_group, local_device
from stoker.distributed._world import Group, World
from stoker.errors import InvalidArgument, WrongType, did_you_mean

Classes = type[nn.Module] | tuple[type[nn.Module], ...]
Mode = Literal["auto", "ddp", "fsdp"]

_CHOICES = {"mode": get_args(Mode), "param_dtype": (None, "bf16", "fp16"), "reduce_dtype": (None, "fp32", "bf16")}
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, None: None}
_CONTAINERS = (nn.ModuleList, nn.ModuleDict)  # they have no forward of their own
_WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule")
_FOR_FSDP = ("wrap", "param_dtype", "reduce_dtype", "reshard", "offload", "recompute")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """How a model is trained by many processes.

    >>> Parallel(mode="fsdp", wrap=nn.TransformerEncoderLayer, param_dtype="bf16", recompute=True).reshard
    True

    - `mode`: "ddp" gives every process the whole model, "fsdp" a shard of it. "auto" leaves a model that is distributed
      already as it is, and otherwise uses "ddp" if there are several processes.
    - `wrap`: what FSDP gathers at once: modules of these classes, or modules with at least so many parameters; None:
      the repeated blocks of the model.
    - `param_dtype`, `reduce_dtype`: the dtypes in which FSDP computes and adds up gradients; None: the parameters'.
    - `reshard`: frees a block's parameters after its forward; False needs more memory and fewer messages.
    - `offload`: keeps shards on the CPU between uses.
    - `recompute`: as in `Learner`, for classes of modules; True: for what is wrapped.
    - `mesh`, `data`: a device mesh, and the names of its dimensions that split the batch; None: all but tp, cp and pp.
    - `bucket_mb`: the approximate size of the messages in which gradients are sent.
    - `timeout`: seconds that a rank waits for the others; None: 600.
    """

    mode: Mode = "auto"
    wrap: Classes | int | None = None
    param_dtype: Literal["bf16", "fp16"] | None = None
    reduce_dtype: Literal["fp32", "bf16"] | None = None
    reshard: bool = True
    offload: bool = False
    recompute: Classes | bool = False
    mesh: Any = None
    data: tuple[str, ...] | None = None
    bucket_mb: float = 25
    timeout: float | None = None

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            _check_choice(name, getattr(self, name), choices)
        if self.mode != "fsdp":
            for field in fields(self):
                if field.name in _FOR_FSDP and getattr(self, field.name) != field.default:
                    raise InvalidArgument(f'{field.name} needs mode="fsdp", and the mode is "{self.mode}"')
        for name in ("bucket_mb", "timeout"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not value > 0):
                raise InvalidArgument(f"{name} has to be more than 0, not {value!r}")
        if isinstance(self.wrap, int):
            if isinstance(self.wrap, bool) or self.wrap < 1:
                raise InvalidArgument(f"wrap has to be module classes or a number of parameters, not {self.wrap}")
        elif self.wrap is not None:
            _check_classes("wrap", self.wrap)
        if not isinstance(self.recompute, bool):
            _check_classes("recompute", self.recompute)
        _check_mesh(self.mesh, self.data)

    @property
    def data_names(self) -> tuple[str, ...]:
        """The dimensions of the mesh that split the batch."""
        names = tuple(self.mesh.mesh_dim_names or ()) if self.mesh is not None else ()
        return self.data or tuple(name for name in names if name not in ("tp", "cp", "pp"))


def as_parallel(value: str | Parallel) -> Parallel:
    """A `Parallel` from a mode or a `Parallel`.

    >>> as_parallel("ddp").mode
    'ddp'
    """
    if isinstance(value, Parallel):
        return value
    if not isinstance(value, str):
        raise WrongType(f'parallel has to be "auto", "ddp", "fsdp" or a stoker.Parallel, not {value!r}')
    _check_choice("parallel", value, get_args(Mode))
    return Parallel(mode=cast(Mode, value))


def _check_choice(name: str, value: object, choices: tuple[Any, ...]) -> None:
    if value in choices:
        return
    words = [choice for choice in choices if choice is not None]
    hint = did_you_mean(value, words) if isinstance(value, str) else ""
    listed = " or ".join(f'"{word}"' for word in words) + (" or None" if None in choices else "")
    raise InvalidArgument(f"{name} has to be {listed}, not {value!r}{hint}")


def _check_classes(name: str, value: object) -> None:
    classes = value if isinstance(value, tuple) else (value,)
    for kind in classes:
        if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
            raise WrongType(f"{name} has to be classes of modules such as nn.TransformerEncoderLayer, not {kind!r}")


def _check_mesh(mesh: Any, data: tuple[str, ...] | None) -> None:
    if isinstance(data, str):
        raise WrongType(f"data has to be a tuple of names, such as ({data!r},), not {data!r}")
    if mesh is None:
        if data is not None:
            raise InvalidArgument(f"data={data!r} names dimensions of a mesh, so it needs mesh=")
        return
    names = mesh.mesh_dim_names
    if not names:
        raise InvalidArgument('the dimensions of mesh have no names: make it with mesh_dim_names=("dp", "tp"), say')
    for name in data or ():
        if name not in names:
            raise InvalidArgument(f"data names {name!r}; the mesh has {', '.join(names)}{did_you_mean(name, names)}")


# --- sharding


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


def shard_model(model: nn.Module, parallel: Parallel, world: World, *, compile: bool = False) -> None:
    """Shards a model in place with torch's `fully_shard`; `compile`: compiles what each of its blocks computes.

    All ranks must have the same weights. A model that is sharded already is left as it is.
    """
    if is_sharded(model):
        return
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

    _check_memory_format(model)
    device = next((parameter.device for parameter in model.parameters()), local_device(world))
    ensure_group(device)
    blocks = find_blocks(model, parallel.wrap)
    options: dict[str, Any] = {
        "mesh": _sharding_mesh(parallel, world, device),
        "reshard_after_forward": None if parallel.reshard else False,  # None: torch keeps the outermost one gathered
        "mp_policy": MixedPrecisionPolicy(_DTYPES[parallel.param_dtype], _DTYPES[parallel.reduce_dtype]),
        "offload_policy": CPUOffloadPolicy(pin_memory=device.type == "cuda") if parallel.offload else OffloadPolicy(),
    }
    for module in (*reversed(blocks), model):  # inner before outer
        fully_shard(module, **options)
    if compile:
        for block in blocks:
            if not any(_inherits(part, ("FSDPModule",)) for part in block.modules() if part is not block):
                # One program for each size, by rules instead of timing: a resumed run gets the same ones.
                block.compile(dynamic=False, options={"deterministic": True})


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
        expected = ", ".join(kind.__name__ for kind in (classes if isinstance(classes, tuple) else (classes,)))
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
