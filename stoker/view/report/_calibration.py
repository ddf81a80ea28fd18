"""Calibration: of the answers that a model is 80 % sure of, are 80 % right?"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stoker.errors import InvalidArgument
from stoker.record import figure_of, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Calibration:
    """How sure a model was and how often it was right, in bins of equal width, and how far these lie apart."""

    sure: np.ndarray  # [bins] mean confidence; NaN for an empty bin
    right: np.ndarray  # [bins] share of right answers; NaN for an empty bin
    count: np.ndarray  # [bins]
    error: float  # the expected calibration error: |sure - right|, weighed by the counts


def calibrated(probabilities: Any, targets: Any, *, bins: int = 15) -> Calibration:
    """How well probabilities keep what they promise.

    >>> round(calibrated([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]], [0, 1, 1]).error, 6)
    0.3

    `probabilities` are [samples, classes] with the classes' numbers as targets (the likeliest class is looked at), or
    [samples] with targets 0 and 1 (how sure of a yes, and how often it is one).
    """
    given, truth = np.asarray(probabilities, dtype=np.float64), np.asarray(targets)
    _check(given, truth, bins)
    sure = given.max(1) if given.ndim == 2 else given
    right = given.argmax(1) == truth if given.ndim == 2 else truth
    place = np.clip(np.searchsorted(np.linspace(0, 1, bins + 1), sure, side="right") - 1, 0, bins - 1)
    count = np.bincount(place, minlength=bins)
    with np.errstate(invalid="ignore"):
        means = [np.bincount(place, weights=each.astype(np.float64), minlength=bins) / count for each in (sure, right)]
    error = np.nansum(np.abs(means[0] - means[1]) * count) / count.sum()
    return Calibration(means[0], means[1], count, float(error))


def calibration(probabilities: Any, targets: Any, *, bins: int = 15, ax: "Axes | None" = None) -> "Figure":
    """Draws how often a model is right against how sure it is (`stoker[plot]`), and returns the figure.

    >>> calibration([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]], [0, 1, 1]).axes[0].get_title()
    'calibration error 0.300'

    The arguments are those of `calibrated`. On the diagonal a model knows how sure it can be; below it, it is too sure.
    """
    return drawn(calibrated(probabilities, targets, bins=bins), ax=ax)


def drawn(found: Calibration, *, ax: "Axes | None" = None) -> "Figure":
    """The picture of what `calibrated` found."""
    axes = new_figure(4.5, 4.5).subplots() if ax is None else ax
    seen = found.count > 0
    share = found.count[seen] / found.count.sum()
    axes.plot([0, 1], [0, 1], "--", color="#888888", label="as sure as right")
    axes.plot(found.sure[seen], found.right[seen], "o-", color="#0072B2", label="right answers")
    axes.bar(found.sure[seen], share, 0.6 / len(found.count), color="#888888", alpha=0.4, label="share of samples")
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="how sure", ylabel="how often right", aspect="equal")
    axes.set_title(f"calibration error {found.error:.3f}")
    axes.legend()
    return figure_of(axes)


def _check(given: np.ndarray, truth: np.ndarray, bins: int) -> None:
    if bins < 1:
        raise InvalidArgument(f"calibration: bins is {bins}; expected at least 1")
    if given.ndim not in (1, 2) or truth.shape != given.shape[:1] or not len(given):
        raise InvalidArgument(
            "calibration: expected probabilities [samples, classes] or [samples], and a target for each sample; got "
            f"{list(given.shape)} and {list(truth.shape)}"
        )
    if not (given.min() >= 0 and given.max() <= 1 + 1e-6):  # also false for NaN
        raise InvalidArgument(
            f"calibration: probabilities lie between 0 and 1; got {given.min():.4g} to {given.max():.4g}. Scores of "
            "classes (logits) become probabilities by softmax, one score by sigmoid"
        )
