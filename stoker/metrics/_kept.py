"""What a metric keeps as it is, because its number can't be had from sums: columns of tensors, in growing pieces.

A state holds pieces `scores.0`, `scores.1`, …, each less than half as long as the one before it: a new piece is joined
with the last ones while it is not shorter. So n rows cost O(n log n) copying, and lengths are known without a sync.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from stoker.metrics._metric import State

PADDING = -1


def keep(state: State, rows: State) -> State:
    """The state with rows (one tensor a column, all as long) added at its end."""
    if not len(next(iter(rows.values()))):
        return state
    pieces = [*_pieces(state), rows]
    while len(pieces) > 1 and _length(pieces[-1]) * 2 > _length(pieces[-2]):
        last = pieces.pop()
        pieces[-1] = _joined([pieces[-1], last])
    return {f"{name}.{place}": each for place, piece in enumerate(pieces) for name, each in piece.items()}


def keep_all(a: State, b: State) -> State:
    """Everything that two states hold."""
    for piece in _pieces(b):
        a = keep(a, piece)
    return a


def kept(state: State) -> State:
    """The columns, each in one tensor on the host; empty where nothing was kept. Waits for the device."""
    pieces = [{name: each.cpu() for name, each in piece.items()} for piece in _pieces(state)]
    return _joined(pieces) if pieces else {}


def _pieces(state: State) -> list[State]:
    found: dict[int, State] = {}
    for key, each in state.items():
        name, place = key.rsplit(".", 1)
        found.setdefault(int(place), {})[name] = each
    return [found[place] for place in sorted(found)]


def _length(piece: State) -> int:
    return len(next(iter(piece.values())))


def _joined(pieces: list[State]) -> State:
    return {name: torch.cat(_one_width([piece[name] for piece in pieces])) for name in pieces[0]}


def _one_width(tensors: list[Tensor]) -> list[Tensor]:
    if tensors[0].ndim < 2 or len({each.shape[1] for each in tensors}) == 1:
        return tensors
    width = max(each.shape[1] for each in tensors)
    return [F.pad(each, (0, width - each.shape[1]), value=PADDING) for each in tensors]
