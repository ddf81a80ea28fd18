"""From one dtype to another, saying so where that would change a number into a different one."""

import torch
from torch import Tensor

PRECISIONS = ("full", "half", "double")

_FLOAT8 = {
    *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz),
    torch.float8_e8m0fnu,
}


def at_precision(dtype: torch.dtype, precision: str) -> torch.dtype:
    """The dtype that a file holds for a tensor of this one.

    Half makes nothing larger: what has 16 bits or fewer stays as it is, and complex64 is the smallest complex one.
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
    """A tensor of the CPU in another dtype, and what is wrong with it there (`None` where nothing is).

    Floats may be rounded, as that is what a smaller float is for, but stay finite. Everything else is exact.
    """
    if tensor.dtype == dtype:
        return tensor, None
    if tensor.is_complex() and not dtype.is_complex:
        return tensor, "complex numbers don't fit into real ones"
    made = tensor.to(dtype)
    floats = _inexact(tensor.dtype) and _inexact(dtype) and dtype != torch.float8_e8m0fnu
    wrong = _overflows(tensor, made) if floats else _differs(tensor, made)
    if not bool(wrong.any()):
        return made, None
    value = tensor[wrong].flatten()[:1].tolist()[0]
    return made, f"{value} {'is too large for' if floats else 'is no'} {str(dtype).removeprefix('torch.')}"


def _inexact(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _overflows(tensor: Tensor, made: Tensor) -> Tensor:
    """Where a finite number became infinite or NaN, or was cut to the largest there is."""
    before, after = _plain(tensor), _plain(made)
    finite = torch.isfinite(before)
    wrong = finite & ~torch.isfinite(after)
    if made.dtype in _FLOAT8:  # some of them saturate
        wrong |= finite & (before.abs() > torch.finfo(made.dtype).max)
    return wrong


def _differs(tensor: Tensor, made: Tensor) -> Tensor:
    """Where the way there and back gives another number, or gives the same one only because it wraps both ways."""
    before, after = _plain(tensor), _plain(made.real)
    wrong = _plain(made.real.to(tensor.dtype)) != before
    if _inexact(tensor.dtype) and _inexact(made.dtype):
        return wrong & ~(before.isnan() & after.isnan())
    if not _inexact(tensor.dtype) and not _inexact(made.dtype):
        return wrong | (_negative(tensor) != _negative(made))
    # An infinity, and the float just above the largest integer, may come back as the integer at that end.
    real, whole = (before, made) if _inexact(tensor.dtype) else (after, tensor)
    wrong |= ~real.isfinite()
    if whole.dtype.itemsize == 8:
        wrong |= real.double() >= (2.0**64 if whole.dtype == torch.uint64 else 2.0**63)
    return wrong


def _plain(tensor: Tensor) -> Tensor:
    """The same numbers in a dtype that can be compared."""
    return tensor.float() if tensor.dtype in _FLOAT8 else tensor


def _negative(tensor: Tensor) -> Tensor:
    if tensor.dtype.is_signed:
        return tensor < 0
    return torch.zeros(tensor.shape, dtype=torch.bool)
