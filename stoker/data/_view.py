"""A view: samples by number over something that holds them, without a copy."""

from abc import ABC, abstractmethod
from operator import index as as_int
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

T_co = TypeVar("T_co", covariant=True)


class View(ABC, Generic[T_co]):
    """Samples by number, and, where all that is below is `vectorised`, whole batches by their row numbers."""

    vectorised: bool = False

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def sample(self, number: int) -> T_co:
        """The sample with this number, which is in range."""

    def __getitem__(self, number: int) -> T_co:
        place = as_int(number)
        if not -len(self) <= place < len(self):  # an IndexError is also what ends a plain `for` over a view
            raise IndexError(f"sample {number} of {len(self)}")
        return self.sample(place % len(self))

    @property
    def device(self) -> torch.device:
        """Where `gather` wants its row numbers to be."""
        return torch.device("cpu")

    def gather(self, rows: Tensor) -> Any:
        """The batch of these rows, an int64 tensor; only where `vectorised`."""
        raise NotImplementedError

    def slice(self, start: int, stop: int) -> Any:
        """The batch of the rows from `start` to before `stop`; only where `vectorised`."""
        return self.gather(torch.arange(start, stop, device=self.device))

    def columns(self) -> list[Tensor] | None:
        """The tensors that `gather` takes rows of, where it uses no others and never waits for a device; else None."""
        return None

    def with_columns(self, columns: list[Tensor]) -> "View[Any]":
        """The same, over other tensors in the places of `columns`; only where there are any."""
        raise NotImplementedError

    def below(self) -> "list[View[Any]]":
        """The views that this one looks through; none where it holds columns itself. Only where `vectorised`."""
        return []

    def over(self, views: "list[View[Any]]") -> "View[Any]":
        """The same, looking through others in the places of those `below`."""
        raise NotImplementedError

    def resolve(self, order: Tensor | None) -> "tuple[View[Any], Tensor | None]":
        """The view underneath and the rows of it that are meant, so that a choice of rows costs nothing per batch."""
        return self, order


class Selected(View[Any]):
    """Some samples of a source, by their numbers in it; a selection of a selection is one selection."""

    def __init__(self, base: Any, numbers: Tensor) -> None:
        if isinstance(base, Selected):
            base, numbers = base.base, base.numbers[numbers]
        self.base = base
        self.numbers = numbers  # int64, on the CPU
        self.vectorised = isinstance(base, View) and base.vectorised

    def __len__(self) -> int:
        return len(self.numbers)

    def sample(self, number: int) -> Any:
        return self.base[int(self.numbers[number])]

    @property
    def device(self) -> torch.device:
        return self.base.device

    def gather(self, rows: Tensor) -> Any:
        return self.base.gather(self.numbers.to(rows.device)[rows])

    def below(self) -> list[View[Any]]:
        return [self.base]

    def over(self, views: list[View[Any]]) -> View[Any]:
        return Selected(views[0], self.numbers)

    def resolve(self, order: Tensor | None) -> tuple[View[Any], Tensor | None]:
        return self.base.resolve(self.numbers if order is None else self.numbers[order])
