"""How many samples a batch holds."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from stoker._tree import first_tensor


def count_samples(value: Any, size: int | None = None) -> int:
    """The number of samples in a batch: the length of its first tensor; 1 if it has none.

    >>> import torch
    >>> count_samples(torch.ones(7, 4, 2)), count_samples(torch.ones(7, 4, 2), size=4)
    (7, 4)
    >>> count_samples(([torch.ones(3, 8, 8), torch.ones(3, 9, 6)], [{"boxes": torch.ones(5, 4)}] * 2))
    2

    Lists with one entry per sample are recognised: images or sequences of different sizes, mappings, text. So are
    batches of graphs (`num_graphs`), packed sequences and nested tensors.

    `size` is the number that the loader put into the batch. It is used if the batch has time in its first dimension
    and samples in its second, or no tensors. (A transform may have dropped samples, so it is not always right.)
    """
    first = value[0] if type(value) is tuple and value else value
    if size is None and type(first) is Tensor and first.dim():
        return first.size(0)
    rows = first if isinstance(first, Tensor) else _find_rows(value, size)
    if isinstance(rows, int):
        return rows
    if rows is None or not rows.dim():
        return 1 if size is None else size
    if size is None or rows.is_nested:
        return rows.size(0)
    is_time_first = len(rows) != size and rows.shape[1:2] == (size,)
    return rows.shape[1] if is_time_first else len(rows)


def _find_rows(value: Any, size: int | None, *, is_part: bool = False) -> Tensor | int | None:
    """The tensor that has a row for each sample; or the number of samples, if something else says it.

    `is_part`: the value is a part of a batch, and not the batch itself, whose entries may be parts.
    """
    if isinstance(value, Tensor):
        return value
    if isinstance(value, PackedSequence):
        return int(value.batch_sizes[0])
    graphs = getattr(value, "num_graphs", None)  # of a torch_geometric Batch
    if isinstance(graphs, int):
        return graphs
    if isinstance(value, tuple | list):
        if is_one_per_sample(value, size, is_part=is_part):
            return len(value)
        # In (images, targets), the images may all have 3 channels; then the targets say that these are lists.
        if value and isinstance(value[0], tuple | list):
            lists = [part for part in value if isinstance(part, tuple | list) and len(part) == len(value[0])]
            if any(is_one_per_sample(part, size, is_part=True) for part in lists):
                return len(value[0])
        parts = value
    else:
        parts = list(value.values()) if isinstance(value, Mapping) else ()
    found = (_find_rows(part, size, is_part=True) for part in parts)
    return next((rows for rows in found if rows is not None), None) if parts else first_tensor(value)


def is_one_per_sample(entries: tuple[Any, ...] | list[Any], size: int | None = None, *, is_part: bool = False) -> bool:
    """Whether a list has one entry per sample, and is not a list of parts with a row per sample each.

    `is_part`: it is a part of a batch, and not the batch itself.
    """
    if not entries:
        return False
    if all(isinstance(entry, Tensor) and entry.dim() for entry in entries):
        lengths = {entry.size(0) for entry in entries}
        if len(lengths) == 1:  # as many rows, or images with as many channels
            return len(entries) == size and size not in lengths
        return isinstance(entries, list) and len({entry.dim() for entry in entries}) == 1
    if all(isinstance(entry, Mapping) for entry in entries):
        if size is not None and len(entries) != size and all(_has_rows(entry, size) for entry in entries):
            return False  # pairs of texts, for example, each with a row per sample
        keys = {tuple(entry.keys()) for entry in entries}
        if len(keys) != 1 or is_part:
            return len(keys) == 1
        if size is None and isinstance(entries, tuple):  # predictions and targets of the same tasks
            firsts = [first_tensor(entry) for entry in entries]
            return len({None if each is None else each.shape[:1] for each in firsts}) > 1
        return len(entries) > 1
    has_leaves = all(_is_leaf(entry) for entry in entries)
    return has_leaves and (is_part or isinstance(entries, list))


def _has_rows(entry: Mapping[Any, Any], count: int) -> bool:
    tensors = [part for part in entry.values() if isinstance(part, Tensor) and part.dim()]
    return bool(tensors) and all(tensor.size(0) == count for tensor in tensors)


def _is_leaf(entry: Any) -> bool:
    return (not isinstance(entry, tuple | list | Mapping) and first_tensor(entry) is None) or (
        isinstance(entry, Tensor) and not entry.dim()
    )
