"""What people add to a run afterwards: a title, tags, a note, whether it is archived; and removing runs."""

import os
import re
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stoker._files import explain_errors, parse_json, read_file, write_json
from stoker.errors import BadFile, InvalidArgument, MissingFile, RunExists
from stoker.record._journal import EVENTS, find_directory, is_being_written

ANNOTATIONS, TRASH = "annotations.json", ".trash"
_MAX_TITLE, _MAX_TAG, _MAX_TAGS, _MAX_NOTE = 200, 64, 32, 64_000  # characters, characters, tags, bytes
_MAX_FILE = 1 << 20  # bytes
_REMOVED = re.compile(r"(.+)-(\d{8}-\d{6}-\d{6})")  # the name and the time of a removed run


@dataclass(frozen=True, slots=True)
class Annotations:
    """What people have added to a run: a title instead of its directory's name, tags, a note, and whether it is hidden.

    >>> Annotations(tags=("baseline",)).archived
    False
    """

    title: str | None = None
    tags: tuple[str, ...] = ()
    note: str = ""
    archived: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "tags", tuple(dict.fromkeys(self.tags)))


def read_annotations(run: str | os.PathLike[str]) -> Annotations:
    """The annotations of a run; the defaults if it has none. Raises `BadFile` if their file is damaged."""
    path = Path(run) / ANNOTATIONS
    try:
        content = read_file(path, limit=_MAX_FILE)
    except MissingFile:
        return Annotations()
    data = parse_json(content, path)
    if not isinstance(data, dict):
        raise BadFile(f"{path}: expected an object, {{…}}, but it holds a {type(data).__name__}")
    try:
        return _check(Annotations(**{name: data[name] for name in Annotations.__slots__ if name in data}))
    except (InvalidArgument, TypeError) as error:  # TypeError: tags that can't be iterated or hashed
        raise BadFile(f"{path}: {error}; edit or delete it") from error


def write_annotations(run: str | os.PathLike[str], annotations: Annotations) -> None:
    """Replaces the annotations of a run, which may be running; its events are not touched.

    >>> from stoker.record import Run
    >>> Run.create("runs/annotated").close()
    >>> write_annotations("runs/annotated", Annotations(tags=("baseline",), note="the first that works"))
    >>> read_annotations("runs/annotated").note
    'the first that works'

    A title has at most 200 characters, a tag 64, a note 64 kB; there are at most 32 tags.
    """
    write_json(find_directory(run) / ANNOTATIONS, asdict(_check(annotations)), follow=False)


def _check(annotations: Annotations) -> Annotations:
    title, tags, note = annotations.title, annotations.tags, annotations.note
    if title is not None and not (isinstance(title, str) and len(title) <= _MAX_TITLE):
        raise InvalidArgument(f"the title is {_shorten(title)}; expected a text of at most {_MAX_TITLE} characters")
    for tag in tags:
        if not (isinstance(tag, str) and 0 < len(tag) <= _MAX_TAG):
            raise InvalidArgument(f"a tag is {_shorten(tag)}; expected a text of 1 to {_MAX_TAG} characters")
    if len(tags) > _MAX_TAGS:
        raise InvalidArgument(f"a run can have {_MAX_TAGS} tags; got {len(tags)}")
    if not isinstance(note, str) or len(note.encode("utf-8", "replace")) > _MAX_NOTE:
        raise InvalidArgument(f"the note is {_shorten(note)}; expected a text of at most {_MAX_NOTE:,} bytes")
    if not isinstance(annotations.archived, bool):
        raise InvalidArgument(f"archived is {_shorten(annotations.archived)}; expected true or false")
    return annotations


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


# --- Removing


def remove_run(run: str | os.PathLike[str]) -> Path:
    """Moves a run into `.trash` beside it and returns its new path; raises `RunExists` if a process writes it.

    >>> from stoker.record import Run, find_runs
    >>> Run.create("trials/letters").close()
    >>> trashed = remove_run("trials/letters")
    >>> [run.name for run in find_runs("trials")], restore_run(trashed).name
    ([], 'letters')

    Nothing is deleted: `restore_run` undoes it, and deleting `.trash` frees the space.
    """
    directory = find_directory(run).absolute()
    if is_being_written(directory / EVENTS):
        raise RunExists(f"{str(directory)!r} is being written; stop the run before you remove it")
    trash = directory.parent / TRASH
    target = trash / f"{directory.name}-{datetime.now(UTC):%Y%m%d-%H%M%S-%f}"
    with explain_errors(directory, expected="a run's directory"):
        trash.mkdir(exist_ok=True)
        directory.rename(target)
    return target


def find_removed_runs(directory: str | os.PathLike[str], name: str | None = None) -> list[tuple[str, Path]]:
    """The runs that `remove_run` has moved to a directory's trash, or those of one name: (time, path) of each."""
    trash = Path(directory) / TRASH
    found: list[tuple[str, Path]] = []
    for entry in os.scandir(trash) if trash.is_dir() else ():
        removed = _REMOVED.fullmatch(entry.name)
        if removed is not None and entry.is_dir() and name in (None, removed[1], entry.name):
            found.append((removed[2], Path(entry.path)))
    return found


def restore_run(trashed: str | os.PathLike[str]) -> Path:
    """Moves a run that `remove_run` removed back to its place; raises `RunExists` if another run is there now."""
    directory = find_directory(trashed).absolute()
    name = _REMOVED.fullmatch(directory.name)
    if directory.parent.name != TRASH or name is None:
        raise InvalidArgument(f"{str(directory)!r} is not in {TRASH}; give a path that remove_run has returned")
    target = directory.parent.parent / name[1]
    if os.path.lexists(target):
        raise RunExists(f"{str(target)!r} exists; move it away before you restore the removed run")
    with explain_errors(directory, expected="a run's directory"):
        directory.rename(target)
    return target
