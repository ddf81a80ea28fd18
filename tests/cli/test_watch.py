"""`stoker watch`: which run, and what where there is no screen."""

import os
import subprocess
import sys
import threading

import pytest

import stoker
from stoker.cli import main
from tests.view.console.scenes import Terminal
from tests.view.watch.scenes import make

PROGRAM = "import sys; from stoker.cli import main; sys.exit(main())"


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def age(path, seconds):
    os.utime(f"{path}/events.jsonl", (1e9 - seconds, 1e9 - seconds))


def test_the_newest_run_as_a_page(capsys):
    make("runs/old", epochs=1, end=True)
    make("runs/new", epochs=2, end=True)
    age("runs/old", 100)
    age("runs/new", 0)
    assert main(["watch"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("runs/new: stopped") and "\x1b" not in out and "epoch    2 of 20" in out


def test_below_this_folder_where_there_is_no_folder_of_runs(capsys):
    make("elsewhere/deep/run", epochs=1, end=True)
    assert main(["watch"]) == 0 and capsys.readouterr().out.startswith("elsewhere/deep/run: ")


@pytest.mark.parametrize("name", ["digits", "runs/digits", "runs/digits/events.jsonl", "runs"])
def test_by_name_path_file_or_folder(name, capsys):
    make("runs/digits", epochs=1, end=True)
    assert main(["watch", name]) == 0 and capsys.readouterr().out.startswith("runs/digits: ")


def test_several(capsys):
    make("runs/a", epochs=1, end=True)
    make("runs/b", epochs=1, end=True)
    assert main(["watch", "a", "b"]) == 0
    out = capsys.readouterr().out
    assert "runs/a: " in out and "runs/b: " in out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["watch"], "there is no run in 'runs' nor below this folder"),
        (["watch", "digitz"], "--wait waits for one that has not begun yet"),
        (["watch", "rnus/digits", "--wait"], "the folder 'rnus' does not exist"),
    ],
    ids=["none", "no such", "nowhere"],
)
def test_errors(arguments, text, capsys):
    assert main(arguments) == 1
    assert text in capsys.readouterr().err


def test_waiting_for_a_run(capsys):
    os.mkdir("runs")
    soon = threading.Timer(0.05, make, ["runs/soon"], {"epochs": 1, "end": True})
    soon.start()
    assert main(["watch", "soon", "--wait"]) == 0
    soon.join()
    captured = capsys.readouterr()
    assert "waiting for soon to begin" in captured.err and captured.out.startswith("runs/soon: ")


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_pipe_gets_one_page_and_no_escape_codes(encoding):
    make("runs/digits", epochs=1, end=True)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, "watch"],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": f"{next(iter(stoker.__path__))}/..", "PYTHONIOENCODING": encoding},
    )
    assert done.returncode == 0 and done.stderr == b""
    assert done.stdout.startswith(b"runs/digits: stopped") and b"\x1b" not in done.stdout
    assert done.stdout.isascii() == (encoding == "ascii")


class Whole(Terminal):
    """The command itself."""

    PREAMBLE = "import os, sys; sys.modules['torch'] = None"


def test_the_command_on_a_terminal(tmp_path):
    run = make("runs/digits", epochs=1)
    program = f"\nos.chdir({str(tmp_path)!r})\nfrom stoker.cli import main\nsys.exit(main(['watch']))"
    with Whole(program) as terminal:
        while "epoch 1/20" not in "\n".join(terminal.screen.display):
            assert terminal._read(), "\n".join(terminal.screen.display)
        os.write(terminal.master, b"q")
        _, code = terminal.until_end()
        last = terminal.raw.rpartition(b"\x1b[?1049l")[2]
    run.close()
    assert code == 0 and b"runs/digits: running (it continues without the viewer)" in last


def test_a_dumb_terminal_gets_a_page(tmp_path):
    make("runs/digits", epochs=1, end=True)
    program = f"\nos.chdir({str(tmp_path)!r})\nfrom stoker.cli import main\nsys.exit(main(['watch']))"
    with Whole(program, TERM="dumb") as terminal:
        lines, code = terminal.until_end()
        assert (
            code == 0
            and b"\x1b" not in terminal.raw
            and lines[0] == "runs/digits: stopped (Net, 1,234 parameters, on cpu)"
        )
