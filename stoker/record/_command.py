"""The command that continues a run, as `stoker resume`, the console and the page of runs show it."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def resume_command(path: str | os.PathLike[str], facts: Mapping[str, Any]) -> str | None:
    """The command that continues a run; `None` if its script can't be started again.

    >>> resume_command("runs/digits", {"command": ["python", "train.py"], "folder": "."})
    'stoker resume runs/digits'
    >>> resume_command("runs/digits", {"command": ["python", "-c", "…"], "folder": "."}) is None
    True

    `facts` is the content of `run.json`. A notebook, an interactive session and `python -c` can't be started again.
    """
    command, folder = read_command(facts)
    if not command or folder is None:
        return None
    if is_python(command):
        option, target = python_target(command[1:])
        if target is None or option == "-c" or (option == "-m" and target.startswith("ipykernel")):
            return None
    import shlex

    return f"stoker resume {shlex.quote(str(path))}"


def read_command(facts: Mapping[str, Any]) -> tuple[list[str], Path | None]:
    """The command that started a run and its directory; empty and `None` if the facts have none."""
    command, folder = _strings(facts.get("command")), _strings([facts.get("folder")])
    return command, Path(folder[0]) if folder else None


def is_python(command: Sequence[str]) -> bool:
    """Whether a command runs Python."""
    return Path(command[0]).name.lower().startswith(("python", "pypy"))


def python_target(arguments: Sequence[str]) -> tuple[str | None, str | None]:
    """What a Python command line runs: the option (`-c`, `-m`, or `None` for a file) and its target.

    >>> python_target(["-u", "-W", "error", "train.py", "-c", "1"]), python_target(["-Om", "train"])
    ((None, 'train.py'), ('-m', 'train'))
    >>> python_target(["-i"])
    (None, None)
    """
    rest = iter(arguments)
    for word in rest:
        if word == "-":  # a program on stdin
            break
        if not word.startswith("-"):
            return None, word
        if word == "--check-hash-based-pycs":
            next(rest, None)
        elif not word.startswith("--"):
            letters = word.lstrip("-")
            index = next((index for index, letter in enumerate(letters) if letter in "cmWX"), None)
            if index is not None:  # options with a value: the rest of the word, or the next word
                value = letters[index + 1 :] or next(rest, None)
                if letters[index] in "cm":
                    return f"-{letters[index]}", value
    return None, None


def _strings(value: object) -> list[str]:
    """A list of strings that a command can hold; empty if it is something else."""
    words = value if isinstance(value, list) else []
    return words if all(isinstance(word, str) and "\0" not in word for word in words) else []
