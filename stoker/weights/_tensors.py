"""The tensors that files hold: dtypes and shapes, those of a model by name, and casts that report what does not fit."""

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from stoker._select import WRAPPERS, Models, named_models
from stoker.distributed import is_dtensor, reshard, to_local
from stoker.errors import InvalidArgument

_FLOAT8 = {
    *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz),
    torch.float8_e8m0fnu,
}
# Every dtype that a file can hold, by its name in MessagePack and JSON files.
DTYPES: dict[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.bool, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
        *_FLOAT8,
    )
}
PRECISIONS = ("full", "half", "double")


@dataclass(frozen=True)
class Entry:
    """The dtype and shape of one stored tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.itemsize

    def __repr__(self) -> str:
        return f"{dtype_name(self.dtype)} {list(self.shape)}"


def dtype_name(dtype: torch.dtype) -> str:
    """`float32` for `torch.float32`."""
    return str(dtype).removeprefix("torch.")


def tensor_bytes(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor in CPU memory, without a copy."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def checksum(data: bytes | memoryview) -> str:
    """CRC-32 as eight hexadecimal digits."""
    return f"{zlib.crc32(data):08x}"


# --- The tensors of a model


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
            'so save its parts instead (a checkpoint leaves out frozen ones, unless it has frozen="save")'
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


# --- Casts


def dtype_at(precision: str, dtype: torch.dtype) -> torch.dtype:
    """The dtype in which a file of this precision stores a tensor.

    "half" never makes a tensor larger: dtypes of 16 bits or fewer stay, and complex numbers become complex64.
    """
    if precision == "full" or dtype == torch.bool:
        return dtype
    if precision == "double":
        return torch.complex128 if dtype.is_complex else torch.float64 if dtype.is_floating_point else torch.int64
    if dtype.is_complex:
        return torch.complex64
    if dtype.itemsize <= 2:
        return dtype
    return torch.float16 if dtype.is_floating_point else torch.int16


def cast(tensor: Tensor, dtype: torch.dtype) -> tuple[Tensor, str | None]:
    """Casts a CPU tensor; also returns a description of the first number that does not fit, or `None`.

    Floats may be rounded to other floats, but not to infinity. All other casts have to be exact.
    """
    if tensor.dtype == dtype:
        return tensor, None
    if tensor.is_complex() and not dtype.is_complex:
        return tensor, "complex numbers cannot be cast to real ones"
    made = tensor.to(dtype)
    rounding = _is_inexact(tensor.dtype) and _is_inexact(dtype) and dtype != torch.float8_e8m0fnu
    wrong = _overflows(tensor, made) if rounding else _differs(tensor, made)
    if not bool(wrong.any()):
        return made, None
    value = tensor[wrong].flatten()[:1].tolist()[0]
    return made, f"{value} {'is too large for' if rounding else 'cannot be represented in'} {dtype_name(dtype)}"


def _is_inexact(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _overflows(tensor: Tensor, made: Tensor) -> Tensor:
    """Marks finite numbers that became infinite, NaN or the largest number of the dtype."""
    before, after = _comparable(tensor), _comparable(made)
    wrong = torch.isfinite(before) & ~torch.isfinite(after)
    if made.dtype in _FLOAT8:  # some of these saturate
        wrong |= torch.isfinite(before) & (before.abs() > torch.finfo(made.dtype).max)
    return wrong


def _differs(tensor: Tensor, made: Tensor) -> Tensor:
    """Marks numbers that a cast back does not restore, or restores only because both casts wrap around."""
    before, after = _comparable(tensor), _comparable(made.real)
    wrong = _comparable(made.real.to(tensor.dtype)) != before
    if _is_inexact(tensor.dtype) and _is_inexact(made.dtype):
        return wrong & ~(before.isnan() & after.isnan())
    if not _is_inexact(tensor.dtype) and not _is_inexact(made.dtype):
        return wrong | (_is_negative(tensor) != _is_negative(made))
    # Infinities, and the float just above the largest integer, may be cast back to that integer.
    real, whole = (before, made) if _is_inexact(tensor.dtype) else (after, tensor)
    wrong |= ~real.isfinite()
    if whole.dtype.itemsize == 8:
        wrong |= real.double() >= (2.0**64 if whole.dtype == torch.uint64 else 2.0**63)
    return wrong


def _comparable(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in _FLOAT8 else tensor  # float8 has no comparisons


def _is_negative(tensor: Tensor) -> Tensor:
    return tensor < 0 if tensor.dtype.is_signed else torch.zeros(tensor.shape, dtype=torch.bool)
