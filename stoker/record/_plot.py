"""Pictures of a history: which numbers share a panel, how their lines look, and the matplotlib figure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from stoker._figure import escape_label, figure_of, new_figure, use_integer_ticks
from stoker._text import format_number
from stoker.errors import InvalidArgument
from stoker.record._columns import Best

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colors, which color-blind readers can tell apart.
TRAIN, VALID = "#0072B2", "#E69F00"
OTHERS = ("#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")

_DASHES = ("-", "--", ":")
_PANELS_PER_ROW = 3
_LARGEST = 1e300  # what is larger, infinite or NaN is not drawn: matplotlib's limits would overflow
_LOG_RANGE = 20.0  # highest / lowest value above which a loss is drawn on a logarithmic axis


def group_by_metric(names: Iterable[str]) -> dict[str, list[str]]:
    """Groups names by the metric they belong to, one group for each panel.

    >>> group_by_metric(["train/loss", "lr", "valid/loss", "valid/recall/0", "valid/recall/1"])
    {'loss': ['train/loss', 'valid/loss'], 'lr': ['lr'], 'recall': ['valid/recall/0', 'valid/recall/1']}
    """
    groups: dict[str, list[str]] = {}
    for name in names:
        parts = name.split("/")
        groups.setdefault(parts[0] if len(parts) == 1 or parts[0] == "lr" else parts[1], []).append(name)
    return groups


class LineStyle(NamedTuple):
    """How a line is drawn: its color, and solid (0), dashed (1) or dotted (2)."""

    color: str
    dash: int = 0


def line_styles(names: Iterable[str]) -> dict[str, LineStyle]:
    """Chooses a style for each name: the first of training and of validation have fixed colors, the others follow.

    >>> line_styles(["train/loss", "valid/loss", "test/loss"])["test/loss"]
    LineStyle(color='#009E73', dash=0)
    """
    styles: dict[str, LineStyle] = {}
    fixed = {"train": TRAIN, "valid": VALID}
    others = 0
    for name in names:
        if (color := fixed.pop(name.partition("/")[0], None)) is not None:
            styles[name] = LineStyle(color)
        else:
            styles[name] = LineStyle(OTHERS[others % len(OTHERS)], others // len(OTHERS) % 3)
            others += 1
    return styles


def use_log_scale(values: Iterable[float]) -> bool:
    """Whether values of which less is better are easier to read on a logarithmic axis.

    >>> use_log_scale([2.3, 0.01]), use_log_scale([2.3, 0.5]), use_log_scale([2.3, 0.0])
    (True, False, False)
    """
    finite = [value for value in values if math.isfinite(value)]
    return bool(finite) and min(finite) > 0 and max(finite) / min(finite) > _LOG_RANGE


def plot_series(
    epochs: Sequence[int],
    panels: Mapping[str, Mapping[str, Sequence[float]]],
    best: Best | None,
    *,
    minimized: frozenset[str] = frozenset(),
    ax: "Axes | None" = None,
) -> "Figure":
    """Draws series (by panel and name) over the epochs; with `ax`, all of them there. See `History.plot`.

    `minimized` names the series of which less is better: only those may get a logarithmic axis.
    """
    if not panels:
        raise InvalidArgument("plot: there are no numbers yet; plot after the first epoch")
    if ax is not None:
        _draw(
            ax, epochs, {name: values for series in panels.values() for name, values in series.items()}, best, minimized
        )
        return figure_of(ax)
    columns = min(_PANELS_PER_ROW, len(panels))
    rows = -(-len(panels) // columns)
    figure = new_figure(4.5 * columns if columns > 1 else 7, 3.2 * rows)
    for number, (title, series) in enumerate(panels.items(), 1):
        axes = figure.add_subplot(rows, columns, number)
        _draw(axes, epochs, series, best, minimized)
        axes.set_ylabel(escape_label(title))
    return figure


def _draw(
    axes: "Axes",
    epochs: Sequence[int],
    series: Mapping[str, Sequence[float]],
    best: Best | None,
    minimized: frozenset[str],
) -> None:
    for name, style in line_styles(series).items():
        points = [(epoch, value) for epoch, value in zip(epochs, series[name], strict=True) if abs(value) < _LARGEST]
        marker = "o" if len(points) < 2 else None  # a line through one point is invisible
        x, y = [epoch for epoch, _ in points], [value for _, value in points]
        axes.plot(x, y, _DASHES[style.dash], marker=marker, color=style.color, label=escape_label(name))
        if best is not None and best.name == name and abs(best.value) < _LARGEST:
            label = f"best: {format_number(best.value)} in epoch {best.epoch}"
            axes.plot([best.epoch], [best.value], "o", color=style.color, label=label)
    if minimized.issuperset(series) and use_log_scale(value for values in series.values() for value in values):
        axes.set_yscale("log")
    axes.set_xlabel("Epoch")
    if len(series) == 1:
        axes.set_ylabel(escape_label(next(iter(series))))
    use_integer_ticks(axes)
    axes.grid(alpha=0.3)
    is_crowded = len(axes.lines) > 6
    axes.legend(fontsize="small" if is_crowded else None, ncols=2 if is_crowded else 1)
