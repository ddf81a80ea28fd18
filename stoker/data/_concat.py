"""Several sources end to end."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from stoker.data._source import Source, map_style
from stoker.data._tree import map_leaves, named_leaves
from stoker.data._view import View
from stoker.errors import BadData, InvalidArgument


def concat(*sources: Any) -> Source[Any]:
    """The samples of one source after those of another.

    >>> list(concat([1, 2], range(7, 9)))
    [1, 2, 7, 8]
    """
    if not sources:
        raise InvalidArgument("concat needs at least one source")
    return Joined([map_style(source, "concat") for source in sources])


class Joined(View[Any]):
    """Sources end to end."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = parts
        self.ends = list(accumulate(len(part) for part in parts))
        self.vectorised = all(isinstance(part, View) and part.vectorised for part in parts)
        if self.vectorised:
            _same_rows([_row(part) for part in parts])

    def __len__(self) -> int:
        return self.ends[-1]

    def _start(self, part: int) -> int:
        return self.ends[part] - len(self.parts[part])

    def sample(self, number: int) -> Any:
        part = bisect_right(self.ends, number)
        return self.parts[part][number - self._start(part)]

    @property
    def device(self) -> torch.device:
        return self.parts[0].device

    def below(self) -> list[View[Any]]:
        return list(self.parts)

    def over(self, views: list[View[Any]]) -> View[Any]:
        return Joined(views)

    def gather(self, rows: Tensor) -> Any:
        owner = torch.bucketize(rows, torch.tensor(self.ends, device=rows.device), right=True)
        by_part, places = owner.sort(stable=True)
        counts = torch.bincount(by_part, minlength=len(self.parts)).tolist()  # a sync, on a GPU
        found, rows = [], rows[places]
        for part, chunk in enumerate(rows.split(counts)):
            if len(chunk):
                found.append(self.parts[part].gather(chunk - self._start(part)))
        back = places.argsort()  # the parts' rows, end to end, to the places that they were asked for in
        return map_leaves(lambda *leaves: torch.cat(leaves).index_select(0, back), *found)


def _row(part: View[Any]) -> dict[str, str]:
    """What a row of each column is, in words that two sources can be compared by."""
    row = part.slice(0, 1)
    return {path: f"{leaf.dtype} {list(leaf.shape[1:])} on {leaf.device}" for path, leaf in named_leaves(row)}


def _same_rows(rows: list[dict[str, str]]) -> None:
    for number, row in enumerate(rows):
        if row != rows[0]:
            path = next(path for path in [*rows[0], *row] if row.get(path) != rows[0].get(path))
            raise BadData(
                f"concat needs sources whose rows are alike, but {f'column {path}' if path else 'a row'} is "
                f"{rows[0].get(path, 'missing')} in the first and {row.get(path, 'missing')} in source {number + 1}"
            )
