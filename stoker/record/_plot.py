"""Pictures of a history: which numbers share a panel, how their lines look, and the matplotlib figure."""

import base64
import functools
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from stoker._text import format_number
from stoker.errors import InvalidArgument, MissingExtra
from stoker.record._columns import Best

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colors, which color-blind readers can tell apart.
TRAIN, VALID = "#0072B2", "#E69F00"
OTHERS = ("#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")

Size = Literal["screen", "paper", "slide"]
# The scale of a figure, and matplotlib's settings. A figure of two columns then fits a page, or a slide.
_SIZES: dict[str, tuple[float, Any]] = {  # scale of the figure, and settings of matplotlib by name
    "screen": (1.0, {}),
    "paper": (0.75, {"font.size": 8.0, "lines.linewidth": 1.0, "axes.linewidth": 0.6, "lines.markersize": 4.0}),
    "slide": (1.5, {"font.size": 18.0, "lines.linewidth": 3.0, "axes.linewidth": 1.2, "lines.markersize": 9.0}),
}
_SCALE = ContextVar("scale of figures", default=1.0)  # inside `figure_size`
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


@contextmanager
def figure_size(size: Size) -> Iterator[None]:
    """Draws what is inside the block for a screen, a paper (small, thin lines) or a slide (large, thick lines).

    >>> with figure_size("paper"):
    ...     figure = new_figure(4, 3)
    >>> figure.get_size_inches().tolist()
    [3.0, 2.25]
    """
    if size not in _SIZES:
        raise InvalidArgument(f"size={size!r}; expected {', '.join(map(repr, _SIZES))}")
    try:
        import matplotlib
    except ImportError as error:
        raise MissingExtra('plot needs matplotlib: pip install "stoker[plot]"') from error
    scale, settings = _SIZES[size]
    token = _SCALE.set(scale)
    try:
        with matplotlib.rc_context(settings):
            yield
    finally:
        _SCALE.reset(token)


def new_figure(width: float, height: float) -> "Figure":
    """Creates an empty matplotlib figure (`stoker[plot]`), in inches; inside `figure_size` it has another scale.

    A notebook shows it; pyplot does not know it, so nothing keeps it alive or prints it a second time.

    >>> new_figure(6, 4).subplots().get_title()
    ''
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra('plot needs matplotlib: pip install "stoker[plot]"') from error
    scale = _SCALE.get()
    figure: Any = Figure(figsize=(width * scale, height * scale), layout="constrained")
    figure._repr_png_ = functools.partial(_png, figure)  # what IPython calls
    return figure


def _png(figure: "Figure", **options: Any) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png", **options)
    return file.getvalue()


def figure_to_html(figure: "Figure") -> str:
    """The figure as an `<img>` that holds its own data."""
    data = base64.b64encode(_png(figure, dpi=70)).decode()
    return f'<img alt="curves" src="data:image/png;base64,{data}"/>'


def figure_of(axes: "Axes") -> "Figure":
    """The figure that the axes belong to, also where they are in a subfigure."""
    from matplotlib.figure import Figure

    return axes.figure if isinstance(axes.figure, Figure) else axes.figure.figure


def escape_label(name: str) -> str:
    r"""A name as a matplotlib label: `$` starts no formula, and a character that the font lacks becomes a box.

    >>> escape_label("loss"), escape_label("損失"), escape_label("5$"), escape_label("_own")
    ('loss', '□□', '5\\$', ' _own')
    """
    from matplotlib.font_manager import FontProperties, findfont, get_font

    known = get_font(findfont(FontProperties())).get_charmap()
    text = "".join(letter if ord(letter) in known else "□" for letter in name).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text  # matplotlib hides labels that start with an underscore


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
    from matplotlib.ticker import MaxNLocator

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
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    is_crowded = len(axes.lines) > 6
    axes.legend(fontsize="small" if is_crowded else None, ncols=2 if is_crowded else 1)
