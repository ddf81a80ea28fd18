"""The loss at each learning rate, as `stoker.lr_find` measures it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stoker.record import figure_of, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def lr_curve(
    rates: Sequence[float], losses: Sequence[float], suggestion: float | None = None, *, ax: "Axes | None" = None
) -> "Figure":
    """Draws the loss over the learning rate, with the one to start with marked (`stoker[plot]`).

    >>> lr_curve([1e-3, 1e-2, 1e-1], [2.3, 1.1, 3.0], 1e-2).axes[0].get_xscale()
    'log'
    """
    axes = new_figure(6, 3.6).subplots() if ax is None else ax
    axes.plot(rates, losses, color="#0072B2")
    if suggestion is not None:
        axes.axvline(suggestion, linestyle="--", color="#E69F00", label=f"suggestion {suggestion:.2g}")
        axes.legend()
    axes.set(xscale="log", xlabel="learning rate", ylabel="loss, smoothed")
    axes.grid(alpha=0.3)
    return figure_of(axes)
