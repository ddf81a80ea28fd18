"""The table of epochs as a picture."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from stoker.errors import InvalidArgument, MissingExtra
from stoker.record._numbers import Best
from stoker.record._panels import panels
from stoker.record._text import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ACROSS = 3  # panels in a row


def plot(
    epochs: Sequence[int],
    series: Mapping[str, Sequence[float]],
    best: Best | None,
    *,
    together: bool,
    ax: "Axes | None" = None,
) -> "Figure":
    """Draws series over the epochs, in one panel or in one for each metric, and returns the figure."""
    try:
        import matplotlib.pyplot as plt
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra('plot needs matplotlib: pip install "stoker[plot]"') from error
    if not series:
        raise InvalidArgument("plot: there are no numbers yet; plot after the first epoch")
    if ax is not None:
        _draw(ax, epochs, series, best)
        return ax.figure if isinstance(ax.figure, Figure) else ax.figure.figure
    grouped = {"": list(series)} if together else panels(series)
    across = min(_ACROSS, len(grouped))
    down = -(-len(grouped) // across)
    figure, axes = plt.subplots(
        down, across, figsize=(4.5 * across if across > 1 else 7, 3.2 * down), squeeze=False, layout="constrained"
    )
    for place, (title, names) in enumerate(grouped.items()):
        panel = axes[place // across][place % across]
        panel.set_title(title)
        _draw(panel, epochs, {name: series[name] for name in names}, best)
    for place in range(len(grouped), down * across):
        axes[place // across][place % across].set_axis_off()
    return figure


def _draw(axes: "Axes", epochs: Sequence[int], series: Mapping[str, Sequence[float]], best: Best | None) -> None:
    from matplotlib.ticker import MaxNLocator

    for name, values in series.items():
        points = [(epoch, value) for epoch, value in zip(epochs, values, strict=True) if value == value]
        mark = "o" if len(points) < 2 else None  # a line needs two points to be seen
        (line,) = axes.plot([epoch for epoch, _ in points], [value for _, value in points], marker=mark, label=name)
        if best is not None and best.name == name:
            label = f"best: {number(best.value)} in epoch {best.epoch}"
            axes.plot([best.epoch], [best.value], "o", color=line.get_color(), label=label)
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend()
