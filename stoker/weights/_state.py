"""What a model has to save: its parameters and persistent buffers, by the user's own names."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from stoker._select import WRAPPERS, Models, named_models
from stoker.errors import InvalidArgument
from stoker.weights._head import DTYPES, dtype_name
from stoker.weights._sharded import is_sharded, local_of, settle_shards


def state(model: Models) -> dict[str, Tensor]:
    """Every place that holds a tensor, a tied one as often as it stands, in the model's order.

    What can't be kept in a file, or filled out of one, is an error that names it.
    """
    if isinstance(model, nn.Module):
        settle_shards(model)
        found = dict(_walk(model, ""))
    else:
        for _, each in named_models(model):
            settle_shards(each)
        found = {name: tensor for key, each in named_models(model) for name, tensor in _walk(each, f"{key}.")}
    for name, tensor in found.items():
        refuse_odd(name, local_of(tensor))
    return found


def _walk(module: nn.Module, prefix: str) -> Iterator[tuple[str, Tensor]]:
    if type(module).get_extra_state is not nn.Module.get_extra_state:
        raise InvalidArgument(
            f"{prefix.removesuffix('.') or type(module).__name__!r} has extra state of its own (get_extra_state), "
            "and a weights file holds tensors only; keep that as a buffer, or save the other parts one by one"
        )
    for name, parameter in module._parameters.items():
        if parameter is not None:
            yield prefix + name, parameter
    for name, buffer in module._buffers.items():
        if buffer is not None and name not in module._non_persistent_buffers_set:
            yield prefix + name, buffer
    inner = WRAPPERS.get(type(module).__name__)
    for name, child in module._modules.items():
        if child is not None:
            yield from _walk(child, prefix if name == inner else f"{prefix}{name}.")


def refuse_odd(name: str, tensor: Tensor) -> None:
    """An error for a tensor that has no plain numbers to save or to fill."""
    if is_lazy(tensor):
        raise InvalidArgument(f"{name!r} has no shape yet (a lazy module); run one batch through the model first")
    if is_sharded(tensor):
        raise InvalidArgument(
            f"{name!r} is sharded over several processes (DTensor); gather it with full_tensor() on every process"
        )
    if tensor.is_meta:
        raise InvalidArgument(
            f"{name!r} is on the meta device and has no values; model.to_empty(device=...) gives it some"
        )
    if tensor.layout != torch.strided:
        raise InvalidArgument(f"{name!r} is a tensor of the layout {tensor.layout}; weights files hold dense ones only")
    if dtype_name(tensor.dtype) not in DTYPES:
        raise InvalidArgument(f"{name!r} has the dtype {tensor.dtype}, which weights files don't hold")


def owners(places: dict[str, Tensor]) -> dict[str, str]:
    """For every name, the first name that the same numbers in memory have; its own where it isn't tied."""
    first: dict[object, str] = {}
    return {name: first.setdefault(_identity(tensor), name) for name, tensor in places.items()}


def _identity(tensor: Tensor) -> object:
    if tensor.numel() == 0 or is_sharded(tensor):  # nothing in memory that could be shared, or not here
        return id(tensor)
    return (
        tensor.device,
        tensor.data_ptr(),
        tensor.dtype,
        tensor.shape,
        tensor.stride(),
        tensor.is_conj(),
        tensor.is_neg(),
    )
