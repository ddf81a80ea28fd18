"""`stoker resume RUN`: shows the script of a killed run, asks, and starts it again."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import stoker
from stoker.checkpoint import Place, Store
from stoker.cli import main
from stoker.record import Event, Run
from tests.record.examples import WITHOUT_TORCH, append_fit

ROOT = str(Path(stoker.__path__[0]).parent)
PROGRAM = "import sys; from stoker.cli import main; sys.exit(main())"

# The first time it is killed in its second epoch; resumed, it prints how, and ends with its own exit code.
SCRIPT = (
    WITHOUT_TORCH
    + """
import os, signal
from stoker.record import Event, Run
path = os.environ.get("STOKER_RESUME")
if path is None:
    run = Run.create("runs/digits")
    run.record.append(Event("begin", extra={"epochs": 2}))
    run.record.append(Event("epoch", epoch=1, values={"valid/loss": 0.5}))
    os.kill(os.getpid(), signal.SIGKILL)
run = Run.resume(path)
print("resumed", path, os.getcwd(), sys.argv[1:], sys.executable == os.environ["EXPECTED"])
sys.exit(7)
"""
)


@pytest.fixture
def killed(tmp_path):
    """The directory of a script that was started and killed."""
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-u", "train.py", "--lr", "0.1 x"]
    done = subprocess.run(command, cwd=tmp_path, env=environment())
    assert done.returncode == -signal.SIGKILL
    return tmp_path


def environment():
    return {**os.environ, "PYTHONPATH": ROOT, "EXPECTED": sys.executable}


def resume(folder, *options, answer="", name="runs/digits"):
    command = [sys.executable, "-c", PROGRAM, "resume", name, *options]
    return subprocess.run(command, cwd=folder, input=answer, capture_output=True, text=True, env=environment())


def test_a_killed_script_is_started_again_in_its_directory_with_its_arguments(killed, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    done = resume(elsewhere, "--yes", name=str(killed / "runs" / "digits"))
    assert (done.returncode, done.stderr) == (7, "")
    first, second, third, printed = done.stdout.splitlines()
    assert first.endswith("died, 1 of 2 epochs done; it has no checkpoint, so it starts from the beginning")
    assert second == f"To continue it, this command from its run.json runs in {killed}:"
    assert third == f"  {sys.executable} -u train.py --lr '0.1 x'"
    assert printed == f"resumed {killed}/runs/digits {killed} ['--lr', '0.1 x'] True"


def test_it_asks_first(killed):
    done = resume(killed, answer="y\n")
    assert done.returncode == 7 and done.stderr == ""
    assert "Run it only if you trust whoever made this directory. Run it? [y/N] resumed" in done.stdout


def test_signals_reach_the_script(killed):
    (killed / "train.py").write_text("import time\nprint('here', flush=True)\ntime.sleep(1000)")
    command = [sys.executable, "-c", PROGRAM, "resume", "runs/digits", "--yes"]
    script = subprocess.Popen(command, cwd=killed, stdout=subprocess.PIPE, text=True, env=environment())
    assert script.stdout is not None
    while script.stdout.readline() != "here\n":
        pass
    script.send_signal(signal.SIGTERM)
    script.communicate()
    assert script.returncode == -signal.SIGTERM


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run of an existing script, still open."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("builtins.input", lambda: "no")
    (tmp_path / "train.py").touch()
    made = Run.create("runs/digits", facts={"command": ["python", "train.py"]})
    yield made
    made.close()


def error(capsys, *options):
    assert main(["resume", "digits", *options]) == 1
    return capsys.readouterr().err


def test_a_run_with_a_living_process(run, capsys):
    append_fit(run.record, end=False)
    text = "'runs/digits' is being written by this process; resume it after that process has ended"
    assert text in error(capsys, "--yes")


def test_a_run_that_is_complete(run, capsys):
    append_fit(run.record)
    run.close()
    text = "'runs/digits' is complete: 5 of 5 epochs are done. To train longer, raise the limit in its script"
    assert text in error(capsys, "--yes")
    run.record.append(Event("begin", extra={"epochs": 9}))
    run.record.append(Event("stop", text="Early stopping"))
    run.record.append(Event("end"))
    run.close()
    store(run).write({}, Place(epoch=5, batch=0, update=50, ended="Early stopping"))
    assert "'runs/digits' is complete: Early stopping. To train" in error(capsys, "--yes")


def test_a_run_that_was_moved(run, capsys):
    run.close()
    Path("runs/digits").rename("runs/moved")
    assert main(["resume", "moved", "--yes"]) == 1
    err = capsys.readouterr().err
    assert "'runs/moved' was started as" in err and "move it back, or start the script yourself" in err


def store(run):
    return Store(run.path / "checkpoints", run=run.id)


def test_a_missing_script_and_a_wrong_name(run, capsys):
    run.close()
    Path("train.py").unlink()
    assert "train.py' does not exist any more; start the script yourself, with resume=True" in error(capsys, "--yes")
    assert main(["resume", "digit"]) == 1
    assert "there is no run 'digit'; did you mean 'digits'?" in capsys.readouterr().err


@pytest.mark.parametrize("answer", ["", None])
def test_any_other_answer_is_a_no(run, capsys, monkeypatch, answer):
    def reply():
        if answer is None:  # the end of the input
            raise EOFError
        return answer

    run.close()
    monkeypatch.setattr("builtins.input", reply)
    assert main(["resume", "digits"]) == 1
    assert capsys.readouterr().out.endswith("not run; --yes runs it without asking\n")


def test_it_shows_the_checkpoint_it_continues_from(run, capsys):
    append_fit(run.record, epochs=2, end=False)
    run.close()
    store(run).write({}, Place(epoch=2, batch=3, update=1200))
    store(run).write({}, Place(epoch=2, batch=4, update=1300, resumable=False))
    assert main(["resume", "digits"]) == 1
    out = capsys.readouterr().out
    assert "digits: died, 2 of 5 epochs done; its newest checkpoint is 00001200 (epoch 2, update 1,200)" in out


def resumable(tmp_path, capsys, facts):
    """What `stoker resume` prints for a run with these facts, up to its question."""
    name = f"run{len(list((tmp_path / 'runs').iterdir()))}"
    Run.create(f"runs/{name}", facts=facts).close()
    assert main(["resume", name]) == 1
    return "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("python -u train.py --lr -c", "PYTHON -u train.py --lr -c"),
        ("/usr/bin/python3.11 -X dev -Werror -W error train.py", "PYTHON -X dev -Werror -W error train.py"),
        ("python.exe --check-hash-based-pycs never train.py", "PYTHON --check-hash-based-pycs never train.py"),
        ("python -m pkg.train --x", "PYTHON -m pkg.train --x"),
        ("/opt/trainer x", "/opt/trainer x"),
        ("python", "was started from an interactive session or `python -c`; start the script yourself"),
        ("python - train.py", "interactive session"),
        ("python -i", "interactive session"),
        ("python -c x", "interactive session"),
        ("python -m ipykernel_launcher -f x.json", "was started from a notebook; start the script yourself"),
        ("python lost.py", "lost.py' does not exist any more; start the script yourself, with resume=True"),
    ],
)
def test_the_command_is_repeated_with_this_python_or_an_error_says_why_not(run, tmp_path, capsys, command, shown):
    run.close()
    text = resumable(tmp_path, capsys, {"command": command.split(), "folder": str(tmp_path)})
    assert shown.replace("PYTHON", sys.executable) in text
    assert ("not run" in text) == (not text.startswith("stoker: "))


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({"command": []}, "run.json does not say how the run was started"),
        ({"command": ["python", 3]}, "does not say how"),
        ({"command": ["python", "x"], "folder": None}, "does not say how"),
        ({"command": ["python", "x"], "folder": "gone"}, "'gone', where the run was started, does not exist any more"),
    ],
)
def test_facts_without_a_command_are_an_error(run, tmp_path, capsys, facts, text):
    run.close()
    assert text in resumable(tmp_path, capsys, facts)


def test_a_command_cannot_hide_control_characters(run, tmp_path, capsys):
    run.close()
    hidden = ["python", "train.py", "\x1b[2K\r", "\u202e", "a\nb"]
    out = resumable(tmp_path, capsys, {"command": hidden})
    assert "train.py '\\x1b[2K\\r' '\\u202e' 'a\\nb'" in out and "\x1b" not in out


def test_a_program_that_cannot_be_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Run.create("runs/digits", facts={"command": [str(tmp_path / "trainer")], "folder": str(tmp_path)}).close()
    assert main(["resume", "digits", "--yes"]) == 1
    assert "trainer' can't be run: " in capsys.readouterr().err
