"""How a run was started, as its run.json says, and whether it can be started so again."""

import sys
from pathlib import Path

from stoker.errors import BadFile, InvalidArgument, MissingFile
from stoker.record import Run

_BY_HAND = "start it again yourself, with resume=True"


def command_of(run: Run) -> tuple[list[str], Path]:
    """The command that a run was started with, by this Python, and the folder; an error where there is none."""
    command, folder = _words(run.facts.get("command")), _words([run.facts.get("folder")])
    if not command or not folder:
        raise BadFile(f"{run.path / 'run.json'} doesn't say how the run was started; {_BY_HAND}")
    start = Path(folder[0])
    if not start.is_dir():
        raise MissingFile(f"{str(start)!r}, where the run was started, is no longer there; {_BY_HAND}")
    if not Path(command[0]).name.lower().startswith(("python", "pypy")):
        return command, start
    option, target = python_target(command[1:])
    if option == "-c" or target is None:
        raise InvalidArgument(f"{str(run.path)!r} was started from an interactive session or `python -c`; {_BY_HAND}")
    if option == "-m" and target.startswith("ipykernel"):
        raise InvalidArgument(f"{str(run.path)!r} was started from a notebook; {_BY_HAND}")
    if option is None and not (start / target).exists():
        raise MissingFile(f"the script {str(start / target)!r} is no longer there; {_BY_HAND}")
    return [sys.executable, *command[1:]], start


def python_target(arguments: list[str]) -> tuple[str | None, str | None]:
    """What a command line of Python's runs: by which option (`-c`, `-m`, or none for a file), and what.

    >>> python_target(["-u", "-W", "error", "train.py", "-c", "1"]), python_target(["-Om", "train"])
    ((None, 'train.py'), ('-m', 'train'))
    >>> python_target(["-i"])
    (None, None)
    """
    rest = iter(arguments)
    for word in rest:
        if word == "-":  # it reads what it runs from its input
            break
        if not word.startswith("-"):
            return None, word
        if word == "--check-hash-based-pycs":
            next(rest, None)
        elif not word.startswith("--"):
            letters = word.lstrip("-")
            place = next((place for place, letter in enumerate(letters) if letter in "cmWX"), None)
            if place is not None:  # the letters that have a value: the rest of the word, or the next one
                value = letters[place + 1 :] or next(rest, None)
                if letters[place] in "cm":
                    return f"-{letters[place]}", value
    return None, None


def _words(found: object) -> list[str]:
    """A list of texts that a command can be made of; empty where it is something else."""
    words = found if isinstance(found, list) else []
    return words if all(isinstance(word, str) and "\0" not in word for word in words) else []
