"""Run directories: what is in them, and what is refused."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from stoker.config import Config
from stoker.errors import BadFile, InvalidArgument, RunExists
from stoker.record import Event, Run, runs_in
from tests.record.stories import fill


class Training(Config):
    lr: float = 0.1
    betas: tuple[float, ...] = (0.9, float("inf"))


def test_the_files_of_a_run(tmp_path):
    run = Run.create(tmp_path / "a" / "b", config=Training(), facts={"plan": ["eager"], "seed": 3, "device": "cpu"})
    fill(run.record)
    run.close()
    assert sorted(path.name for path in run.path.iterdir()) == ["config.json", "events.jsonl", "run.json"]
    assert Training.load(run.path / "config.json") == Training()
    facts = json.loads((run.path / "run.json").read_text())
    assert facts["plan"] == ["eager"] and facts["seed"] == 3 and {"versions", "command", "git", "started"} <= set(facts)
    opened = Run.open(run.path)
    assert opened.config == Training().to_dict() and opened.facts == facts and opened.record.events == run.record.events
    assert Run.open(run.path / "events.jsonl").path == run.path


def test_configs_of_other_kinds(tmp_path):
    @dataclass
    class Plain:
        path: Path
        width: int = 3

    Run.create(tmp_path / "dataclass", config=Plain(Path("x")))
    Run.create(tmp_path / "dict", config={"lr": float("nan")})
    Run.create(tmp_path / "none")
    assert Run.open(tmp_path / "dataclass").config == {"path": "x", "width": 3}
    assert Run.open(tmp_path / "dict").config == {"lr": "NaN"}
    assert Run.open(tmp_path / "none").config is None and not (tmp_path / "none" / "config.json").exists()


def test_a_directory_with_a_run_is_refused_and_left_as_it_is(tmp_path):
    run = Run.create(tmp_path / "digits", config={"a": 1})
    fill(run.record)
    run.close()
    before = {path.name: path.read_bytes() for path in run.path.iterdir()}
    with pytest.raises(RunExists, match="digits' already holds a run; choose another path, or move or delete"):
        Run.create(tmp_path / "digits", config={"a": 2})
    with pytest.raises(FileExistsError):
        Run.create(tmp_path / "digits")
    (run.path / "events.jsonl").unlink()
    with pytest.raises(RunExists):  # its events are gone, the rest is a run's
        Run.create(tmp_path / "digits")
    del before["events.jsonl"]
    assert {path.name: path.read_bytes() for path in run.path.iterdir()} == before


def test_a_directory_with_other_things_is_fine_and_a_file_is_not(tmp_path):
    (tmp_path / "model.safetensors").write_text("weights")
    Run.create(tmp_path)
    with pytest.raises(InvalidArgument, match="model.safetensors' is a file; expected a directory"):
        Run.create(tmp_path / "model.safetensors")


def test_the_log_has_what_was_said_and_printed(tmp_path):
    run = Run.create(tmp_path)
    run.record.append(Event("note", 0.0, text="hello"))
    run.record.append(Event("warning", text="careful"))
    run.record.append(Event("train", epoch=1, values={"train/loss": 1.0}))
    run.log("epoch 1  loss 1.000")
    run.record.append(Event("stop", text="enough"))
    run.record.append(
        Event("error", text="ValueError: x", extra={"traceback": "Traceback:\n  line ü\nValueError: x\n"})
    )
    lines = (tmp_path / "log.txt").read_text(encoding="utf-8").splitlines()
    assert [line[21:] for line in lines] == [
        "hello",
        "warning: careful",
        "epoch 1  loss 1.000",
        "stopped: enough",
        "error: ValueError: x",
        "Traceback:",
        "  line ü",
        "ValueError: x",
    ]
    assert lines[0][:4] in ("1970", "1969")


def test_states_of_runs(tmp_path):
    run = Run.create(tmp_path)
    fill(run.record, end=False)
    assert run.summary()["state"] == "running" == Run.open(tmp_path).summary()["state"]
    run.close()
    found = Run.open(tmp_path).summary()
    assert found["state"] == "died" and found["reason"] == "the process went away without a word"
    assert found["name"] == tmp_path.name
    run.record.append(Event("end"))
    assert run.summary()["state"] == "finished"


def test_runs_in_a_folder_the_oldest_first(tmp_path):
    for number, name in enumerate(["z", "nested/m", "a"]):
        run = Run.create(tmp_path / name, facts={"started": 100.0 + number})
        fill(run.record)
        run.close()
    inside = tmp_path / "z" / "checkpoints" / "inner"
    inside.mkdir(parents=True)
    (inside / "events.jsonl").touch()
    (tmp_path / "no run").mkdir()
    assert [str(run.path.relative_to(tmp_path)) for run in runs_in(tmp_path)] == ["z", "nested/m", "a"]
    assert [run.path for run in runs_in(tmp_path / "a")] == [tmp_path / "a"]
    assert runs_in(tmp_path / "nowhere") == []


def test_a_run_that_cannot_be_read_is_listed_with_the_reason(tmp_path):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "events.jsonl").write_text("nonsense\n")
    (found,) = runs_in(tmp_path)
    assert found.summary()["state"] == "died" and "line 1: expected an event" in found.summary()["reason"]
    (tmp_path / "broken" / "events.jsonl").write_text("")
    (tmp_path / "broken" / "run.json").write_text("{")
    with pytest.raises(BadFile, match="run.json: expected JSON, but"):
        Run.open(tmp_path / "broken")
