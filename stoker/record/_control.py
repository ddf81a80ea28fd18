"""Requests to a running run: a viewer writes a file, and the training loop looks for it between updates."""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from stoker._files import open_regular_file
from stoker.errors import InvalidArgument
from stoker.record._journal import EVENTS, find_directory, is_being_written

CONTROL = "control.json"
Action = Literal["stop", "save"]
_LARGEST = 4096  # bytes; a request has about a hundred


@dataclass(frozen=True, slots=True)
class Request:
    """What a run was asked to do, and by whom."""

    action: Action
    by: str
    id: str
    time: float


def send_request(path: str | os.PathLike[str], action: Action, *, by: str = "") -> str:
    """Asks a running run to stop or to save, and returns the id of the request.

    The run obeys between two updates; its record then says so. Raises if no process writes the run.
    """
    if action not in get_args(Action):
        raise InvalidArgument(f'action={action!r}: a run can be asked to "stop" or to "save"')
    directory = find_directory(path)
    if not is_being_written(directory / EVENTS):
        raise InvalidArgument(f"{str(directory)!r} can't be asked to {action}: the run has no living process")
    request = {"ask": action, "id": os.urandom(8).hex(), "time": time.time(), "by": by}
    draft = directory / f".{CONTROL}.{request['id']}.part"  # a unique name: two viewers may ask at once
    try:
        draft.write_text(json.dumps(request) + "\n", encoding="utf-8")
        draft.replace(directory / CONTROL)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise InvalidArgument(f"{str(directory)!r} can't be asked to {action}: {error}") from error
    return request["id"]


class Control:
    """The run's side of the control file: finds requests that were made after this object.

    >>> Control(Path("runs/nowhere")).poll() is None
    True
    """

    def __init__(self, path: Path) -> None:
        self._path = path / CONTROL
        self._signature: tuple[int, ...] = ()
        self._id = ""
        self.poll()  # ignore a request to an earlier process

    def poll(self) -> Request | None:
        """Returns a new request once; costs a `stat` of the file while there is none. Damaged files are ignored."""
        try:
            stat = self._path.stat()
            signature = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)
            if signature == self._signature:
                return None
            self._signature = signature
            with open_regular_file(self._path) as file:
                content = json.loads(file.read(_LARGEST + 1)) if stat.st_size <= _LARGEST else {}
            request = Request(content["ask"], str(content.get("by", "")), str(content["id"]), float(content["time"]))
        except (OSError, ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError):
            return None
        if request.id == self._id or request.action not in get_args(Action):
            return None
        self._id = request.id
        printable = "".join(letter for letter in request.by if letter.isprintable())  # it is shown on terminals
        return Request(request.action, printable[:80], request.id, request.time)
