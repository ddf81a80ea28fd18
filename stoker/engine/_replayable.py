"""What a training step has to be, to be recorded in a CUDA graph or compiled."""

import os
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

# Directories of frames that are not the user's. Whole directories: a checkout may be called "stoker" or "torch" too.
_LIBRARIES = ("<", *(str(Path(file).parent) + os.sep for file in (Path(__file__).parent, torch.__file__)))
_lock = threading.Lock()
_users = 0  # in all threads: torch has one flag for the process


class CannotReplay(Exception):
    """A step can't be recorded or compiled; the text tells the user why."""


@contextmanager
def pretend_compiling() -> Iterator[None]:
    """Sets torch's is-compiling flag, so that its optimizers compute with tensors and read no counter on the host.

    >>> with pretend_compiling():
    ...     torch.compiler.is_compiling()
    True

    `torch.compiler._is_compiling_flag` is private: without it, torch's functional optimizers read their step counter
    with `.item()`, which no trace can contain.
    """
    global _users
    with _lock:
        _users += 1
        torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            torch.compiler._is_compiling_flag = _users > 0


def explain_failure(error: BaseException) -> str:
    """Why a step could not be recorded or compiled, in one line: the first thing that went wrong."""
    while error.__context__ is not None and not isinstance(error, CannotReplay):
        error = error.__context__
    if isinstance(error, CannotReplay):
        return str(error)
    message = str(error)
    if type(error).__name__ == "SubprocException":  # torch compiles in other processes: their error is the last line
        message = next((line for line in reversed(message.splitlines()) if line.strip()), message)
    text = " ".join(message.split("\n\n")[0].split())
    if "capturing" in text or "graph capture" in text or "DataDependent" in type(error).__name__:
        how = "by .item(), a branch on a tensor, or a copy between host and device"
        return f"the step reads a value on the host{_user_line(error)}, {how}"
    if "convert all Tensors to FakeTensors" in text:
        return f"the step reads a tensor that is neither a parameter nor a buffer{_user_line(error)}; make it a buffer"
    return f"{type(error).__name__}: {text[:300] or _last_line(error)}{_user_line(error)}"


def _last_line(error: BaseException) -> str:
    """Where an error without a text was raised."""
    last = traceback.extract_tb(error.__traceback__)[-1:]
    return "".join(f"{Path(each.filename).name}, line {each.lineno}: {each.line}" for each in last)


def _user_line(error: BaseException) -> str:
    """The user's own line at which it went wrong, if there is one."""
    frames: list[tuple[str, int]] = []
    trace = error.__traceback__
    while trace is not None:
        frames.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    own = [each for each in frames if not each[0].startswith(_LIBRARIES)]
    return f" ({Path(own[-1][0]).name}, line {own[-1][1]})" if own else ""
