"""Why a step could not be made into a program, in a line that a user understands."""

import os
import traceback
from pathlib import Path

import torch

# Where frames lie that are not the user's: whole directories, since a checkout may be called "stoker" or "torch" too.
_LIBRARIES = ("<", *(str(Path(file).parent) + os.sep for file in (Path(__file__).parent, torch.__file__)))


class Cannot(Exception):
    """A step can't be made into a program; the text says why, to the user."""


def reason_of(error: BaseException) -> str:
    """Why a step could not be made, in a line: the first thing that went wrong."""
    while error.__context__ is not None and not isinstance(error, Cannot):
        error = error.__context__
    if isinstance(error, Cannot):
        return str(error)
    said = str(error)
    if type(error).__name__ == "SubprocException":  # of torch's compiling processes: their own error is at its end
        said = next((line for line in reversed(said.splitlines()) if line.strip()), said)
    text = " ".join(said.split("\n\n")[0].split())
    if "capturing" in text or "graph capture" in text or "DataDependent" in type(error).__name__:
        how = "by .item(), a branch on a tensor, or a copy between host and device"
        return f"the step reads a value on the host{_where(error)}, {how}"
    if "convert all Tensors to FakeTensors" in text:
        return f"the step reads a tensor that is no parameter or buffer{_where(error)}; make it a buffer"
    return f"{type(error).__name__}: {text[:300] or _last_line(error)}{_where(error)}"


def _last_line(error: BaseException) -> str:
    """Where an error without a text came up."""
    last = traceback.extract_tb(error.__traceback__)[-1:]
    return "".join(f"{each.filename.rsplit('/', 1)[-1]}, line {each.lineno}: {each.line}" for each in last)


def _where(error: BaseException) -> str:
    """The user's own line that it went wrong at, where there is one."""
    frames: list[tuple[str, int]] = []
    trace = error.__traceback__
    while trace is not None:
        frames.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    theirs = [each for each in frames if not each[0].startswith(_LIBRARIES)]
    if not theirs:
        return ""
    file, line = theirs[-1]
    return f" ({file.rsplit('/', 1)[-1]}, line {line})"
