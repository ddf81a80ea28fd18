"""Dropout in a compiled program on a CPU: its masks are drawn many elements at a time, not one after the other."""

import torch
from torch import Tensor

_BITS = 24  # of a hash that decide
_ODD, _FIRST, _SECOND = -1640531535, -2048144789, -1028477387  # 32-bit constants of Knuth and of MurmurHash3


def dropped(given: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """What torch's `native_dropout` gives: the tensor without the dropped elements, and the mask of those that stay.

    >>> out, mask = dropped(torch.ones(1000), 0.25, True)
    >>> 650 < mask.sum() < 850, out.unique()
    (tensor(True), tensor([0.0000, 1.3333]))
    """
    if train is False or p == 0:
        return given.clone(), torch.ones_like(given, dtype=torch.bool)
    mask = drawn(given.shape, 1 - p)
    return given * mask * (0.0 if p == 1 else 1 / (1 - p)), mask


def drawn(shape: torch.Size, p: float) -> Tensor:
    """A mask whose elements are True with probability `p`, each by itself.

    Every element hashes its number with two seeds, which come from torch's generator anew each time: whole numbers of
    32 bits, of which a compiler computes many at once.
    """
    if shape.numel() >= 2**31:
        return torch.rand(shape) < p
    seeds = [torch.randint(-(2**31), 2**31, (), dtype=torch.int32) for _ in range(2)]
    number = torch.arange(shape.numel(), dtype=torch.int32).reshape(shape)
    hashed = _mixed(_mixed(number * _ODD + seeds[0]) ^ seeds[1])
    return (hashed & (2**_BITS - 1)) < round(p * 2**_BITS)


def _mixed(number: Tensor) -> Tensor:
    """Every bit of the result depends on every bit of the number."""
    number = (number ^ _shifted(number, 16)) * _FIRST
    number = (number ^ _shifted(number, 13)) * _SECOND
    return number ^ _shifted(number, 16)


def _shifted(number: Tensor, bits: int) -> Tensor:
    """To the right, with zeros from the left: a whole number here has a sign."""
    return (number >> bits) & (2 ** (32 - bits) - 1)
