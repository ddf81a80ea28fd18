"""The table of epochs as a picture."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from stoker.errors import InvalidArgument
from stoker.record._looks import looks
from stoker.record._numbers import Best
from stoker.record._panels import panels
from stoker.record._paper import figure_of, paper, written
from stoker.record._scale import wants_log
from stoker.record._text import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ACROSS = 3  # panels in a row
_DASHES = ("-", "--", ":")


def plot(
    epochs: Sequence[int],
    series: Mapping[str, Sequence[float]],
    best: Best | None,
    *,
    together: bool,
    falling: frozenset[str] = frozenset(),
    ax: "Axes | None" = None,
) -> "Figure":
    """Draws series over the epochs, in one panel or in one for each metric, and returns the figure.

    Of what is `falling`, less is better: it stands on a logarithmic scale where it falls far.
    """
    if not series:
        raise InvalidArgument("plot: there are no numbers yet; plot after the first epoch")
    if ax is not None:
        _draw(ax, epochs, series, best, falling)
        return figure_of(ax)
    grouped = {"": list(series)} if together else panels(series) or {"": list(series)}
    across = min(_ACROSS, len(grouped))
    down = -(-len(grouped) // across)
    figure = paper(4.5 * across if across > 1 else 7, 3.2 * down)
    for place, (title, names) in enumerate(grouped.items(), 1):
        panel = figure.add_subplot(down, across, place)
        panel.set_title(written(title))
        _draw(panel, epochs, {name: series[name] for name in names}, best, falling)
    return figure


def _draw(
    axes: "Axes",
    epochs: Sequence[int],
    series: Mapping[str, Sequence[float]],
    best: Best | None,
    falling: frozenset[str],
) -> None:
    from matplotlib.ticker import MaxNLocator

    for name, look in looks(series).items():
        points = [(epoch, value) for epoch, value in zip(epochs, series[name], strict=True) if not math.isnan(value)]
        mark = "o" if len(points) < 2 else None  # a line needs two points to be seen
        x, y = [epoch for epoch, _ in points], [value for _, value in points]
        style = _DASHES[look.dash]
        axes.plot(x, y, style, marker=mark, color=look.colour, label=written(name))
        if best is not None and best.name == name:
            label = f"best: {number(best.value)} in epoch {best.epoch}"
            axes.plot([best.epoch], [best.value], "o", color=look.colour, label=label)
    if falling.issuperset(series) and wants_log(value for values in series.values() for value in values):
        axes.set_yscale("log")
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    crowded = len(axes.lines) > 6
    axes.legend(fontsize="small" if crowded else None, ncols=2 if crowded else 1)
