"""Dropout as compiled programs compute it on a CPU.

Inductor draws random numbers there one after the other. Here every element hashes its index with two seeds from torch's
generator, in 32-bit integer arithmetic that the compiler vectorises.
"""

import torch
from torch import Tensor

_BITS = 24  # of the hash that are compared with the probability
_ODD, _FIRST, _SECOND = -1640531535, -2048144789, -1028477387  # 32-bit constants of Knuth and of MurmurHash3


def fast_dropout(value: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """Computes torch's `native_dropout`: the tensor without the dropped elements, and the mask of those that stay.

    >>> out, mask = fast_dropout(torch.ones(1000), 0.25, True)
    >>> 650 < mask.sum() < 850, out.unique()
    (tensor(True), tensor([0.0000, 1.3333]))
    """
    if train is False or p == 0:
        return value.clone(), torch.ones_like(value, dtype=torch.bool)
    mask = draw_mask(value.shape, 1 - p)
    return value * mask * (0.0 if p == 1 else 1 / (1 - p)), mask


def draw_mask(shape: torch.Size, p: float) -> Tensor:
    """A mask whose elements are independently True with probability `p`."""
    if shape.numel() >= 2**31:
        return torch.rand(shape) < p
    seeds = [torch.randint(-(2**31), 2**31, (), dtype=torch.int32) for _ in range(2)]
    return hash_elements(shape, *seeds) < round(p * 2**_BITS)


def hash_elements(shape: torch.Size, first: Tensor, second: Tensor) -> Tensor:
    """Hashes the number of each element with two seeds; the results have `_BITS` bits."""
    index = torch.arange(shape.numel(), dtype=torch.int32).reshape(shape)
    # Not index * _ODD + first: inductor would make that a loop variable, and gcc assumes that none overflows.
    number = _mix_bits((index ^ first) * _ODD, 16, _FIRST) ^ second
    # Inductor writes a value out for each of its uses, so every round doubles the code before it: there are only three.
    number = _mix_bits(_mix_bits(number, 13, _SECOND), 16, _FIRST)
    return _shift_right(number, 32 - _BITS)  # a product mixes its upper bits best


def _mix_bits(number: Tensor, bits: int, factor: int) -> Tensor:
    """The upper bits go into the lower ones, and by the multiplication back into the upper ones."""
    return (number ^ _shift_right(number, bits)) * factor


def _shift_right(number: Tensor, bits: int) -> Tensor:
    """Shifts in zeros from the left, although the integers are signed."""
    return (number >> bits) & (2 ** (32 - bits) - 1)
