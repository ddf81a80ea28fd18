"""Matrices among the values of an event: a confusion matrix is one value, not a number per cell."""

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

_LARGEST = 1 << 20  # cells of a matrix that is read


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """A matrix that a run recorded: a confusion matrix, whose rows are the true classes, say.

    `labels` names the rows and columns; it is empty if they have no names.
    """

    name: str
    values: np.ndarray
    labels: tuple[str, ...]
    epoch: int
    update: int


def split_matrices(values: Mapping[str, float]) -> tuple[dict[str, float], dict[str, dict[str, Any]]]:
    """Separates numbers from the cells of square matrices, which become one entry each.

    >>> cells = {"valid/confusion/0/0": 5.0, "valid/confusion/0/1": 1.0}
    >>> cells |= {"valid/confusion/1/0": 0.0, "valid/confusion/1/1": 4.0}
    >>> split_matrices({"valid/loss": 0.5, **cells})
    ({'valid/loss': 0.5}, {'valid/confusion': {'values': [[5.0, 1.0], [0.0, 4.0]]}})
    """
    sizes = _find_matrices(tuple(values))
    if not sizes:
        return dict(values), {}
    numbers = dict(values)
    matrices: dict[str, dict[str, Any]] = {}
    for name, size in sizes.items():
        rows = [[numbers.pop(f"{name}/{row}/{column}") for column in range(size)] for row in range(size)]
        matrices[name] = {"values": rows}
    return numbers, matrices


@functools.lru_cache(maxsize=256)  # the events of a run have the same few sets of names
def _find_matrices(names: tuple[str, ...]) -> Mapping[str, int]:
    return matrix_sizes(names)


def matrix_sizes(names: Iterable[str]) -> dict[str, int]:
    """Finds the square matrices whose cells are among the names; the value is the number of rows.

    >>> matrix_sizes(["lr", *(f"valid/confusion/{row}/{column}" for row in range(3) for column in range(3))])
    {'valid/confusion': 3}
    """
    cells: dict[str, set[tuple[str, str]]] = {}
    for name in names:
        rest, _, column = name.rpartition("/")
        matrix, _, row = rest.rpartition("/")
        if matrix and row.isdecimal() and column.isdecimal():
            cells.setdefault(matrix, set()).add((row, column))
    sizes = {matrix: math.isqrt(len(pairs)) for matrix, pairs in cells.items()}
    return {
        matrix: size
        for matrix, size in sizes.items()
        if size > 1 and cells[matrix] == {(str(row), str(column)) for row in range(size) for column in range(size)}
    }


def read_matrices(extra: Mapping[str, Any], epoch: int, update: int) -> dict[str, Matrix]:
    """The matrices in an event's `extra`; entries that are not matrices are left out."""
    entries = extra.get("matrices")
    found: dict[str, Matrix] = {}
    for name, entry in entries.items() if isinstance(entries, Mapping) else ():
        try:
            values = np.array(entry["values"], dtype=np.float64)
        except (TypeError, ValueError, LookupError, OverflowError):
            continue
        if values.ndim == 2 and 0 < values.size <= _LARGEST:
            found[str(name)] = label_matrix(Matrix(str(name), values, (), epoch, update), entry.get("labels"))
    return found


def label_matrix(matrix: Matrix, labels: Any) -> Matrix:
    """The matrix with these names of its rows and columns, if there is one for each."""
    if not isinstance(labels, list | tuple) or len(labels) != len(matrix.values):
        return matrix
    return replace(matrix, labels=tuple(map(str, labels)))
