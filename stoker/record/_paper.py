"""What every matplotlib picture begins with: axes to draw on, and names that can be written on them."""

from typing import TYPE_CHECKING

from stoker.errors import MissingExtra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def paper(width: float, height: float) -> "Figure":
    """An empty figure of so many inches (`stoker[plot]`), which shows itself in a notebook and which pyplot ignores.

    >>> paper(6, 4).subplots().get_title()
    ''
    """
    try:
        from stoker.record._figure import Picture
    except ImportError as error:
        raise MissingExtra('plot needs matplotlib: pip install "stoker[plot]"') from error
    return Picture(figsize=(width, height), layout="constrained")


def figure_of(axes: "Axes") -> "Figure":
    """The figure that axes are in, also those of a figure inside a figure."""
    from matplotlib.figure import Figure

    return axes.figure if isinstance(axes.figure, Figure) else axes.figure.figure


def written(name: str) -> str:
    r"""A name as matplotlib can write it: a letter that the font lacks is a box, and `$` begins no formula.

    >>> written("loss"), written("損失"), written("5$"), written("_own")
    ('loss', '□□', '5\\$', ' _own')
    """
    from matplotlib.font_manager import FontProperties, findfont, get_font

    known = get_font(findfont(FontProperties())).get_charmap()
    text = "".join(letter if ord(letter) in known else "□" for letter in name).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text  # matplotlib keeps names with an underscore to itself
