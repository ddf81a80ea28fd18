"""The command line as a user meets it: help, exit codes, errors."""

import json
import subprocess
import sys

import pytest

import stoker
from stoker.cli import main
from stoker.record import Run
from tests.record.stories import fill

PROGRAM = "import sys; from stoker.cli import main; sys.exit(main())"


COMMANDS = ["demo", "runs", "show", "resume", "watch", "ui", "report", "export", "import", "doctor"]
# Runs a command where torch can't be imported, and tells which packages that are not Python's own it has loaded.
WITHOUT_TORCH = """
import json, sys
before = set(sys.modules)
sys.modules["torch"] = None
from stoker.cli import main
assert main(sys.argv[1:]) == 0
loaded = {name.split(".")[0] for name in set(sys.modules) - before} - {"torch"} - set(sys.stdlib_module_names)
print(json.dumps(sorted(loaded)), file=sys.stderr)
"""


@pytest.mark.parametrize(
    "command", [[], *([name] for name in COMMANDS)], ids=lambda command: " ".join(command) or "none"
)
def test_help_everywhere(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    assert ended.value.code == 0 and capsys.readouterr().out.startswith(" ".join(["usage: stoker", *command]))


def test_without_a_command_it_says_what_there_is(capsys):
    assert main([]) == 0
    out = capsys.readouterr().out
    assert all(f"\n    {name} " in out for name in COMMANDS)


def test_the_version(capsys):
    assert main(["--version"]) == 0 and capsys.readouterr().out.strip() == stoker.__version__


@pytest.mark.parametrize("command", [["train"], ["show"], ["resume"], ["runs", "a", "b"]])
def test_a_command_line_that_makes_no_sense(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == 2 and "usage: stoker" in capsys.readouterr().err


def test_a_mistake_in_a_command_shows_the_usage_of_that_command(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["show", "digits", "--verfy"])
    err = capsys.readouterr().err
    assert ended.value.code == 2 and err.startswith("usage: stoker show ")
    assert "stoker show: error: unrecognized arguments: --verfy" in err


def test_ctrl_c_is_no_traceback(monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr("stoker.cli._doctor.main", interrupted)
    assert main(["doctor"]) == 130


def test_a_real_process_with_a_reader_that_goes_away(tmp_path):
    run = Run.create(tmp_path / "runs" / "digits", config={str(number): "x" * 100 for number in range(3000)})
    fill(run.record)
    run.close()
    shown = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PROGRAM, "show", str(run.path)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"PYTHONPATH": str(next(iter(stoker.__path__)) + "/.."), "PYTHONIOENCODING": "ascii"},
    )
    assert shown.stdout is not None and shown.stderr is not None
    assert shown.stdout.readline().endswith(b"digits: finished\n")
    shown.stdout.close()
    errors = shown.stderr.read()
    shown.stderr.close()
    assert shown.wait() == 1 and errors == b""


@pytest.mark.parametrize(
    "command",
    ["runs runs", "show digits", "watch digits", "report digits", "export digits -o digits.csv", "--version", ""],
)
def test_what_only_reads_runs_loads_no_torch(command, tmp_path):
    """And of other packages only what draws and counts; `stoker ui` and a screen are run in their own tests."""
    run = Run.create(tmp_path / "runs" / "digits", config={"lr": 0.1})
    fill(run.record)
    run.close()
    (run.path / "checkpoints").mkdir()
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT_TORCH, *command.split()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stderr)) <= {"stoker", "numpy", "rich", "msgspec", "typing_extensions"}
