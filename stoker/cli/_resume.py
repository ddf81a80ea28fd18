"""`stoker resume RUN`: runs the script of a run again, so that it continues the run."""

import os
import shlex
import sys
from pathlib import Path
from typing import NoReturn

from stoker._text import escape_control
from stoker.cli._screen import find_run, format_epochs, new_screen
from stoker.cli._show import open_store
from stoker.errors import BadFile, InvalidArgument, MissingFile, RunExists
from stoker.record import Run, is_python, python_target, read_command

_BY_HAND = "start the script yourself, with resume=True"


def resume(name: str, *, yes: bool) -> int:
    """Shows the command that continues a run, asks, and replaces this process by it; returns 1 for a no."""
    run = Run.open(find_run(name))
    _check_resumable(run)
    command, directory = _read_command(run)
    screen = new_screen()
    screen.print(f"{escape_control(str(run.path))}: {_progress(run)}", markup=False)
    screen.print(
        f"To continue it, this command from its run.json runs in {escape_control(str(directory))}:", markup=False
    )
    screen.print(f"  {escape_control(shlex.join(command))}", markup=False, soft_wrap=True)
    if yes or _confirm("Run it only if you trust whoever made this directory. Run it? [y/N] "):
        _replace_process(command, directory, run.path.absolute())
    print("not run; --yes runs it without asking")
    return 1


def _check_resumable(run: Run) -> None:
    """Raises for a run that is alive, finished, or not where it was started."""
    if run.writer is not None:
        raise RunExists(f"{str(run.path)!r} is being written by {run.writer}; resume it after that process has ended")
    summary, saved = run.summary(), open_store(run).saved()
    if summary["state"] == "finished" or (saved and saved[-1].ended is not None):
        reason = summary["reason"] or f"{format_epochs(summary)} epochs are done"
        raise InvalidArgument(
            f"{str(run.path)!r} is complete: {reason}. To train longer, raise the limit in its script and "
            "start the script yourself, with resume=True"
        )
    started = run.facts.get("path")
    if isinstance(started, str) and Path(started).resolve() != run.path.resolve():
        raise InvalidArgument(
            f"{str(run.path)!r} was started as {started!r}, and its command would continue what is there now; move it "
            f"back, or start the script yourself with run={str(run.path)!r} and resume=True"
        )


def _read_command(run: Run) -> tuple[list[str], Path]:
    """The command that started the run, with this Python, and its directory; raises if it can't be repeated."""
    command, directory = read_command(run.facts)
    if not command or directory is None:
        raise BadFile(f"{run.path / 'run.json'} does not say how the run was started; {_BY_HAND}")
    if not directory.is_dir():
        raise MissingFile(f"{str(directory)!r}, where the run was started, does not exist any more; {_BY_HAND}")
    if not is_python(command):
        return command, directory
    option, target = python_target(command[1:])
    if option == "-c" or target is None:
        raise InvalidArgument(f"{str(run.path)!r} was started from an interactive session or `python -c`; {_BY_HAND}")
    if option == "-m" and target.startswith("ipykernel"):
        raise InvalidArgument(f"{str(run.path)!r} was started from a notebook; {_BY_HAND}")
    if option is None and not (directory / target).exists():
        raise MissingFile(f"the script {str(directory / target)!r} does not exist any more; {_BY_HAND}")
    return [sys.executable, *command[1:]], directory


def _progress(run: Run) -> str:
    """How far the run came, and where it continues."""
    summary = run.summary()
    text = f"{summary['state']}, {format_epochs(summary)} epochs done"
    resumable = [saved for saved in open_store(run).saved() if saved.resumable]
    if not resumable:
        return f"{text}; it has no checkpoint, so it starts from the beginning"
    last = resumable[-1]
    return f"{text}; its newest checkpoint is {last.name} (epoch {last.epoch}, update {last.update:,})"


def _confirm(question: str) -> bool:
    """Whether the answer is yes; without an input it is no."""
    print(question, end="", flush=True)
    try:
        return input().strip().lower() in ("y", "yes")
    except EOFError:
        print()
        return False


def _replace_process(command: list[str], directory: Path, run: Path) -> NoReturn:
    """Replaces this process, so that signals reach the script and its exit code is ours."""
    sys.stdout.flush()
    try:
        os.chdir(directory)
        os.execvpe(command[0], command, {**os.environ, "STOKER_RESUME": str(run)})
    except OSError as error:
        raise BadFile(f"{command[0]!r} can't be run: {error}") from error
