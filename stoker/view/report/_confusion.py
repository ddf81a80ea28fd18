"""Which classes are taken for which: out of a run's numbers, and as a picture."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from stoker.errors import InvalidArgument
from stoker.record import Points, escape_label, figure_of, matrix_sizes, new_figure
from stoker.view.report._readable import Readable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WRITTEN = 20  # classes; of more the cells are too small for their numbers


def confusions(run: Readable) -> dict[str, np.ndarray]:
    """The matrices that a run has recorded, as they were in its best epoch, else in its last; rows are the truth."""
    best = run.summary.get("best") or {}
    found: dict[str, np.ndarray] = {}
    for name, many in matrix_sizes(run.names).items():
        matrix = np.full((many, many), np.nan)
        for row, column in np.ndindex(many, many):
            matrix[row, column] = _at(run.points(f"{name}/{row}/{column}", source="epochs"), best.get("update"))
        found[name] = matrix
    return found


def confusion(matrix: Any, labels: Sequence[str] | None = None, *, ax: "Axes | None" = None) -> "Figure":
    """Draws how often each class (row) was taken for each (column), with matplotlib (`stoker[plot]`).

    >>> confusion([[8, 2], [1, 9]], ["cat", "dog"]).axes[0].get_xlabel()
    'taken for'

    A cell is as dark as its share of the row: of what is a cat, how much was taken for a dog.
    """
    counts = square(matrix)
    names = names_of(labels, len(counts))
    many = len(counts)
    axes = new_figure(min(2.5 + 0.45 * many, 11), min(2 + 0.4 * many, 9)).subplots() if ax is None else ax
    portions = shares(counts)
    axes.imshow(portions, cmap="Blues", vmin=0, vmax=1)
    if many <= _WRITTEN:
        for row, column in np.ndindex(many, many):
            ink = "white" if portions[row, column] > 0.5 else "black"
            axes.text(column, row, f"{counts[row, column]:.4g}", ha="center", va="center", color=ink, fontsize="small")
    axes.set(xlabel="taken for", ylabel="is")
    if many <= 2 * _WRITTEN:
        axes.set_xticks(
            range(many), [escape_label(name) for name in names], rotation=45 if max(map(len, names)) > 3 else 0
        )
        axes.set_yticks(range(many), [escape_label(name) for name in names])
    return figure_of(axes)


def square(matrix: Any) -> np.ndarray:
    """A matrix of counts, checked."""
    counts = np.asarray(matrix, dtype=np.float64)
    if counts.ndim != 2 or counts.shape[0] != counts.shape[1] or not counts.size:
        raise InvalidArgument(f"confusion: expected a square matrix, [classes, classes]; got {list(counts.shape)}")
    return counts


def names_of(labels: Sequence[str] | None, many: int) -> list[str]:
    """The names of the classes: as given, else their numbers."""
    if labels is None:
        return [str(place) for place in range(many)]
    if len(labels) != many:
        raise InvalidArgument(f"confusion: {len(labels)} labels for {many} classes; give one for each")
    return [str(label) for label in labels]


def shares(counts: np.ndarray) -> np.ndarray:
    """Each cell as a share of its row; 0 in a row without samples."""
    whole = counts.sum(axis=1, keepdims=True)
    return np.divide(counts, whole, out=np.zeros_like(counts), where=whole > 0)


def mistakes(counts: np.ndarray, *, most: int = 10) -> list[tuple[int, int, float]]:
    """The cells off the diagonal with the highest counts: (is, taken for, how often)."""
    wrong = np.where(np.eye(len(counts), dtype=bool), 0, np.nan_to_num(counts))
    order = np.argsort(-wrong, axis=None, kind="stable")[:most]
    places = zip(*np.unravel_index(order, wrong.shape), strict=True)
    return [(int(row), int(column), float(wrong[row, column])) for row, column in places if wrong[row, column] > 0]


def _at(points: Points, update: float | None) -> float:
    """The value of an update, else the last."""
    there = np.flatnonzero(points.update == update)
    return float(points.value[there[-1]] if len(there) else points.value[-1]) if len(points) else float("nan")
