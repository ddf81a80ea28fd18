"""A view: samples by number over something that holds them, without a copy."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from operator import index as as_int
from typing import Any

import torch
from torch import Tensor


class View(ABC):
    """Samples by number. A `vectorized` view also gathers a whole batch by its row numbers, without a Python loop."""

    vectorized: bool = False
    bases: Sequence["View"] = ()  # what a vectorized view reads from; empty if it holds columns itself

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def sample(self, number: int) -> Any:
        """Returns one sample; `number` is in range."""

    def __getitem__(self, number: int) -> Any:
        place = as_int(number)
        if not -len(self) <= place < len(self):  # an IndexError also ends a plain `for` over a view
            raise IndexError(f"sample {number} of {len(self)}")
        return self.sample(place % len(self))

    @property
    def device(self) -> torch.device:
        """The device on which `gather` expects its row numbers."""
        return self.bases[0].device if self.bases else torch.device("cpu")

    # The methods below are called on vectorized views only.

    def gather(self, rows: Tensor) -> Any:
        """Returns the batch of these rows (int64)."""
        raise NotImplementedError

    def slice(self, start: int, stop: int) -> Any:
        """Returns the batch of the rows from `start` to before `stop`."""
        return self.gather(torch.arange(start, stop, device=self.device))

    def with_bases(self, bases: list["View"]) -> "View":
        """Returns the same view over other `bases`."""
        raise NotImplementedError

    def columns(self) -> list[Tensor] | None:
        """Returns the tensors that `gather` reads, or None if it also reads others or waits for a device."""
        return None

    def with_columns(self, columns: list[Tensor]) -> "View":
        """Returns the same view over other tensors in the order of `columns()`."""
        raise NotImplementedError


class Selection(View):
    """Some samples of a source, by their numbers in it. The base of a selection is never a selection."""

    def __init__(self, base: Any, numbers: Tensor) -> None:
        if isinstance(base, Selection):
            base, numbers = base.base, base.numbers[numbers]
        self.base = base
        self.numbers = numbers  # int64, on the CPU
        self.vectorized = is_vectorized(base)
        self.bases = [base] if self.vectorized else []

    def __len__(self) -> int:
        return len(self.numbers)

    def sample(self, number: int) -> Any:
        return self.base[int(self.numbers[number])]

    def gather(self, rows: Tensor) -> Any:
        return self.base.gather(self.numbers.to(rows.device)[rows])

    def with_bases(self, bases: list[View]) -> View:
        return Selection(bases[0], self.numbers)


def is_vectorized(source: Any) -> bool:
    """Whether a source is a view that gathers whole batches."""
    return isinstance(source, View) and source.vectorized
