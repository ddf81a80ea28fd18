"""The dtypes of the three precisions, and casts that report numbers which do not fit."""

import torch
from torch import Tensor

PRECISIONS = ("full", "half", "double")

_FLOAT8 = {
    *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz),
    torch.float8_e8m0fnu,
}


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
    problem = "is too large for" if rounding else "cannot be represented in"
    return made, f"{value} {problem} {str(dtype).removeprefix('torch.')}"


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
