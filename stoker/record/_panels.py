"""Which numbers belong into one picture."""

import math
from collections.abc import Iterable


def panels(names: Iterable[str]) -> dict[str, list[str]]:
    """Names by what they measure, so that a metric of several sets, and of several classes, is one picture.

    >>> panels(["train/loss", "lr", "valid/loss", "valid/recall/0", "valid/recall/1"])
    {'loss': ['train/loss', 'valid/loss'], 'lr': ['lr'], 'recall': ['valid/recall/0', 'valid/recall/1']}

    The cells of a matrix are in none: nobody reads a hundred curves.
    """
    names = list(names)
    cells = {f"{matrix}/{row}/{column}" for matrix, many in matrices(names).items() for row, column in _places(many)}
    found: dict[str, list[str]] = {}
    for name in names:
        if name not in cells:
            parts = name.split("/")
            found.setdefault(parts[0] if len(parts) == 1 or parts[0] == "lr" else parts[1], []).append(name)
    return found


def matrices(names: Iterable[str]) -> dict[str, int]:
    """The square matrices whose cells are among the names, each with how many rows it has.

    >>> matrices(["lr", *(f"valid/confusion/{row}/{column}" for row in range(3) for column in range(3))])
    {'valid/confusion': 3}
    """
    cells: dict[str, set[tuple[str, str]]] = {}
    for name in names:
        matrix, _, place = name.rpartition("/")
        matrix, _, row = matrix.rpartition("/")
        if matrix and row.isdecimal() and place.isdecimal():
            cells.setdefault(matrix, set()).add((row, place))
    sizes = {matrix: math.isqrt(len(places)) for matrix, places in cells.items()}
    return {matrix: many for matrix, many in sizes.items() if many > 1 and cells[matrix] == _places(many)}


def _places(many: int) -> set[tuple[str, str]]:
    return {(str(row), str(column)) for row in range(many) for column in range(many)}
