"""Figures of matplotlib, which is imported nowhere else: sizes, new figures and axes, labels, and PNG files."""

import functools
import io
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal

from stoker.errors import InvalidArgument, MissingExtra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Size = Literal["screen", "paper", "slide"]
# The scale of a figure, and matplotlib's settings by name. A figure of two columns then fits a page, or a slide.
_SIZES: dict[str, tuple[float, Any]] = {
    "screen": (1.0, {}),
    "paper": (0.75, {"font.size": 8.0, "lines.linewidth": 1.0, "axes.linewidth": 0.6, "lines.markersize": 4.0}),
    "slide": (1.5, {"font.size": 18.0, "lines.linewidth": 3.0, "axes.linewidth": 1.2, "lines.markersize": 9.0}),
}
_SCALE = ContextVar("scale of figures", default=1.0)  # inside `figure_size`


@contextmanager
def _explain_missing() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise MissingExtra('plot needs matplotlib: pip install "stoker[plot]"') from error


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
    with _explain_missing():
        import matplotlib
    scale, settings = _SIZES[size]
    token = _SCALE.set(scale)
    try:
        with matplotlib.rc_context(settings):
            yield
    finally:
        _SCALE.reset(token)


def new_figure(width: float, height: float) -> "Figure":
    """Creates an empty figure, in inches; inside `figure_size` it has another scale.

    A notebook shows it; pyplot does not know it, so nothing keeps it alive or prints it a second time.

    >>> new_figure(6, 4).subplots().get_title()
    ''
    """
    with _explain_missing():
        from matplotlib.figure import Figure
    scale = _SCALE.get()
    figure: Any = Figure(figsize=(width * scale, height * scale), layout="constrained")
    figure._repr_png_ = functools.partial(figure_to_png, figure)  # what IPython calls
    return figure


def new_axes(width: float, height: float) -> "Axes":
    """Creates axes that fill a figure of their own; see `new_figure`."""
    return new_figure(width, height).subplots()


def new_pyplot_axes(width: float, height: float) -> "Axes":
    """Creates axes in a figure that pyplot knows, for a function that returns axes: a notebook shows only figures."""
    with _explain_missing():
        import matplotlib.pyplot as plt
    return plt.subplots(figsize=(width, height), layout="constrained")[1]


def figure_of(axes: "Axes") -> "Figure":
    """The figure that the axes belong to, also where they are in a subfigure."""
    from matplotlib.figure import Figure

    return axes.figure if isinstance(axes.figure, Figure) else axes.figure.figure


def use_integer_ticks(axes: "Axes") -> None:
    """Puts the ticks of the x axis at integers."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def escape_label(name: str) -> str:
    r"""A name as a label: `$` starts no formula, and a character that the font lacks becomes a box.

    >>> escape_label("loss"), escape_label("損失"), escape_label("5$"), escape_label("_own")
    ('loss', '□□', '5\\$', ' _own')
    """
    from matplotlib.font_manager import FontProperties, findfont, get_font

    known = get_font(findfont(FontProperties())).get_charmap()
    text = "".join(letter if ord(letter) in known else "□" for letter in name).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text  # matplotlib hides labels that start with an underscore


def figure_to_png(figure: "Figure", **options: Any) -> bytes:
    """The figure as a PNG file; the options are those of `savefig`."""
    file = io.BytesIO()
    figure.savefig(file, format="png", **options)
    return file.getvalue()


def pixels_to_png(pixels: Any, cmap: str) -> bytes:
    """Values from 0 to 1 as a PNG file: [height, width] in the colors of a color map, or [height, width, 3]."""
    with _explain_missing():
        from matplotlib.image import imsave
    file = io.BytesIO()
    imsave(file, pixels, format="png", cmap=cmap, vmin=0, vmax=1)
    return file.getvalue()
