"""A confusion matrix in a page."""

from collections.abc import Sequence

import numpy as np

from stoker.view.report._confusion import mistakes, shares
from stoker.view.report._markup import Html, element, joined, table
from stoker.view.report._png import image

_CELLS = 20  # classes; of more, the matrix is an image, and its worst cells are told
_BLUE = np.array([0, 114, 178])


def heat(counts: np.ndarray, names: Sequence[str]) -> Html:
    """The matrix, each cell as dark as its share of the row, and the most frequent mistakes."""
    return joined([_cells(counts, names) if len(counts) <= _CELLS else _image(counts), _worst(counts, names)])


def _cells(counts: np.ndarray, names: Sequence[str]) -> Html:
    portions = shares(counts)
    lines = [element("tr", element("th", "is ↓  taken for →", scope="col"), *(element("th", name) for name in names))]
    for name, row, parts in zip(names, counts, portions, strict=True):
        cells = [
            element("td", f"{count:.4g}", style=f"--share:{part:.3f}", class_="full" if part > 0.5 else None)
            for count, part in zip(row, parts, strict=True)
        ]
        lines.append(element("tr", element("th", name, scope="row"), *cells))
    return element("div", element("table", *lines, class_="matrix"), class_="wide")


def _image(counts: np.ndarray) -> Html:
    share = shares(counts)[..., None]
    pixels = np.round(255 * (1 - share) + _BLUE * share)
    return element("p", image(pixels, alt=f"confusion matrix of {len(counts)} classes: rows are the truth"))


def _worst(counts: np.ndarray, names: Sequence[str]) -> Html:
    rows = [(names[row], names[column], f"{often:.4g}") for row, column, often in mistakes(counts)]
    return element("div", table(("is", "taken for", "how often"), rows)) if rows else Html("")
