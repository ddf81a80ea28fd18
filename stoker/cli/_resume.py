"""`stoker resume RUN`: the script of a run once more, from where the run stands."""

import os
import shlex
import sys
from pathlib import Path
from typing import NoReturn

from stoker._text import escape_control
from stoker.cli._checkpoints import store_of
from stoker.cli._command import command_of
from stoker.cli._runs import epochs
from stoker.cli._screen import screen
from stoker.cli._show import find
from stoker.errors import BadFile, InvalidArgument, RunExists
from stoker.record import Run


def main(name: str, *, yes: bool) -> int:
    """Shows the command that goes on with a run, asks, and becomes it; 1 where the answer is no."""
    run = Run.open(find(name))
    refuse_what_is_alive_or_over(run)
    refuse_what_was_moved(run)
    command, folder = command_of(run)
    console = screen()
    console.print(f"{escape_control(str(run.path))}: {standing(run)}", markup=False)
    console.print(
        f"To go on with it, a command out of its run.json is run in {escape_control(str(folder))}:", markup=False
    )
    console.print(f"  {escape_control(shlex.join(command))}", markup=False, soft_wrap=True)
    if yes or agreed("Do that only if you trust whoever made this directory. Run it? [y/N] "):
        become(command, folder, run.path.absolute())
    print("not run; with --yes it is run without asking")
    return 1


def refuse_what_is_alive_or_over(run: Run) -> None:
    """An error for a run that there is nothing to resume of."""
    if run.writer is not None:
        raise RunExists(
            f"{str(run.path)!r} is being written by {run.writer}: a run is resumed once its process has ended"
        )
    found, saved = run.summary(), store_of(run).saved()
    if found["state"] == "finished" or (saved and saved[-1].ended is not None):
        why = found["reason"] or f"{epochs(found)} epochs are done"
        raise InvalidArgument(
            f"{str(run.path)!r} is over: {why}. To train it for longer, give its fit more epochs (or more of what "
            "ended it) and start the script yourself, with resume=True"
        )


def refuse_what_was_moved(run: Run) -> None:
    """An error for a copy, or a run under another name: its command would go on with what is at the old place."""
    begun = run.facts.get("path")
    if isinstance(begun, str) and Path(begun).resolve() != run.path.resolve():
        raise InvalidArgument(
            f"{str(run.path)!r} was begun as {begun!r}, and its command would go on with what is there now; move it "
            f"back, or start the script yourself with run={str(run.path)!r} and resume=True"
        )


def standing(run: Run) -> str:
    """How far a run came, and what it goes on from."""
    found = run.summary()
    told = f"{found['state']}, {epochs(found)} epochs done"
    resumable = [saved for saved in store_of(run).saved() if saved.resumable]
    if not resumable:
        return f"{told}; it has no checkpoint, so it starts from its beginning"
    last = resumable[-1]
    return f"{told}; its newest checkpoint is {last.name} (epoch {last.epoch}, update {last.update:,})"


def agreed(question: str) -> bool:
    """Whether the answer is yes; where nobody is there to answer, it is no."""
    print(question, end="", flush=True)
    try:
        return input().strip().lower() in ("y", "yes")
    except EOFError:
        print()
        return False


def become(command: list[str], folder: Path, run: Path) -> NoReturn:
    """Puts the command in the place of this process, so that signals reach it and its exit code is ours."""
    sys.stdout.flush()
    try:
        os.chdir(folder)
        os.execvpe(command[0], command, {**os.environ, "STOKER_RESUME": str(run)})
    except OSError as error:
        raise BadFile(f"{command[0]!r} can't be run: {error}") from error
