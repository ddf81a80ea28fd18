r"""Showing a fit: takes a record and its events, gives a display that costs next to nothing; the type is `Listener`.

>>> from stoker.view.console import plot_text
>>> print("\n".join(plot_text([5, 3, 2, 1.5, 1.2, 1, 0.9, 0.9], 8, 2)))
⠱⡀⠀⠀⠀⠀⠀⠀
⠀⠈⠒⠤⢄⣀⣀⣀

`console` chooses between one live block (a terminal), one output that is brought up to date (a notebook) and plain
lines (a file, a pipe). Whatever happens to the reader, training goes on. `chart` and `bars` draw pictures with axes.
"""

from stoker.view.console._bars import bars
from stoker.view.console._chart import Line, chart, legend
from stoker.view.console._console import Listener, console
from stoker.view.console._format import clock, short, visible
from stoker.view.console._plot import plot_text

__all__ = ["Line", "Listener", "bars", "chart", "clock", "console", "legend", "plot_text", "short", "visible"]
