"""How a run was started, and what can't be started again."""

import sys

import pytest

from stoker.cli._command import command_of, python_target
from stoker.errors import BadFile, InvalidArgument, MissingFile
from stoker.record import Record, Run


def run_of(tmp_path, *command, folder=None):
    facts = {"command": list(command), "folder": str(tmp_path) if folder is None else folder}
    return Run(tmp_path, Record(), config=None, facts=facts)


@pytest.mark.parametrize(
    ("line", "target"),
    [
        ("train.py --lr -c", (None, "train.py")),
        ("-u -X dev -Werror -W error train.py", (None, "train.py")),
        ("-X importtime -Ximporttime -OO train.py -m", (None, "train.py")),
        ("--check-hash-based-pycs never train.py", (None, "train.py")),
        ("-m pkg.train --x", ("-m", "pkg.train")),
        ("-um pkg.train", ("-m", "pkg.train")),
        ("-mpkg.train", ("-m", "pkg.train")),
        ("-c x", ("-c", "x")),
        ("-Bcx", ("-c", "x")),
        ("- train.py", (None, None)),
        ("-i", (None, None)),
        ("-W", (None, None)),
        ("", (None, None)),
    ],
)
def test_what_a_command_line_runs(line, target):
    assert python_target(line.split()) == target


def test_a_script_is_run_by_this_python(tmp_path):
    (tmp_path / "train.py").touch()
    for python in ("python", "/usr/bin/python3.11", "pypy3", "C:/Python/python.exe"):
        command, folder = command_of(run_of(tmp_path, python, "-u", "train.py", "--lr", "0.1"))
        assert (command, folder) == ([sys.executable, "-u", "train.py", "--lr", "0.1"], tmp_path)
    assert command_of(run_of(tmp_path, "python", "-m", "train"))[0] == [sys.executable, "-m", "train"]
    assert command_of(run_of(tmp_path, "/opt/trainer", "x"))[0] == ["/opt/trainer", "x"]


@pytest.mark.parametrize(
    ("command", "error", "text"),
    [
        (
            ["python"],
            InvalidArgument,
            "was started from an interactive session or `python -c`; start it again yourself",
        ),
        (["python", "-"], InvalidArgument, "interactive session"),
        (["python", "-c", "import stoker"], InvalidArgument, "interactive session or `python -c`"),
        (
            ["python", "-m", "ipykernel_launcher", "-f", "x.json"],
            InvalidArgument,
            "was started from a notebook; start it",
        ),
        (
            ["python", "train.py"],
            MissingFile,
            "the script '.*train.py' is no longer there; start it again yourself, with",
        ),
        ([], BadFile, "run.json doesn't say how the run was started"),
        (["python", 3], BadFile, "doesn't say how"),
        (["python", "a\0b"], BadFile, "doesn't say how"),
    ],
    ids=str,
)
def test_what_can_not_be_started_again(tmp_path, command, error, text):
    with pytest.raises(error, match=text):
        command_of(run_of(tmp_path, *command))


def test_a_folder_that_is_gone_or_was_never_told(tmp_path):
    with pytest.raises(
        MissingFile, match="gone', where the run was started, is no longer there; start it again yourself"
    ):
        command_of(run_of(tmp_path, "python", "train.py", folder=str(tmp_path / "gone")))
    for facts in ({}, {"command": "python train.py", "folder": "x"}, {"command": ["python", "x"], "folder": None}):
        with pytest.raises(BadFile, match="doesn't say how the run was started"):
            command_of(Run(tmp_path, Record(), config=None, facts=facts))
