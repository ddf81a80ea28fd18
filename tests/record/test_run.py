"""Run directories: what is in them, and what is refused."""

import json
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from stoker.config import Config
from stoker.errors import BadFile, InvalidArgument, MissingFile, RunExists
from stoker.record import Event, Record, Run
from tests.record.stories import LIGHT, fill


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


def test_files_that_are_not_a_runs(tmp_path):
    (tmp_path / "events.jsonl").touch()
    errors = []  # which hold on to all that was alive when they were raised
    for content, told in [("{", "run.json: expected JSON, but"), ("[]", "run.json: expected an object, .* a list")]:
        (tmp_path / "run.json").write_text(content)
        with pytest.raises(BadFile, match=told):
            Run.open(tmp_path)
        with pytest.raises(BadFile, match=told) as error:
            Run.resume(tmp_path)
        errors.append(error)
    (tmp_path / "run.json").unlink()
    (tmp_path / "events.jsonl").write_text("nonsense\n")
    with pytest.raises(BadFile, match="line 1: expected an event") as error:
        Run.resume(tmp_path)
    (tmp_path / "events.jsonl").write_text("")
    Run.resume(tmp_path).close()  # the lock was given back each time


def test_a_run_has_an_id_of_its_own_that_stays(tmp_path):
    for name in "ab":
        Run.create(tmp_path / name, facts={"id": "mine"}).close()
    first, second = Run.open(tmp_path / "a").id, Run.open(tmp_path / "b").id
    assert first != second and len(first) == 16 and int(first, 16) >= 0
    run = Run.resume(tmp_path / "a")
    assert run.id == first == json.loads((tmp_path / "a" / "run.json").read_text())["id"]
    run.close()
    assert Run(tmp_path, Record(), config=None, facts={}).id == ""


def test_a_run_goes_on_with_its_files_as_they_are(tmp_path):
    run = Run.create(tmp_path, config=Training(), facts={"seed": 3})
    fill(run.record, epochs=3, end=False)
    run.close()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    run = Run.resume(tmp_path / "events.jsonl", config=Training(), facts={"seed": 4})
    assert run.path == tmp_path and run.config == Training().to_dict() and run.facts["seed"] == 3
    run.record.rewind(5, Event("resume", 2000.0, epoch=1, extra={"checkpoint": "00000010"}))
    run.record.append(Event("note", text="on"))
    run.close()
    assert run.record.series("valid/loss") == pytest.approx([0.7]) and run.record.events_of("warning") == []
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert after.pop("events.jsonl").startswith(before.pop("events.jsonl"))  # nothing of it is cut off
    assert after.pop("log.txt").endswith(b"on\n") and after == before
    assert Run.open(tmp_path).record.events == run.record.events


def test_what_differs_now_is_a_warning_after_the_resume(tmp_path):
    run = Run.create(tmp_path, config={"lr": 0.1, "model": {"hidden": 64}}, facts={"versions": {"torch": "1.0"}})
    run.record.append(Event("note"))
    run.close()
    run = Run.resume(tmp_path, config={"lr": 0.2, "model": {"hidden": 64}})
    run.record.append(Event("note"))
    assert run.config["lr"] == 0.1 and run.record.events_of("warning") == []
    run.record.rewind(1, Event("resume", extra={"checkpoint": None}))
    config, versions = [event.text for event in run.record.events[2:]]
    began = "the config is not the one that the run began with (config.json, which stays as it is)"
    assert config == f"{began}: lr: 0.1 → 0.2"
    assert versions.startswith("other versions than when the run began, so the last bits may differ: torch: '1.0' → '")
    run.record.rewind(1, Event("resume", extra={"checkpoint": None}))
    run.close()
    assert len(run.record.events) == 2  # said once
    Run.create(tmp_path / "none").close()
    run = Run.resume(tmp_path / "none", config={"lr": 0.2})
    run.record.rewind(0, Event("resume"))
    assert run.record.events[1].text.endswith("the run began with (none): lr: nothing → 0.2")
    assert not (tmp_path / "none" / "config.json").exists()


@pytest.mark.parametrize("there", [[], ["config.json"]])
def test_a_creation_that_was_cut_short_is_completed(tmp_path, there):
    run = Run.create(tmp_path, config={"lr": 0.1})
    run.close()
    for name in {"config.json", "run.json"} - {*there}:
        (tmp_path / name).unlink()
    (tmp_path / ".run.json.part").write_text("{")
    run = Run.resume(tmp_path, config={"lr": 0.1}, facts={"seed": 5})
    assert run.config == {"lr": 0.1} and run.facts["seed"] == 5 and len(run.id) == 16
    run.record.rewind(0, Event("resume"))
    run.close()
    assert len(run.record.events) == 1 and Run.open(tmp_path).facts == run.facts


def test_a_run_of_before_there_were_ids_gets_one(tmp_path):
    (tmp_path / "events.jsonl").touch()
    (tmp_path / "run.json").write_text('{"started": 3.5, "seed": 7}')
    (tmp_path / "config.json").write_text('{"lr": 0.1}')
    run = Run.resume(tmp_path, config={"lr": 0.2}, facts={"seed": 8})
    run.close()
    assert Run.open(tmp_path).config == run.config == {"lr": 0.1}
    assert (run.facts["started"], run.facts["seed"]) == (3.5, 7) and len(Run.open(tmp_path).id) == 16


def test_where_there_is_no_run_there_is_nothing_to_resume(tmp_path):
    with pytest.raises(MissingFile, match="is no run: there is no events.jsonl in it"):
        Run.resume(tmp_path)
    with pytest.raises(MissingFile, match="there is no run at '.*nowhere'"):
        Run.resume(tmp_path / "nowhere")
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_a_living_process_writes_is_refused_and_a_kill_frees_it(tmp_path):
    text = LIGHT + "from stoker.record import Run; run = Run.create(sys.argv[1]); print(run.id, flush=True); input()"
    command = [sys.executable, "-c", text, str(tmp_path / "run")]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        name = other.stdout.readline().strip()
        assert Run.open(tmp_path / "run").writer == f"process {other.pid}"
        with pytest.raises(RunExists, match=f"is being written by process {other.pid}; wait until it has ended"):
            Run.resume(tmp_path / "run")
    finally:
        other.send_signal(signal.SIGKILL)
        other.communicate()
    run = Run.resume(tmp_path / "run")
    assert run.id == name and run.writer == "this process"
    run.close()
    assert run.writer is None


def test_checkpoints_are_in_the_log(tmp_path):
    run = Run.create(tmp_path)
    run.record.append(Event("checkpoint", extra={"name": "00000120", "reason": "every epoch", "bytes": 12_345}))
    run.close()
    assert (tmp_path / "log.txt").read_text().endswith("  checkpoint 00000120: every epoch, 12,345 bytes\n")
