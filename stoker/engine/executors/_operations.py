"""Operations that a compiled program uses instead of torch's, where they are faster.

- Dropout on a CPU: inductor draws random numbers one after the other. Here every element hashes its index with two
  seeds from torch's generator, in 32-bit integer arithmetic that the compiler vectorises.
- Convolutions of few channels on a GPU, where cuDNN's kernels leave most of the device idle. Each function computes
  what torch's operation computes, or returns `NotImplemented` where torch is faster. The choice depends on shapes
  alone, so that it is the same in every process.
"""

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

_BITS = 24  # of the hash that are compared with the probability
_ODD, _FIRST, _SECOND = -1640531535, -2048144789, -1028477387  # 32-bit constants of Knuth and of MurmurHash3
_MOST_TAPS = 16  # elements of a filter that is written out as a sum
_MOST_TERMS = 2**26  # of all sums together, which are not shared among the filters
_MOST_ELEMENTS = 288  # of a filter whose gradients are matrix products
_MOST_FILTERS = 128  # of a convolution whose gradients are matrix products
_LARGEST_MATRIX = 12 * 2**20  # elements: what fits into a cache of 50 MB


# --- dropout


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


# --- convolutions


class _Window(NamedTuple):
    """How a filter moves over its input."""

    sizes: Sequence[int]  # of the filter
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]


def convolution(
    value: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    """`aten.convolution` as a sum with a term for each filter element, which fuses with neighbouring operations."""
    if transposed or groups != 1 or prod(weight.shape[1:]) > _MOST_TAPS or not _is_float32(value, stride):
        return NotImplemented
    ones = [1] * len(stride)
    patches = _patches(value, _Window(weight.shape[2:], stride, padding, dilation))
    if patches.numel() * len(weight) > _MOST_TERMS:
        return NotImplemented
    total: Any = 0 if bias is None else bias.view(1, -1, *ones)
    for channel, *place in product(*map(range, weight.shape[1:])):
        seen = patches[(slice(None), channel, ..., *place)].unsqueeze(1)
        total = total + seen * weight[(slice(None), channel, *place)].view(1, -1, *ones)
    return total


def convolution_backward(
    grad: Tensor,
    value: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> Any:
    """`aten.convolution_backward` as matrix products, with a row for what a filter sees at each place."""
    elements, filters = prod(weight.shape[1:]), len(weight)
    is_small = 0 < filters <= _MOST_FILTERS and elements <= _MOST_ELEMENTS
    is_small = is_small and grad.numel() * max(1, elements / filters) <= _LARGEST_MATRIX
    if transposed or groups != 1 or prod(stride) != 1 or not (is_small and _is_float32(value, stride) and _is_tf32()):
        return NotImplemented
    window = _Window(weight.shape[2:], stride, padding, dilation)
    value_grad, weight_grad, rows = None, None, grad.movedim(1, -1).reshape(-1, filters)
    if output_mask[0]:
        columns = (rows @ weight.flatten(1)).view(len(grad), *grad.shape[2:], *weight.shape[1:])
        value_grad = _fold(columns, window)
    if output_mask[1]:
        patches = _patches(value, window).movedim(1, 1 + len(stride))
        weight_grad = (rows.t() @ patches.reshape(-1, elements)).view(weight.shape)
    return value_grad, weight_grad, grad.transpose(0, 1).flatten(1).sum(1) if output_mask[2] else None


def adaptive_pool_backward(grad: Tensor, value: Tensor) -> Any:
    """`aten._adaptive_avg_pool2d_backward` for pools of equal size: each element gets its share."""
    (height, width), (rows, columns) = value.shape[-2:], grad.shape[-2:]
    if not grad.numel() or height % rows or width % columns:
        return NotImplemented
    down, across = height // rows, width // columns
    share = (grad / (down * across))[..., :, None, :, None]
    return share.expand(*grad.shape[:-1], down, columns, across).reshape(value.shape)


def _is_float32(value: Tensor, stride: Sequence[int]) -> bool:
    """For 16-bit types cuDNN has better kernels, and sums of sums would lose more precision."""
    return value.dtype == torch.float32 and value.dim() == 2 + len(stride)


def _is_tf32() -> bool:
    """Without TF32 matrix products are slower; and they may round only where convolutions may as well."""
    backends: Any = torch.backends
    return backends.cuda.matmul.fp32_precision == backends.cudnn.conv.fp32_precision == "tf32"


def _patches(value: Tensor, window: _Window) -> Tensor:
    """What a filter sees at each place of the output: (batch, channels, *output, *filter)."""
    if any(window.padding):
        value = F.pad(value, [side for each in reversed(window.padding) for side in (each, each)])
    for dim, (size, stride, dilation) in enumerate(zip(window.sizes, window.stride, window.dilation, strict=True), 2):
        value = value.unfold(dim, dilation * (size - 1) + 1, stride)[..., ::dilation]
    return value


def _fold(columns: Tensor, window: _Window) -> Tensor:
    """Adds patches, (batch, *output, channels, *filter), where they came from; the stride is 1."""
    columns = columns.movedim(1 + len(window.sizes), 1)
    total: Any = 0
    for place in product(*map(range, window.sizes)):
        sides: list[int] = []
        for at, size, dilation in zip(place, window.sizes, window.dilation, strict=True):
            sides = [at * dilation, (size - 1 - at) * dilation, *sides]  # the last dimension first
        total = total + F.pad(columns[(..., *place)], sides)
    for dim, each in enumerate(window.padding, 2):
        total = total.narrow(dim, each, total.shape[dim] - 2 * each)
    return total
