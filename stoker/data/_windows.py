"""Runs of neighbouring samples, as time series need them."""

from typing import Any

import torch
from torch import Tensor

from stoker.data._collate import collate
from stoker.data._source import Source, map_style
from stoker.data._tree import map_leaves
from stoker.data._view import View
from stoker.errors import BadData, InvalidArgument


def windows(source: Any, size: int, stride: int = 1) -> Source[Any]:
    """Every run of `size` neighbouring samples as one sample, each run `stride` after the one before.

    >>> windows(torch.arange(6), 3, stride=2)[1], len(windows(torch.arange(6), 3))
    (tensor([2, 3, 4]), 4)

    A batch is [batch, size, ...]. A last run that would be too short is left out.
    """
    base = map_style(source, "windows")
    for name, value in (("size", size), ("stride", stride)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InvalidArgument(f"windows needs a {name} of 1 or more; got {value!r}")
    if size > len(base):
        raise BadData(f"windows of {size} don't fit into {len(base)} samples; there would be none")
    return Windows(base, size, stride)


class Windows(View[Any]):
    """Sliding windows."""

    def __init__(self, base: Any, size: int, stride: int) -> None:
        self.base, self.size, self.stride = base, size, stride
        self.vectorised = isinstance(base, View) and base.vectorised

    def __len__(self) -> int:
        return (len(self.base) - self.size) // self.stride + 1

    def sample(self, number: int) -> Any:
        start = number * self.stride
        if self.vectorised:
            return self.base.slice(start, start + self.size)
        return collate([self.base[place] for place in range(start, start + self.size)])

    @property
    def device(self) -> torch.device:
        return self.base.device

    def columns(self) -> list[Tensor] | None:
        return self.base.columns()

    def with_columns(self, columns: list[Tensor]) -> View[Any]:
        return self.over([self.base.with_columns(columns)])

    def below(self) -> list[View[Any]]:
        return [self.base]

    def over(self, views: list[View[Any]]) -> View[Any]:
        return Windows(views[0], self.size, self.stride)

    def gather(self, rows: Tensor) -> Any:
        inside = torch.arange(self.size, device=rows.device)
        flat = self.base.gather((rows[:, None] * self.stride + inside).flatten())
        return map_leaves(lambda leaf: leaf.unflatten(0, (len(rows), self.size)), flat)
