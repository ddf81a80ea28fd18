"""record: takes events, gives answers; the one type to know is `Record`.

A fit appends an `Event` for everything that happens. `History` (the table of epochs), the best epoch, early stopping
and the console are questions to the record and nothing else. With a path each event is a line of `events.jsonl`, which
other processes read while it grows; a `Run` is the directory that it stands in, beside the config and the log.
"""

from stoker.record._event import Event
from stoker.record._history import History
from stoker.record._numbers import Best, Direction
from stoker.record._record import Listener, Record
from stoker.record._run import Run
from stoker.record._runs_in import runs_in
from stoker.record._text import number

__all__ = ["Best", "Direction", "Event", "History", "Listener", "Record", "Run", "number", "runs_in"]
