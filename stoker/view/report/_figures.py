"""matplotlib figures: a run's curves, learning rate, confusion matrix and calibration."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from stoker._figure import Size, escape_label, figure_of, figure_size, new_axes
from stoker.errors import InvalidArgument
from stoker.record import (
    History,
    Record,
    line_styles,
)
from stoker.view.report._evaluation import Calibration, Evaluation, class_names, measure_calibration, row_shares
from stoker.view.report._reader import RecordReader, recorded_matrices

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Kind = Literal["curves", "lr", "confusion", "calibration"]

_COLOR = line_styles(["train"])["train"].color
_SECOND_COLOR = line_styles(["valid"])["valid"].color
_GREY = "#888888"
# Classes whose cells show a share and a count, only a share, and whose names are shown.
_MAX_COUNTED, _MAX_NUMBERED, _MAX_NAMED = 10, 20, 40


def plot(
    record: Record,
    *names: str,
    kind: Kind = "curves",
    evaluation: Evaluation | None = None,
    size: Size = "screen",
    ax: "Axes | None" = None,
) -> "Figure":
    """Draws a run: its curves, learning rate, confusion matrix or calibration; needs matplotlib (`stoker[plot]`).

    >>> from stoker.record import Event
    >>> record = Record()
    >>> for update in (10, 20):
    ...     record.append(Event("log", epoch=1, update=update, values={"lr": 1 / update}))
    >>> plot(record, kind="lr").axes[0].lines[0].get_xdata().tolist()
    [10.0, 20.0]

    `names` choose curves, as in `History.plot`. The confusion matrix is the one of `evaluation` (see
    `evaluate_predictions`), else the one that a `ConfusionMatrix` metric recorded in the best epoch. A calibration
    needs an evaluation. `size` is "screen", "paper" or "slide"; `figure.savefig` writes vectors to .pdf and .svg.
    """
    if kind == "curves":
        return History(record).plot(*names, size=size, ax=ax)
    if names:
        raise InvalidArgument(f"plot: names choose curves, but kind={kind!r} has none; leave out {', '.join(names)}")
    with figure_size(size):
        if kind == "lr":
            return _plot_lr(record, ax)
        if kind == "confusion":
            return _plot_confusion(record, evaluation, ax)
        if kind == "calibration":
            if evaluation is None or evaluation.calibration is None:
                raise InvalidArgument(
                    "plot: a calibration needs a classifier's predictions on a data set: give data= to fitted.plot"
                )
            return _draw_calibration(evaluation.calibration, ax)
    raise InvalidArgument(f'plot: kind={kind!r}; expected "curves", "lr", "confusion" or "calibration"')


def confusion(matrix: Any, labels: Sequence[str] | None = None, *, ax: "Axes | None" = None) -> "Figure":
    """Draws a confusion matrix (rows: true classes, columns: predicted classes) with matplotlib (`stoker[plot]`).

    >>> confusion([[8, 2], [1, 9]], ["cat", "dog"]).axes[0].get_xlabel()
    'Predicted label'

    A cell shows its share of the row (of the samples with this true label), and of few classes also its count.
    """
    counts = np.asarray(matrix, dtype=np.float64)
    if counts.ndim != 2 or counts.shape[0] != counts.shape[1] or not counts.size:
        raise InvalidArgument(f"confusion: expected a square matrix, [classes, classes]; got {list(counts.shape)}")
    classes = len(counts)
    names = class_names(labels, classes)
    side = min(2.6 + 0.62 * classes, 10.0)
    axes = new_axes(side + 0.9, side) if ax is None else ax
    shares = row_shares(counts)
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    figure_of(axes).colorbar(image, ax=axes, label="Share of true label", shrink=0.8)
    if classes <= _MAX_NUMBERED:
        for row, column in np.ndindex(classes, classes):
            color = "white" if shares[row, column] > 0.5 else "black"
            count = f"\n{counts[row, column]:.4g}" if classes <= _MAX_COUNTED else ""
            text = f"{shares[row, column]:.2f}{count}"
            axes.text(column, row, text, ha="center", va="center", color=color, fontsize="small")
    axes.set(xlabel="Predicted label", ylabel="True label")
    if classes <= _MAX_NAMED:
        texts = [escape_label(name) for name in names]
        axes.set_xticks(range(classes), texts, rotation=45 if max(map(len, names)) > 3 else 0)
        axes.set_yticks(range(classes), texts)
    return figure_of(axes)


def calibration(probabilities: Any, targets: Any, *, bins: int = 15, ax: "Axes | None" = None) -> "Figure":
    """Draws how often predictions are right over their probability (`stoker[plot]`); see `measure_calibration`.

    >>> calibration([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]], [0, 1, 1]).axes[0].get_title()
    'Calibration error 0.300'

    Of several classes, the positives are the samples whose likeliest class is the true one. Below the diagonal the
    model is overconfident.
    """
    return _draw_calibration(measure_calibration(probabilities, targets, bins=bins), ax)


def lr_curve(
    rates: Sequence[float], losses: Sequence[float], suggestion: float | None = None, *, ax: "Axes | None" = None
) -> "Figure":
    """Draws the loss over the learning rate and marks the suggested rate (`stoker[plot]`).

    >>> lr_curve([1e-3, 1e-2, 1e-1], [2.3, 1.1, 3.0], 1e-2).axes[0].get_xscale()
    'log'
    """
    axes = new_axes(6, 3.6) if ax is None else ax
    axes.plot(rates, losses, color=_COLOR)
    if suggestion is not None:
        axes.axvline(suggestion, linestyle="--", color=_SECOND_COLOR, label=f"suggestion {suggestion:.2g}")
        axes.legend()
    axes.set(xscale="log", xlabel="Learning rate", ylabel="Smoothed loss")
    axes.grid(alpha=0.3)
    return figure_of(axes)


def _plot_lr(record: Record, ax: "Axes | None") -> "Figure":
    rates = {name: record.points(name) for name in record.names if name.split("/")[0] == "lr"}
    if not rates:
        raise InvalidArgument(
            "plot: the run recorded no learning rate; add metrics.LearningRate() to the learner's metrics"
        )
    axes = new_axes(7, 3.2) if ax is None else ax
    for name, style in line_styles(rates).items():
        axes.plot(rates[name].update, rates[name].value, color=style.color, label=escape_label(name))
    axes.set(xlabel="Update", ylabel="Learning rate", ylim=(0, None))
    axes.ticklabel_format(axis="y", scilimits=(-2, 4))
    axes.grid(alpha=0.3)
    if len(rates) > 1:
        axes.legend()
    return figure_of(axes)


def _plot_confusion(record: Record, evaluation: Evaluation | None, ax: "Axes | None") -> "Figure":
    if evaluation is not None and evaluation.confusion is not None:
        return confusion(evaluation.confusion, evaluation.labels, ax=ax)
    recorded = next(iter(recorded_matrices(RecordReader(record)).values()), None)
    if recorded is None:
        raise InvalidArgument(
            "plot: the run has no confusion matrix; give data= to fitted.plot, or add "
            "metrics.ConfusionMatrix(on='valid') to the learner's metrics"
        )
    return confusion(recorded.values, recorded.labels or None, ax=ax)


def _draw_calibration(result: Calibration, ax: "Axes | None") -> "Figure":
    axes = new_axes(4.5, 4.5) if ax is None else ax
    filled = result.count > 0
    confidence, share = result.confidence[filled], result.count[filled] / result.count.sum()
    axes.plot([0, 1], [0, 1], "--", color=_GREY, label="Perfectly calibrated")
    axes.plot(confidence, result.accuracy[filled], "o-", color=_COLOR, label="Model")
    axes.bar(confidence, share, 0.6 / len(result.count), color=_GREY, alpha=0.4, label="Share of samples")
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axes.set(xlabel="Mean predicted probability", ylabel="Fraction of positives")
    axes.set_title(f"Calibration error {result.error:.3f}")
    axes.legend()
    return figure_of(axes)
