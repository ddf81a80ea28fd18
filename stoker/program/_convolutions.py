"""Convolutions of few channels in a compiled program on a GPU, where cuDNN's kernels leave most of the device idle.

Each function gives what the operation of torch gives, or `NotImplemented` where torch does better.
"""

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

_TAPS = 16  # numbers of a filter that is written out
_TERMS = 2**26  # of all sums together, which are not shared among the filters
_FEW = 288  # numbers of a filter whose gradients are products of matrices
_CHANNELS = 128  # filters that there may be then
_ROOM = 12 * 2**20  # numbers of the largest of those matrices: what a cache of 50 MB has room for


class _Way(NamedTuple):
    """How a filter goes over what it is given."""

    sizes: Sequence[int]  # of the filter
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]


def convolved(
    given: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    """`convolution` as a sum with a term for each number of a filter, which becomes a part of what is around it."""
    if transposed or groups != 1 or prod(weight.shape[1:]) > _TAPS or not _is_plain(given, stride):
        return NotImplemented
    ones = [1] * len(stride)
    patches = _patches(given, _Way(weight.shape[2:], stride, padding, dilation))
    if patches.numel() * len(weight) > _TERMS:
        return NotImplemented
    total: Any = 0 if bias is None else bias.view(1, -1, *ones)
    for channel, *place in product(*map(range, weight.shape[1:])):
        met = patches[(slice(None), channel, ..., *place)].unsqueeze(1)
        total = total + met * weight[(slice(None), channel, *place)].view(1, -1, *ones)
    return total


def convolved_back(
    grad: Tensor,
    given: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    wanted: Sequence[bool],
) -> Any:
    """`convolution_backward` as products of matrices, one of which has a row for what a filter meets at each place."""
    numbers, filters = prod(weight.shape[1:]), len(weight)
    is_few = 0 < filters <= _CHANNELS and numbers <= _FEW and grad.numel() * max(1, numbers / filters) <= _ROOM
    if transposed or groups != 1 or prod(stride) != 1 or not (is_few and _is_plain(given, stride) and _is_tf32()):
        return NotImplemented
    way = _Way(weight.shape[2:], stride, padding, dilation)
    of_given, of_weight, rows = None, None, grad.movedim(1, -1).reshape(-1, filters)
    if wanted[0]:
        columns = (rows @ weight.flatten(1)).view(len(grad), *grad.shape[2:], *weight.shape[1:])
        of_given = _folded(columns, way)
    if wanted[1]:
        patches = _patches(given, way).movedim(1, 1 + len(stride))
        of_weight = (rows.t() @ patches.reshape(-1, numbers)).view(weight.shape)
    return of_given, of_weight, grad.transpose(0, 1).flatten(1).sum(1) if wanted[2] else None


def pooled_back(grad: Tensor, given: Tensor) -> Any:
    """`_adaptive_avg_pool2d_backward` where all pools are of one size: to each number its share."""
    (high, wide), (rows, columns) = given.shape[-2:], grad.shape[-2:]
    if not grad.numel() or high % rows or wide % columns:
        return NotImplemented
    down, across = high // rows, wide // columns
    share = (grad / (down * across))[..., :, None, :, None]
    return share.expand(*grad.shape[:-1], down, columns, across).reshape(given.shape)


def _is_plain(given: Tensor, stride: Sequence[int]) -> bool:
    """Float32, for less precise types of which cuDNN has better kernels, and sums of sums would lose more."""
    return given.dtype == torch.float32 and given.dim() == 2 + len(stride)


def _is_tf32() -> bool:
    """Without it products of matrices are slower; and they may round only where convolutions may as well."""
    backends: Any = torch.backends
    return backends.cuda.matmul.fp32_precision == backends.cudnn.conv.fp32_precision == "tf32"


def _patches(given: Tensor, way: _Way) -> Tensor:
    """What a filter meets at each place of the output: (batch, channels, *output, *filter)."""
    if any(way.padding):
        given = F.pad(given, [side for each in reversed(way.padding) for side in (each, each)])
    for at, (size, stride, apart) in enumerate(zip(way.sizes, way.stride, way.dilation, strict=True), 2):
        given = given.unfold(at, apart * (size - 1) + 1, stride)[..., ::apart]
    return given


def _folded(columns: Tensor, way: _Way) -> Tensor:
    """Patches, (batch, *output, channels, *filter), added up where they came from, at strides of 1."""
    columns = columns.movedim(1 + len(way.sizes), 1)
    total: Any = 0
    for place in product(*map(range, way.sizes)):
        sides: list[int] = []
        for at, size, apart in zip(place, way.sizes, way.dilation, strict=True):
            sides = [at * apart, (size - 1 - at) * apart, *sides]  # the last dimension first
        total = total + F.pad(columns[(..., *place)], sides)
    for at, each in enumerate(way.padding, 2):
        total = total.narrow(at, each, total.shape[at] - 2 * each)
    return total
