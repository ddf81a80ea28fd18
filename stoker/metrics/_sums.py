"""Sums that stay exact over millions of batches: float64, or compensated float32 where a device has no float64.

A sum is one tensor. It starts without a shape and takes the shape of what is first added to it, so that a metric needs
not be told how many classes there are.
"""

import torch
from torch import Tensor


def wide(device: torch.device) -> torch.dtype:
    """The widest floating point type that a device has."""
    return torch.float32 if device.type == "mps" else torch.float64


def fresh(device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """A sum of nothing. In float32 it is a pair: the sum, and what rounding has taken from it."""
    dtype = dtype or wide(device)
    return torch.zeros((2,) if dtype == torch.float32 else (), dtype=dtype, device=device)


def fresh_count(device: torch.device) -> Tensor:
    """A count of nothing, in int64 (half the time of a float64); it becomes a sum when weights are added to it."""
    return torch.zeros((), dtype=torch.int64, device=device)


def add(total: Tensor, amount: Tensor | float, *, times: float = 1) -> Tensor:
    """The sum with `amount * times` added, in the sum's own precision."""
    if total.dtype == torch.int64 and isinstance(amount, Tensor) and amount.dtype == torch.float32:
        total = torch.stack((total.float(), torch.zeros_like(total, dtype=torch.float32)))
    if total.dtype != torch.float32:
        if isinstance(amount, Tensor):
            if amount.ndim:  # beside it, a sum without a shape would lose its precision
                amount = amount.to(torch.float64)
            return total + amount if times == 1 else torch.add(total, amount, alpha=times)
        if total.dtype == torch.float64:
            amount = float(amount)  # an int would be made a tensor and then converted
        return total + amount * times
    high, low = total
    amount = torch.as_tensor(amount, dtype=torch.float32, device=total.device) * times
    summed = high + amount
    lost = torch.where(high.abs() >= amount.abs(), (high - summed) + amount, (amount - summed) + high)
    return torch.stack(torch.broadcast_tensors(summed, low + lost))


def join(a: Tensor, b: Tensor) -> Tensor:
    """Two sums as one."""
    return add(add(a, b[0]), b[1]) if b.dtype == torch.float32 else add(a, b)


def read(total: Tensor) -> Tensor:
    """The value of a sum, in float64 on the host. Waits for the device."""
    value = total.detach().cpu().double()
    return value.sum(0) if total.dtype == torch.float32 else value


def weighted(values: Tensor, weights: Tensor | None) -> Tensor:
    """The sum of values that count `weights` each (of one shape; None: 1 each; bool: which of them count).

    Where a weight is 0 the value does not matter, not even if it is NaN: padding holds anything.
    """
    if weights is None:
        return values.count_nonzero() if values.dtype == torch.bool else values.sum(dtype=wide(values.device))
    if weights.dtype == torch.bool:
        if values.dtype == torch.bool:
            return (values & weights).count_nonzero()
        return values.where(weights, 0).sum(dtype=wide(values.device))
    return (values * weights).where(weights != 0, 0).sum(dtype=wide(values.device))


def ratio(above: Tensor, below: Tensor) -> float:
    """One sum divided by another: NaN where there is nothing to divide by."""
    return (read(above) / read(below)).item()
