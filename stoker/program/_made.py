"""A step that was made: how to launch it, what it reads and leaves, and which batches it is for."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from stoker.data import RowSelection
from stoker.program._tree import Shape


class Batch(NamedTuple):
    """A batch taken apart."""

    value: Any
    shape: Shape
    tensors: list[Tensor]
    signature: Hashable


@dataclass(slots=True)
class Made:
    """A step that is ready to be repeated."""

    launch: Callable[[list[Tensor]], None]  # with the tensors of a batch
    before: list[Tensor]  # the kept values that it reads, always the same tensors
    after: tuple[Shape, list[Tensor]]  # the kept values that it leaves
    said: Any  # what it leaves for the loop
    again: bool  # it leaves what it reads, so that it can be repeated at once
    turn: Hashable = None
    source: Any = None  # of the picks that it is for
    size: int = 0
    columns: Sequence[Tensor] = ()
    several: Callable[[], Callable[[list[Tensor]], None]] | None = None  # makes `group`, where there can be one
    group: Callable[[list[Tensor]], None] | None = None  # launches many of it, each with the numbers of its rows

    def picks(self, given: Any) -> bool:
        """Whether it is for such a pick, as can be told at a glance."""
        return type(given) is RowSelection and given.source is self.source and len(given) == self.size


class Left(NamedTuple):
    """What a run leaves behind."""

    shape: Shape
    after: list[Tensor]
    said: Any
    again: bool


class NotYet(Exception):
    """A step has brought something into being, as a first one does: it has to be run before it can be repeated."""
