"""console: shows a fit while it trains, as a live block, as a notebook output, or as plain lines.

`console(record)` returns a listener for `record.subscribe`. Drawing takes at most 1 % of the time, and a broken pipe
never stops training. `chart`, `bars` and `legend` draw curves with axes for any terminal.
"""

from stoker.view._chart import Line, bars, chart, legend
from stoker.view.console._console import Listener, console

__all__ = ["Line", "Listener", "bars", "chart", "console", "legend"]
