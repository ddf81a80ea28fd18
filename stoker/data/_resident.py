"""Columns that stay on the device: what they take there, and how they get there."""

from typing import Any

import torch

from stoker.data._columns import Columns
from stoker.data._tree import map_leaves, named_leaves
from stoker.data._view import View

_AT_ONCE = 2**26  # bytes that are gathered on the host before they are copied, so that it never holds everything twice


def resident_bytes(view: View[Any]) -> int:
    """The bytes that the columns of a vectorised view take on a device, by the way that takes fewer.

    >>> series = Columns(torch.zeros(100))
    >>> resident_bytes(series), resident_bytes(series.narrow(0, 20))
    (400, 80)
    """
    below = view.below()
    rows = len(view) * _row_bytes(view)
    return min(rows, sum(map(resident_bytes, below))) if below else rows


def resident(view: View[Any], device: torch.device) -> View[Any]:
    """The same samples with their columns on a device; the view itself where they are there.

    A choice of rows becomes columns of those rows, and several sources become one. Overlapping windows stay windows.
    """
    below = view.below()
    if _is_on(view, torch.empty(0, device=device).device):  # `cuda` as the `cuda:0` that tensors say
        return view
    if not below or len(view) * _row_bytes(view) <= sum(map(resident_bytes, below)):
        return _copied(view, device)
    return view.over([resident(each, device) for each in below])


def _is_on(view: View[Any], device: torch.device) -> bool:
    below = view.below()
    if below:
        return all(_is_on(each, device) for each in below)
    columns = view.columns()
    return columns is not None and all(column.device == device for column in columns)


def _row_bytes(view: View[Any]) -> int:
    return sum(leaf.nbytes for _, leaf in named_leaves(view.slice(0, 1)))


def _copied(view: View[Any], device: torch.device) -> Columns:
    count, at_once = len(view), max(1, _AT_ONCE // max(1, _row_bytes(view)))
    columns = map_leaves(
        lambda row: torch.empty((count, *row.shape[1:]), dtype=row.dtype, device=device), view.slice(0, 1)
    )
    for start in range(0, count, at_once):
        stop = min(start + at_once, count)
        map_leaves(lambda column, rows, a=start, b=stop: column[a:b].copy_(rows), columns, view.slice(start, stop))
    return Columns(columns)
