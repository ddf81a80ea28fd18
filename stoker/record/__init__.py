"""record: the events of a run, the directory they are stored in, and the tools that read them. Start at `Record`.

A fit appends an `Event` for everything that happens. `History` (the table of epochs), the best epoch, early stopping
and the console read the `Record`. A `Run` is a directory with the record (`events.jsonl`), the config and the log;
a `Follower` reads such a directory from another process while it grows. `Numbers` is what a `Record` and a `Follower`
have in common: names, curves, messages, directions and units. Nothing here imports torch.
"""

from typing import TYPE_CHECKING

from stoker._lazy import import_on_use
from stoker.record._columns import Best, Direction, Numbers, Points, Source
from stoker.record._control import Action, Control, Request, send_request
from stoker.record._event import Event
from stoker.record._history import History
from stoker.record._matrix import Matrix, matrix_sizes, split_matrices
from stoker.record._media import MEDIA_TYPES, MediaLimits, MediaLog, media_path, read_media
from stoker.record._plot import (
    LineStyle,
    group_by_metric,
    line_styles,
    use_log_scale,
)
from stoker.record._record import Record
from stoker.record._run import Run, flatten_config, run_settings
from stoker.record._summary import Status

if TYPE_CHECKING:
    from stoker.record._annotations import (
        TRASH,
        Annotations,
        find_removed_runs,
        read_annotations,
        remove_run,
        restore_run,
        write_annotations,
    )
    from stoker.record._command import is_python, python_target, read_command, resume_command
    from stoker.record._export import export
    from stoker.record._follow import CheckpointInfo, Follower, find_runs, list_checkpoints
else:  # what a plain fit does not use
    __getattr__, __dir__ = import_on_use(
        __name__,
        {
            "_annotations": "Annotations TRASH find_removed_runs read_annotations "
            "remove_run restore_run write_annotations",
            "_command": "is_python python_target read_command resume_command",
            "_export": "export",
            "_follow": "CheckpointInfo Follower find_runs list_checkpoints",
        },
    )

__all__ = [
    "Annotations",
    "Best",
    "CheckpointInfo",
    "Event",
    "Follower",
    "History",
    "Matrix",
    "MediaLimits",
    "MediaLog",
    "Numbers",
    "Points",
    "Record",
    "Run",
    "Status",
    "export",
    "find_runs",
    "list_checkpoints",
    "media_path",
    "read_annotations",
    "read_media",
    "remove_run",
    "restore_run",
    "run_settings",
    "send_request",
    "write_annotations",
]
