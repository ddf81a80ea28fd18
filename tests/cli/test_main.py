"""The command line: help, exit codes, errors, imports."""

import json
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

import pytest

import stoker
from stoker.cli import main
from stoker.record import Run
from tests.record.examples import append_fit

COMMANDS = ["demo", "runs", "show", "resume", "watch", "ui", "report", "export", "tag", "note", "rename", "archive"]
COMMANDS += ["rm", "completion", "doctor"]


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)], ids=" ".join)
def test_every_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    assert ended.value.code == 0 and capsys.readouterr().out.startswith(" ".join(["usage: stoker", *command]))


def test_without_a_command_it_lists_the_commands(capsys):
    assert main(["--version"]) == 0 and capsys.readouterr().out.strip() == stoker.__version__
    assert main([]) == 0
    out = capsys.readouterr().out
    assert all(re.search(rf"\n    {name}\s", out) for name in COMMANDS)


@pytest.mark.parametrize("command", [["train"], ["show", "a", "b"], ["export", "digits"], ["show", "a", "--verfy"]])
def test_a_wrong_command_line_is_exit_code_2_with_the_usage_of_its_command(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main(command)
    err = capsys.readouterr().err
    assert ended.value.code == 2 and "error: " in err
    assert err.startswith("usage: stoker [-h]" if command == ["train"] else f"usage: stoker {command[0]} ")


def test_mistyped_commands_and_options_get_a_suggestion(capsys):
    for words, hint in (
        (["rusn"], "there is no command 'rusn'; did you mean 'runs'?"),
        (["xyz"], "there is no command 'xyz'; there are: demo, runs, show"),
        (["show", "a", "--verfy"], "unrecognized arguments: --verfy; did you mean '--verify'?"),
    ):
        with pytest.raises(SystemExit):
            main(words)
        assert hint in capsys.readouterr().err


def test_a_shell_completes_commands_options_and_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    hostile = "$(touch hacked) `touch hacked`"
    for name in ("digits", "sweep/lr-0.1", hostile):
        Run.create(f"runs/{name}").close()

    def candidates(*words):
        assert main(["_complete", *words]) == 0
        return capsys.readouterr().out.splitlines()

    assert candidates("sh") == ["show"] and candidates("runs", "--so") == ["--sort"]
    assert candidates("show", "") == [hostile, "digits", "sweep/lr-0.1"]
    assert candidates("tag", "sw") == ["sweep/lr-0.1"] and candidates("completion", "z") == ["zsh"]
    assert main(["completion", "bash"]) == 0
    script = tmp_path / "stoker.bash"
    program = f"{sys.executable} -c 'import sys; from stoker.cli import main; sys.exit(main())'"
    root = str(next(iter(stoker.__path__)) + "/..")
    # A function named stoker stands for the installed command.
    script.write_text(
        f'export PYTHONPATH={root}\nstoker() {{ {program} "$@"; }}\n{capsys.readouterr().out}\n'
        "COMP_WORDS=(stoker show ''); COMP_CWORD=2; _stoker; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    done = subprocess.run(["bash", str(script)], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [hostile, "digits", "sweep/lr-0.1"] and not (tmp_path / "hacked").exists()


def test_ctrl_c_is_exit_code_130_without_a_traceback(monkeypatch, capsys):
    def interrupt(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.walk", interrupt)
    assert main(["runs", "."]) == 130 and capsys.readouterr().err == ""


def test_a_reader_that_closes_the_pipe_causes_no_traceback(tmp_path):
    run = Run.create(tmp_path / "runs" / "digits", config={str(number): "x" * 100 for number in range(3000)})
    append_fit(run.record)
    run.close()
    program = "import sys; from stoker.cli import main; sys.exit(main())"
    shown = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", program, "show", str(run.path)],
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


# Runs a command where torch can't be imported, and prints which packages outside the standard library it has loaded.
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
    "command",
    ["runs runs", "show digits", "watch digits", "report digits", "export digits -o digits.csv", "--version", ""],
)
def test_a_command_that_only_reads_runs_imports_no_torch(command, tmp_path):
    run = Run.create(tmp_path / "runs" / "digits", config={"lr": 0.1})
    append_fit(run.record)
    run.close()
    (run.path / "checkpoints").mkdir()
    program = [sys.executable, "-W", "error", "-c", WITHOUT_TORCH, *command.split()]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stderr)) <= {"stoker", "numpy", "rich", "msgspec", "typing_extensions"}


def test_doctor_shows_versions_devices_precisions_and_extras(capsys):
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert f"\n  torch {version('torch')}\n" in out
    assert "\n  cpu  " in out and all(f"\n  {name}  " in out for name in ("fp32", "tf32", "bf16", "fp16"))
    assert "stoker[plot]  matplotlib" in out and "stoker[dev]" not in out


def test_doctor_says_how_to_install_what_is_missing(capsys, monkeypatch):
    def installed(name):
        if name in ("matplotlib", "pandas"):
            raise PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr("stoker.cli._doctor.version", installed)
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert '  stoker[plot]  matplotlib missing: pip install "stoker[plot]"\n' in out
    assert "  pandas  missing: pip install pandas (tables as data, history.to_pandas())\n" in out


def test_doctor_knows_the_small_package_of_mlflow(capsys, monkeypatch):
    def installed(name):
        if name.startswith("mlflow"):
            if name == "mlflow-skinny":
                return "3.1.0"
            raise PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr("stoker.cli._doctor.version", installed)
    assert main(["doctor"]) == 0
    assert "  mlflow  3.1.0 (mlflow-skinny) (callbacks.MLflow)\n" in capsys.readouterr().out


def test_demo_trains_evaluates_saves_and_prints_what_to_do_next(tmp_path, monkeypatch, capsys):
    from stoker.cli._demo import DemoConfig, Digits, demo

    monkeypatch.chdir(tmp_path)
    config = DemoConfig(epochs=1, images=600)
    for name in ("demo", "demo-2"):
        demo("runs", config)
        out = capsys.readouterr().out
        assert "on the test digits: loss" in out
        first, last = out.split("next:")
        assert f"watch it from another terminal: stoker watch runs/{name}\n" in first
        assert f"\n  stoker watch runs/{name} " in last and "\n  stoker ui runs " in last
        run = Run.open(tmp_path / "runs" / name)
        assert run.summary()["state"] == "finished" and DemoConfig.from_dict(run.config) == config
        stoker.load(Digits(config.model), run.path / "model.safetensors")
