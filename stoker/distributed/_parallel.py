"""What a user says about training with many processes: replicas or shards, and how."""

from dataclasses import dataclass, fields
from typing import Any, Literal, cast, get_args

from torch import nn

from stoker.errors import InvalidArgument, WrongType, did_you_mean

Classes = type[nn.Module] | tuple[type[nn.Module], ...]
Mode = Literal["auto", "ddp", "fsdp"]

_CHOICES = {"mode": get_args(Mode), "param_dtype": (None, "bf16", "fp16"), "reduce_dtype": (None, "fp32", "bf16")}
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
    - `recompute`: computes the activations of these classes (True: of what is wrapped) again in the backward pass.
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
    bucket_mb: int = 25
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
    for each in classes:
        if not (isinstance(each, type) and issubclass(each, nn.Module)):
            raise WrongType(f"{name} has to be classes of modules such as nn.TransformerEncoderLayer, not {each!r}")


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
