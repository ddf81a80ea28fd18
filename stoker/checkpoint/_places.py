"""Where a model keeps its tensors: every place by the name that it has in the user's own module."""

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from stoker._select import WRAPPERS
from stoker.errors import InvalidArgument


class Spot(NamedTuple):
    """One parameter or buffer of one module; a buffer may be None."""

    name: str  # in the model
    module: nn.Module
    key: str  # in the module
    tensor: Tensor | None


def named_modules(model: nn.Module, *, wrappers: bool = False) -> Iterator[tuple[str, nn.Module]]:
    """Every module once, in torch's order; a wrapper (`torch.compile`, DDP) has the name of what it holds."""
    yield from _walk(model, "", set(), wrappers)


def _walk(module: nn.Module, name: str, seen: set[int], wrappers: bool) -> Iterator[tuple[str, nn.Module]]:
    if id(module) in seen:
        return
    seen.add(id(module))
    inner = WRAPPERS.get(type(module).__name__)
    if inner is None or wrappers:
        yield name, module
    for key, child in module._modules.items():
        if child is not None:
            yield from _walk(child, name if key == inner else joined(name, key), seen, wrappers)


def joined(module: str, key: str) -> str:
    """The name in the model of what a module calls `key`."""
    return f"{module}.{key}" if module else key


def spots(model: nn.Module, of: Literal["_parameters", "_buffers"]) -> list[Spot]:
    """Every place of a parameter (but for those that are None), or of a buffer, a tied one as often as it stands."""
    found = [
        Spot(joined(name, key), module, key, tensor)
        for name, module in named_modules(model, wrappers=True)
        for key, tensor in getattr(module, of).items()
        if tensor is not None or of == "_buffers"
    ]
    for spot in found:
        if spot.tensor is not None:
            _refuse_odd(spot.name, spot.tensor)
    return found


def first_names(found: Iterable[Spot]) -> dict[str, str]:
    """For every name, the first one of the same tensor: its own, unless it is tied."""
    first: dict[int, str] = {}
    return {spot.name: first.setdefault(id(spot.tensor), spot.name) for spot in found if spot.tensor is not None}


def _refuse_odd(name: str, tensor: Tensor) -> None:
    if is_lazy(tensor):
        raise InvalidArgument(f"{name!r} has no shape yet (a lazy module); run one batch through the model first")
    if tensor.is_meta:
        raise InvalidArgument(
            f"{name!r} is on the meta device and has no values; model.to_empty(device=...) gives it some"
        )
