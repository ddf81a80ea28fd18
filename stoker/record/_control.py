"""Requests to a running run: a viewer writes a file, and the training loop looks for it between updates."""

import json
import os
import secrets
import stat
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from stoker.errors import InvalidArgument
from stoker.record._journal import EVENTS, is_being_written, missing_run

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
    directory = Path(path)
    directory = directory.parent if directory.is_file() else directory
    if not (directory / EVENTS).exists():
        raise missing_run(directory)
    if not is_being_written(directory / EVENTS):
        raise InvalidArgument(f"{str(directory)!r} can't be asked to {action}: the run has no living process")
    request = {"ask": action, "id": secrets.token_hex(8), "time": time.time(), "by": by}
    draft = directory / f".{CONTROL}.{request['id']}.part"  # a unique name: two viewers may ask at once
    try:
        draft.write_text(json.dumps(request) + "\n", encoding="utf-8")
        draft.replace(directory / CONTROL)
    except OSError as error:
        with suppress(OSError):
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
        self._seen: tuple[int, ...] | None = None
        self._id = ""
        self.poll()  # ignore a request to an earlier process

    def poll(self) -> Request | None:
        """Returns a new request once; costs a `stat` of the file while there is none. Damaged files are ignored."""
        try:
            found = self._path.stat()
            signature = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
            if signature == self._seen:
                return None
            self._seen = signature
            if not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST:
                return None
            request = _parse(self._path.read_bytes())
        except (OSError, ValueError, TypeError, LookupError, OverflowError, RecursionError):
            return None
        if request.id == self._id:
            return None
        self._id = request.id
        return request


def _parse(data: bytes) -> Request:
    found = json.loads(data)
    action, name, by = found["ask"], found["id"], found.get("by", "")
    if action not in get_args(Action) or not all(isinstance(each, str) for each in (name, by)):
        raise ValueError(f"expected a request, but: {found!r}")
    printable = "".join(letter for letter in by if letter.isprintable())  # it is shown on terminals
    return Request(action, printable[:80], name, float(found["time"]))
