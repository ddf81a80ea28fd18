"""`stoker completion`: scripts with which shells complete commands, options and names of runs."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from stoker.cli._screen import list_run_names
from stoker.errors import InvalidArgument

# Each script asks `stoker _complete` with the words so far, of which the last is the one to complete. The answer is
# taken as text: `compgen -W` would run a command in the name of a run.
_SCRIPTS = {
    "bash": """_stoker() {
  mapfile -t COMPREPLY < <(stoker _complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o default -o filenames -F _stoker stoker""",
    "zsh": """_stoker() {
  local -a found
  found=(${(f)"$(stoker _complete ${words[2,CURRENT]} 2>/dev/null)"})
  compadd -a found || _files
}
compdef _stoker stoker""",
    "fish": "complete -c stoker -a '(stoker _complete (commandline -opc)[2..] (commandline -ct) 2>/dev/null)'",
}
_TAKE_RUNS = ("show", "resume", "watch", "report", "export", "tag", "note", "rename", "archive", "rm")


def print_completion(shell: str) -> None:
    """Prints the script for a shell."""
    if shell not in _SCRIPTS:
        raise InvalidArgument(f"completion: {shell!r}; expected {', '.join(_SCRIPTS)}")
    print(_SCRIPTS[shell])


def complete(words: Sequence[str], helps: Mapping[str, str]) -> list[str]:
    """What the last of these words can become; `helps` holds the help of each command.

    >>> complete(["sh"], {"show": "", "runs": ""}), complete(["runs", "--s"], {"runs": "--sort FIELD, --json"})
    (['show'], ['--sort'])
    """
    *before, current = words or [""]
    if not before:
        known = list(helps)
    elif current.startswith("-"):
        known = list(dict.fromkeys(re.findall(r"--[a-z][\w-]*", helps.get(before[0], ""))))
    elif before[0] == "completion":
        known = list(_SCRIPTS)
    elif before[0] in _TAKE_RUNS:
        known = list_run_names("runs") if Path("runs").is_dir() else []
    else:
        known = []
    return [word for word in known if word.startswith(current) and word.isprintable()]
