"""record: takes events, gives answers; the one type to know is `Record`.

A fit appends an `Event` for everything that happens. `History` (the table of epochs), the best epoch, early stopping
and the console are questions to the record and nothing else. With a path each event is a line of `events.jsonl`, which
other processes read while it grows; a `Run` is the directory that it stands in, beside the config and the log.
"""

from stoker._text import format_duration as duration
from stoker._text import format_number as number
from stoker._text import format_size as size
from stoker._text import format_time as when
from stoker.record._checkpoints import Kept, checkpoints
from stoker.record._control import Control, Request, Wish, ask
from stoker.record._differences import asked, flat
from stoker.record._event import Event
from stoker.record._export import export
from stoker.record._follow import Follower
from stoker.record._history import History
from stoker.record._numbers import Best, Direction
from stoker.record._plot import (
    LineStyle,
    escape_label,
    figure_of,
    group_by_metric,
    line_styles,
    matrix_sizes,
    new_figure,
    use_log_scale,
)
from stoker.record._points import Points
from stoker.record._record import Listener, Record
from stoker.record._run import Run
from stoker.record._runs_in import runs_in
from stoker.record._status import Status, fraction_done
from stoker.record._table import Source

__all__ = [
    "Best",
    "Control",
    "Direction",
    "Event",
    "Follower",
    "History",
    "Kept",
    "LineStyle",
    "Listener",
    "Points",
    "Record",
    "Request",
    "Run",
    "Source",
    "Status",
    "Wish",
    "ask",
    "asked",
    "checkpoints",
    "duration",
    "escape_label",
    "export",
    "figure_of",
    "flat",
    "fraction_done",
    "group_by_metric",
    "line_styles",
    "matrix_sizes",
    "new_figure",
    "number",
    "runs_in",
    "size",
    "use_log_scale",
    "when",
]
