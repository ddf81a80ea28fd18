"""The tensors of a model that a weights file holds: parameters and persistent buffers, by the user's own names."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from stoker._select import WRAPPERS, Models, named_models
from stoker.distributed import is_dtensor, reshard, to_local
from stoker.errors import InvalidArgument
from stoker.weights._header import DTYPES, dtype_name


def model_tensors(model: Models) -> dict[str, Tensor]:
    """Every parameter and persistent buffer, in the model's order; a tied tensor appears under each of its names.

    Raises `InvalidArgument` for a tensor that cannot be saved or loaded.
    """
    tensors: dict[str, Tensor] = {}
    for key, each in named_models(model):
        reshard(each)
        tensors.update(_walk(each, "" if isinstance(model, nn.Module) else f"{key}."))
    for name, tensor in tensors.items():
        check_layout(name, to_local(tensor))
    return tensors


def _walk(module: nn.Module, prefix: str) -> Iterator[tuple[str, Tensor]]:
    if type(module).get_extra_state is not nn.Module.get_extra_state:
        raise InvalidArgument(
            f"{prefix.removesuffix('.') or type(module).__name__!r} has extra state (get_extra_state), "
            "but a weights file holds tensors only; keep it in a buffer, or save the other modules one by one"
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


def check_layout(name: str, tensor: Tensor) -> None:
    """Raises `InvalidArgument` for a tensor without dense numbers in memory."""
    if is_lazy(tensor):
        raise InvalidArgument(f"{name!r} has no shape yet (a lazy module); run one batch through the model first")
    if is_dtensor(tensor):
        raise InvalidArgument(
            f"{name!r} is sharded over several processes (DTensor); gather it with full_tensor() on every process"
        )
    if tensor.is_meta:
        raise InvalidArgument(
            f"{name!r} is on the meta device and has no values; allocate them with model.to_empty(device=...)"
        )
    if tensor.layout != torch.strided:
        raise InvalidArgument(f"{name!r} has the layout {tensor.layout}; weights files hold dense tensors only")
    if dtype_name(tensor.dtype) not in DTYPES:
        raise InvalidArgument(f"{name!r} has the dtype {tensor.dtype}, which weights files cannot hold")


def check_tensor(name: str, tensor: Tensor) -> None:
    """Raises `InvalidArgument` for a tensor that a file cannot hold: sparse, sharded, quantized or of a subclass."""
    check_layout(name, tensor)
    if type(tensor) not in (Tensor, nn.Parameter):
        raise InvalidArgument(
            f"{name!r} is a {type(tensor).__name__}, a subclass of Tensor; files hold plain tensors, "
            "so save its parts instead"
        )


def first_names(tensors: dict[str, Tensor]) -> dict[str, str]:
    """For every name the first name of the same memory: the name itself unless the tensor is tied."""
    first: dict[object, str] = {}
    return {name: first.setdefault(_identity(tensor), name) for name, tensor in tensors.items()}


def _identity(tensor: Tensor) -> object:
    if tensor.numel() == 0 or is_dtensor(tensor):  # no memory here that could be shared
        return id(tensor)
    view = tensor.dtype, tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg()
    return tensor.device, tensor.data_ptr(), *view
