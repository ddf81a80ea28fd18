"""Splits long tensors, so that kernels over lists of tensors keep a whole GPU busy, also for a small model."""

from collections.abc import Sequence
from itertools import repeat

import torch
from torch import Tensor

_BLOCK = 65536  # elements of one tensor that a block of threads processes in such a kernel
_LEAST = 2048  # elements that keep its threads busy


def split_for_capture(columns: Sequence[list[Tensor]], most: int) -> Sequence[list[Tensor]]:
    """The same memory as more and shorter tensors while a CUDA graph is captured; otherwise unchanged.

    In a captured graph the splitting itself costs nothing.

    - `columns`: parameters and what belongs to each, such as gradients and moments. A tensor of one element (a counter)
      is repeated for every part.
    - `most`: how many tensors such a kernel takes in one launch.
    """
    is_captured = columns[0] and columns[0][0].is_cuda and torch.cuda.is_current_stream_capturing()
    return split_long(columns, most) if is_captured else columns


def split_long(columns: Sequence[list[Tensor]], most: int) -> Sequence[list[Tensor]]:
    """At most `most` rows, the long ones split into parts of about the same length; unchanged if that gains nothing.

    >>> columns = [[torch.zeros(3, 2048), torch.zeros(5)], [torch.tensor(1.0), torch.tensor(2.0)]]
    >>> parts, counters = split_long(columns, 6)
    >>> [len(part) for part in parts], [counter.item() for counter in counters]
    ([2048, 2048, 2048, 5], [1.0, 1.0, 1.0, 2.0])
    """
    free = most - len(columns[0])
    length = _LEAST * -(-sum(each.numel() for each in columns[0]) // (_LEAST * free)) if free > 0 else _BLOCK
    if length >= _BLOCK:
        return columns
    rows: list[tuple[Tensor, ...]] = []
    for row in zip(*columns, strict=True):
        elements = row[0].numel()
        if elements > length and all(each.is_contiguous() for each in row):
            parts = (each.view(-1).split(length) if each.numel() == elements else repeat(each) for each in row)
            rows += zip(*parts, strict=False)  # the first column decides how many parts there are
        else:
            rows.append(row)
    return [list(column) for column in zip(*rows, strict=True)]
