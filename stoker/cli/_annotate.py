"""`stoker tag`, `note`, `rename`, `archive` and `rm`: what people add to runs, and removing them with undo."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from stoker.cli._screen import find_run, new_screen
from stoker.errors import InvalidArgument, MissingFile
from stoker.record import TRASH, find_removed_runs, read_annotations, remove_run, restore_run, write_annotations


def tag_run(name: str, tags: Sequence[str], *, remove: bool) -> None:
    """Adds tags to a run, or removes them; prints the tags it has then."""
    run = find_run(name)
    annotations = read_annotations(run)
    kept = [tag for tag in annotations.tags if tag not in tags]
    if remove and (unknown := [tag for tag in tags if tag not in annotations.tags]):
        known = ", ".join(annotations.tags) or "none"
        raise InvalidArgument(f"{name} has no tag {', '.join(unknown)}; its tags: {known}")
    if tags:
        annotations = replace(annotations, tags=tuple(kept if remove else dict.fromkeys([*annotations.tags, *tags])))
        write_annotations(run, annotations)
    new_screen().print(f"{run}: {' '.join(annotations.tags) or 'no tags'}", markup=False)


def note_run(name: str, text: str | None) -> None:
    """Sets the note of a run ("" removes it), or prints it."""
    run = find_run(name)
    annotations = read_annotations(run)
    if text is not None:
        annotations = replace(annotations, note=text)
        write_annotations(run, annotations)
    new_screen().print(f"{run}: {annotations.note or 'no note'}", markup=False)


def rename_run(name: str, title: str) -> None:
    """Gives a run a title; its directory keeps its name, which scripts and checkpoints use."""
    run = find_run(name)
    write_annotations(run, replace(read_annotations(run), title=title or None))
    new_screen().print(f"{run}: {title or 'no title'}", markup=False)


def archive_runs(names: Sequence[str], *, undo: bool) -> None:
    """Hides runs from lists, or shows them again."""
    for run in map(find_run, names):
        write_annotations(run, replace(read_annotations(run), archived=not undo))
        text = "is listed again" if undo else "is archived; stoker runs --all lists it"
        new_screen().print(f"{run} {text}", markup=False)


def remove_runs(names: Sequence[str], *, undo: bool) -> None:
    """Moves runs to the trash beside them, or back; without a name, what was removed last."""
    screen = new_screen()
    if undo:
        for name in names or [None]:
            screen.print(f"restored {os.path.relpath(restore_run(_find_trashed(name)))}", markup=False)
        return
    if not names:
        raise InvalidArgument("rm needs the name of a run, or --undo to restore the one that was removed last")
    for run in [find_run(name) for name in names]:
        trashed = os.path.relpath(remove_run(run))
        screen.print(f"removed {run}; `stoker rm --undo {run.name}` restores it from {trashed}", markup=False)


def _find_trashed(name: str | None, folder: str = "runs") -> Path:
    """The run that was removed last, of this name or path."""
    places = [Path(folder), *([Path(name).parent, Path(folder, name).parent] if name else [])]
    directories = {*places, *(trash.parent for trash in Path(folder).glob(f"**/{TRASH}"))}
    wanted = Path(name).name if name else None
    found = [removed for directory in directories for removed in find_removed_runs(directory, wanted)]
    if not found:
        what = f"no run {wanted!r}" if wanted else "nothing"
        raise MissingFile(f"there is {what} in the trash of {folder!r} and its subdirectories")
    return max(found)[1]
