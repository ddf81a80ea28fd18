"""What can be known of the process that runs: versions, command line, git commit, time."""

import os
import platform
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any

_PACKAGES = ("stoker", "torch", "numpy")


def facts_of_this_process() -> dict[str, Any]:
    """Plain values that say what ran, for `run.json`.

    >>> sorted(facts_of_this_process())
    ['command', 'folder', 'git', 'host', 'pid', 'platform', 'started', 'versions']

    `started` is in seconds since 1970; `git` is the commit of the working folder, "-dirty" where files differ from it.
    `command` and `folder` are what `stoker resume` starts it again with.
    """
    return {
        "started": time.time(),
        "command": list(sys.orig_argv),
        "folder": os.getcwd(),
        "git": git_commit(),
        "pid": os.getpid(),
        "host": platform.node(),
        "platform": platform.platform(),
        "versions": versions(),
    }


def versions() -> dict[str, str | None]:
    """Of Python and of the packages that a run's numbers depend on."""
    return {"python": platform.python_version(), **{name: version_of(name) for name in _PACKAGES}}


def version_of(package: str) -> str | None:
    """The installed version of a package, found without importing it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def git_commit() -> str | None:
    """The commit of the working folder; `None` where there is no repository, no commit or no git."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
