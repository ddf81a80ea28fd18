"""Building blocks of metric states: exact sums, and rows that are stored until `compute`.

A sum is a float64 tensor that starts as a scalar and takes the shape of what is first added, so that a metric need not
know the number of classes. No function changes a tensor in place.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def widest_float(device: torch.device) -> torch.dtype:
    """The widest floating point type of a device."""
    return torch.float32 if device.type == "mps" else torch.float64


def zero_sum(device: torch.device) -> Tensor:
    """An empty sum; on the host for a device without float64, where adding then waits for the device."""
    return torch.zeros((), dtype=torch.float64, device="cpu" if device.type == "mps" else device)


def zero_count(device: torch.device) -> Tensor:
    """An empty count in int64, which adds in half the time of float64; adding weights turns it into a sum."""
    return torch.zeros((), dtype=torch.int64, device=zero_sum(device).device)


def add(total: Tensor, amount: Tensor | float, *, times: float = 1) -> Tensor:
    """The sum plus `amount * times`, in float64."""
    if isinstance(amount, Tensor):
        if amount.device != total.device:
            amount = amount.to(total.device)
        if amount.ndim or (total.dtype == torch.int64 and amount.is_floating_point()):
            amount = amount.to(torch.float64)
        return total + amount if times == 1 else torch.add(total, amount, alpha=times)
    if total.dtype == torch.float64:
        amount = float(amount)  # torch makes a tensor of an int and converts it
    return total + amount * times


def read(total: Tensor) -> Tensor:
    """The value of a sum in float64 on the host. Waits for the device."""
    return total.detach().cpu().double()


def ratio(numerator: Tensor, denominator: Tensor) -> float:
    """One sum divided by another; NaN if both are 0."""
    return (read(numerator) / read(denominator)).item()


def weighted_sum(values: Tensor, weights: Tensor | None) -> Tensor:
    """The sum of values times weights of the same shape (None: 1 each; bool: which values count).

    A value with weight 0 does not matter even if it is NaN: padding may contain anything.
    """
    if weights is None:
        return values.count_nonzero() if values.dtype == torch.bool else values.sum(dtype=widest_float(values.device))
    if weights.dtype == torch.bool:
        if values.dtype == torch.bool:
            return (values & weights).count_nonzero()
        return values.where(weights, 0).sum(dtype=widest_float(values.device))
    return (values * weights).where(weights != 0, 0).sum(dtype=widest_float(values.device))


def weighted_bincount(numbers: Tensor, weights: Tensor, length: int) -> Tensor:
    """The sum of the weights of each number. `torch.bincount` would wait for the device."""
    return torch.zeros(length, dtype=weights.dtype, device=weights.device).index_add(0, numbers, weights)


# --- rows
# A state has chunks `scores.0`, `scores.1`, …, each less than half as long as the one before it: a new chunk is joined
# with the last ones while that does not hold. So n rows cost O(n log n) copying, and lengths are known without waiting
# for the device.

PADDING = -1
_Columns = dict[str, Tensor]  # tensors of the same length


def append_rows(state: _Columns, rows: _Columns) -> _Columns:
    """The state with rows added at its end."""
    if not _length(rows):
        return state
    chunks = [*_chunks(state), rows]
    while len(chunks) > 1 and _length(chunks[-1]) * 2 > _length(chunks[-2]):
        last = chunks.pop()
        chunks[-1] = _concatenate([chunks[-1], last])
    if chunks[-1] is rows:  # copied, because a model may write its next output into the same memory
        chunks[-1] = {name: each.clone() for name, each in rows.items()}
    return {f"{name}.{index}": each for index, chunk in enumerate(chunks) for name, each in chunk.items()}


def merge_rows(a: _Columns, b: _Columns) -> _Columns:
    """The rows of two states."""
    for chunk in _chunks(b):
        a = append_rows(a, chunk)
    return a


def read_rows(state: _Columns) -> _Columns:
    """Each column as one tensor on the host; empty if there are no rows. Waits for the device."""
    chunks = [{name: each.cpu() for name, each in chunk.items()} for chunk in _chunks(state)]
    return _concatenate(chunks) if chunks else {}


def _chunks(state: _Columns) -> list[_Columns]:
    found: dict[int, _Columns] = {}
    for key, each in state.items():
        name, index = key.rsplit(".", 1)
        found.setdefault(int(index), {})[name] = each
    return [found[index] for index in sorted(found)]


def _length(chunk: _Columns) -> int:
    return len(next(iter(chunk.values())))


def _concatenate(chunks: list[_Columns]) -> _Columns:
    return {name: torch.cat(_pad_to_one_width([chunk[name] for chunk in chunks])) for name in chunks[0]}


def _pad_to_one_width(tensors: list[Tensor]) -> list[Tensor]:
    if tensors[0].ndim < 2 or len({each.shape[1] for each in tensors}) == 1:
        return tensors
    width = max(each.shape[1] for each in tensors)
    return [F.pad(each, (0, width - each.shape[1]), value=PADDING) for each in tensors]
