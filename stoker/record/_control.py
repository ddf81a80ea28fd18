"""The one thing that a viewer can do to a run: ask it to stop or to save, by a file that the loop looks at."""

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
from stoker.record._journal import EVENTS, no_run
from stoker.record._lock import is_written

CONTROL = "control.json"
Wish = Literal["stop", "save"]
_LARGEST = 4096  # bytes; a request has about a hundred


@dataclass(frozen=True, slots=True)
class Request:
    """What a run was asked to do, and by whom."""

    what: Wish
    by: str
    id: str
    time: float


def ask(path: str | os.PathLike[str], what: Wish, *, by: str = "") -> str:
    """Asks a living run to stop or to save, and returns the id of the request; a run that nobody writes is refused.

    The run obeys between two updates, and its record says so; nothing else tells that it did.
    """
    if what not in get_args(Wish):
        raise InvalidArgument(f'what={what!r}: a run can be asked to "stop" or to "save"')
    folder = Path(path)
    folder = folder.parent if folder.is_file() else folder
    if not (folder / EVENTS).exists():
        raise no_run(folder / EVENTS)
    if not is_written(folder / EVENTS):
        raise InvalidArgument(f"{str(folder)!r} can't be asked to {what}: no living process writes that run")
    request = {"ask": what, "id": secrets.token_hex(8), "time": time.time(), "by": by}
    draft = folder / f".{CONTROL}.{request['id']}.part"  # a name of its own: two may ask at once
    try:
        draft.write_text(json.dumps(request) + "\n", encoding="utf-8")
        draft.replace(folder / CONTROL)
    except OSError as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise InvalidArgument(f"{str(folder)!r} can't be asked to {what}: {error}") from error
    return request["id"]


class Control:
    """The run's side of the control file: what has been asked since this was made.

    >>> Control(Path("runs/nowhere")).asked() is None
    True
    """

    def __init__(self, path: Path) -> None:
        self._path = path / CONTROL
        self._seen: tuple[int, ...] | None = None
        self._id = ""
        self.asked()  # what stands there already was meant for an earlier process

    def asked(self) -> Request | None:
        """A request that is new, once; costs one look at the file's size and time while there is none."""
        try:
            found = self._path.stat()
            mark = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
            if mark == self._seen:
                return None
            self._seen = mark
            if not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST:
                return None
            request = _parsed(self._path.read_bytes())
        except (
            OSError,
            ValueError,
            TypeError,
            LookupError,
            OverflowError,
            RecursionError,
        ):  # nothing there, or nothing to obey
            return None
        if request.id == self._id:
            return None
        self._id = request.id
        return request


def _parsed(data: bytes) -> Request:
    found = json.loads(data)
    what, name, by = found["ask"], found["id"], found.get("by", "")
    if what not in get_args(Wish) or not all(isinstance(each, str) for each in (name, by)):
        raise ValueError(f"expected a request, but: {found!r}")
    printable = "".join(letter for letter in by if letter.isprintable())  # it goes to the record, and to terminals
    return Request(what, printable[:80], name, float(found["time"]))
