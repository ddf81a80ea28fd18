"""Long tensors in parts: kernels over lists of tensors then keep the whole of a GPU busy, also with a small model."""

from collections.abc import Sequence
from itertools import repeat

import torch
from torch import Tensor

_BLOCK = 65536  # numbers of one tensor that a block of threads takes in such a kernel
_LEAST = 2048  # numbers that keep its threads busy at all


def spread(columns: Sequence[list[Tensor]], most: int) -> Sequence[list[Tensor]]:
    """The same memory as more and shorter tensors, while a CUDA graph is recorded, in which cutting costs nothing.

    - `columns`: parameters and what belongs to each, as gradients and moments; what is one number (a counter) goes
      with every part.
    - `most`: how many tensors such a kernel takes in one launch.
    """
    is_recorded = columns[0] and columns[0][0].is_cuda and torch.cuda.is_current_stream_capturing()
    return cut(columns, most) if is_recorded else columns


def cut(columns: Sequence[list[Tensor]], most: int) -> Sequence[list[Tensor]]:
    """Rows of at most `most` tensors, of about the same length where one was long; as they are where that is no gain.

    >>> parts, counters = cut([[torch.zeros(3, 2048), torch.zeros(5)], [torch.tensor(1.0), torch.tensor(2.0)]], 6)
    >>> [len(part) for part in parts], [counter.item() for counter in counters]
    ([2048, 2048, 2048, 5], [1.0, 1.0, 1.0, 2.0])
    """
    room = most - len(columns[0])
    length = _LEAST * -(-sum(each.numel() for each in columns[0]) // (_LEAST * room)) if room > 0 else _BLOCK
    if length >= _BLOCK:
        return columns
    rows: list[tuple[Tensor, ...]] = []
    for row in zip(*columns, strict=True):
        numbers = row[0].numel()
        if numbers > length and all(each.is_contiguous() for each in row):
            # Each column in parts, or again and again: the first one has as many as there are.
            parts = (each.view(-1).split(length) if each.numel() == numbers else repeat(each) for each in row)
            rows += zip(*parts, strict=False)
        else:
            rows.append(row)
    return [list(column) for column in zip(*rows, strict=True)]
