"""`stoker resume RUN`, with real processes: scripts that are killed, shown, asked about and started again."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import stoker
from stoker.checkpoint import Place
from stoker.cli import main
from stoker.cli._checkpoints import store_of
from stoker.cli._resume import visible
from stoker.record import Event, Run
from tests.record.stories import LIGHT, fill

ROOT = str(Path(stoker.__path__[0]).parent)
PROGRAM = "import sys; from stoker.cli import main; sys.exit(main())"

# The first time it dies without a word in its second epoch; resumed, it says how, and ends with a code of its own.
SCRIPT = (
    LIGHT
    + """
import os, signal
from stoker.record import Event, Run
asked = os.environ.get("STOKER_RESUME")
if asked is None:
    run = Run.create("runs/digits")
    run.record.append(Event("begin", extra={"epochs": 2}))
    run.record.append(Event("epoch", epoch=1, values={"valid/loss": 0.5}))
    os.kill(os.getpid(), signal.SIGKILL)
run = Run.resume(asked)
print("resumed", asked, os.getcwd(), sys.argv[1:], sys.executable == os.environ["EXPECTED"])
sys.exit(7)
"""
)


@pytest.fixture
def killed(tmp_path):
    """The folder of a script that has been started and was killed."""
    (tmp_path / "train.py").write_text(SCRIPT)
    started = [sys.executable, "-u", "train.py", "--lr", "0.1 x"]
    done = subprocess.run(started, cwd=tmp_path, env=environment())
    assert done.returncode == -signal.SIGKILL
    return tmp_path


def environment():
    return {**os.environ, "PYTHONPATH": ROOT, "EXPECTED": sys.executable}


def resume(folder, *options, answer="", name="runs/digits"):
    command = [sys.executable, "-c", PROGRAM, "resume", name, *options]
    return subprocess.run(command, cwd=folder, input=answer, capture_output=True, text=True, env=environment())


def test_a_killed_script_is_started_again_where_and_as_it_was(killed, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    done = resume(elsewhere, "--yes", name=str(killed / "runs" / "digits"))
    assert (done.returncode, done.stderr) == (7, "")
    first, second, third, said = done.stdout.splitlines()
    assert first.endswith("died, 1 of 2 epochs done; it has no checkpoint, so it starts from its beginning")
    assert second == f"To go on with it, a command out of its run.json is run in {killed}:"
    assert third == f"  {sys.executable} -u train.py --lr '0.1 x'"
    assert said == f"resumed {killed}/runs/digits {killed} ['--lr', '0.1 x'] True"


def test_it_asks_and_runs_it_after_a_yes(killed):
    done = resume(killed, answer="y\n")
    assert done.returncode == 7 and done.stderr == ""
    assert "Do that only if you trust whoever made this directory. Run it? [y/N] resumed" in done.stdout


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
    """A run of a script that is there, which tests may cut short or end."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    made = Run.create("runs/digits", facts={"command": ["python", "train.py"]})
    yield made
    made.close()


def refusal(capsys, *options):
    assert main(["resume", "digits", *options]) == 1
    return capsys.readouterr().err


def test_a_run_that_is_alive(run, capsys):
    fill(run.record, end=False)
    text = "'runs/digits' is being written by this process: a run is resumed once its process has ended"
    assert text in refusal(capsys, "--yes")


def test_a_run_that_is_over(run, capsys):
    fill(run.record)
    run.close()
    text = "'runs/digits' is over: 5 of 5 epochs are done. To train it for longer, give its fit more epochs"
    assert text in refusal(capsys, "--yes")
    run.record.append(Event("begin", extra={"epochs": 9}))
    run.record.append(Event("stop", text="Early stopping"))
    run.record.append(Event("end"))
    run.close()
    store_of(run).write({}, Place(epoch=5, batch=0, update=50, ended="Early stopping"))
    assert "'runs/digits' is over: Early stopping. To train" in refusal(capsys, "--yes")


def test_a_script_that_is_gone_and_a_name_that_is_none(run, capsys):
    run.close()
    Path("train.py").unlink()
    assert "train.py' is no longer there; start it again yourself, with resume=True" in refusal(capsys, "--yes")
    assert main(["resume", "digit"]) == 1
    assert "there is no run 'digit'; did you mean 'digits'?" in capsys.readouterr().err


@pytest.mark.parametrize("answer", ["n", "", "sure", None])
def test_any_other_answer_is_a_no(run, capsys, monkeypatch, answer):
    def answered():
        if answer is None:  # the end of the input: nobody is there
            raise EOFError
        return answer

    run.close()
    monkeypatch.setattr("builtins.input", answered)
    assert main(["resume", "digits"]) == 1
    assert capsys.readouterr().out.endswith("not run; with --yes it is run without asking\n")


def test_where_it_goes_on_from(run, capsys, monkeypatch):
    fill(run.record, epochs=2, end=False)
    run.close()
    store = store_of(run)
    store.write({}, Place(epoch=2, batch=3, update=1200))
    store.write({}, Place(epoch=2, batch=4, update=1300, resumable=False))
    monkeypatch.setattr("builtins.input", lambda: "no")
    assert main(["resume", "digits"]) == 1
    out = capsys.readouterr().out
    assert "digits: died, 2 of 5 epochs done; its newest checkpoint is 00001200 (epoch 2, update 1,200)" in out


def test_a_command_can_not_hide_itself(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    hidden = ["python", "train.py", "\x1b[2K\r", "\u202e", "a\nb"]
    Run.create("runs/digits", facts={"command": hidden}).close()
    monkeypatch.setattr("builtins.input", lambda: "no")
    assert main(["resume", "digits"]) == 1
    out = capsys.readouterr().out
    assert "train.py '\\x1b[2K\\r' '\\u202e' 'a\\nb'" in out and "\x1b" not in out
    assert visible("plain ü") == "plain ü"


def test_a_program_that_is_gone(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Run.create("runs/digits", facts={"command": [str(tmp_path / "trainer")], "folder": str(tmp_path)}).close()
    assert main(["resume", "digits", "--yes"]) == 1
    assert "trainer' can't be run: " in capsys.readouterr().err
