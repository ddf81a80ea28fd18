"""A run's directory: its files, creating, opening and resuming it."""

import json
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from stoker.config import Config
from stoker.errors import BadFile, InvalidArgument, RunExists
from stoker.record import Event, Record, Run, run_settings
from tests.record.examples import append_fit


class Training(Config):
    lr: float = 0.1
    betas: tuple[float, ...] = (0.9, float("inf"))


def test_a_run_has_a_config_facts_and_events(tmp_path):
    run = Run.create(tmp_path / "a" / "b", config=Training(), facts={"plan": ["eager"], "seed": 3, "device": "cpu"})
    append_fit(run.record)
    run.close()
    assert sorted(path.name for path in run.path.iterdir()) == ["config.json", "events.jsonl", "run.json"]
    assert Training.load(run.path / "config.json") == Training()
    facts = json.loads((run.path / "run.json").read_text())
    assert facts["plan"] == ["eager"] and facts["seed"] == 3 and "git" in facts
    assert torch.__version__.startswith(facts["versions"]["torch"]) and facts["pid"] == os.getpid()
    assert facts["versions"]["python"] == sys.version.split()[0] and facts["host"] == platform.node()
    assert facts["command"] == sys.orig_argv and facts["started"] > 1.7e9 and facts["folder"] == os.getcwd()
    opened = Run.open(run.path)
    assert opened.config == Training().to_dict() and opened.facts == facts and opened.record.events == run.record.events
    assert Run.open(run.path / "events.jsonl").path == run.path


def test_a_config_may_be_a_dataclass_a_dict_or_missing(tmp_path):
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


def test_creating_a_run_in_the_directory_of_another_is_an_error_and_changes_nothing(tmp_path):
    run = Run.create(tmp_path / "digits", config={"a": 1})
    append_fit(run.record)
    run.close()
    before = {path.name: path.read_bytes() for path in run.path.iterdir()}
    with pytest.raises(RunExists, match="digits' already holds a run; choose another path, or move or delete"):
        Run.create(tmp_path / "digits", config={"a": 2})
    with pytest.raises(InvalidArgument, match="run.json' is a file; expected a directory"):
        Run.create(run.path / "run.json")
    (run.path / "events.jsonl").unlink()
    with pytest.raises(RunExists):  # its events are missing, but run.json is there
        Run.create(tmp_path / "digits")
    del before["events.jsonl"]
    assert {path.name: path.read_bytes() for path in run.path.iterdir()} == before


def test_a_run_without_an_id_gets_one_and_keeps_its_config(tmp_path):
    (tmp_path / "events.jsonl").touch()
    (tmp_path / "run.json").write_text('{"started": 3.5, "seed": 7}')
    (tmp_path / "config.json").write_text('{"lr": 0.1}')
    run = Run.resume(tmp_path, config={"lr": 0.2}, facts={"seed": 8})
    run.close()
    assert Run.open(tmp_path).config == run.config == {"lr": 0.1}
    assert (run.facts["started"], run.facts["seed"]) == (3.5, 7) and len(Run.open(tmp_path).id) == 16


def test_the_log_holds_messages_and_printed_lines(tmp_path):
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
    run.record.append(Event("checkpoint", extra={"name": "00000120", "reason": "every epoch", "bytes": 12_345}))
    assert (tmp_path / "log.txt").read_text().endswith("  checkpoint 00000120: every epoch, 12,345 bytes\n")


def test_damaged_files_are_errors_and_release_the_lock(tmp_path):
    (tmp_path / "events.jsonl").touch()
    errors = []  # kept alive, as a debugger would keep them
    for content, message in [("{", "run.json: expected JSON, but"), ("[]", "run.json: expected an object, .* a list")]:
        (tmp_path / "run.json").write_text(content)
        with pytest.raises(BadFile, match=message):
            Run.open(tmp_path)
        with pytest.raises(BadFile, match=message) as error:
            Run.resume(tmp_path)
        errors.append(error)
    (tmp_path / "run.json").unlink()
    (tmp_path / "events.jsonl").write_bytes(b"x" * (1 << 25))
    with pytest.raises(BadFile, match="the last one has more than 16,777,216 bytes") as error:
        Run.resume(tmp_path)
    (tmp_path / "events.jsonl").write_text("")
    Run.resume(tmp_path).close()  # the lock was released each time


def test_a_run_has_a_unique_id_that_does_not_change(tmp_path):
    for name in "ab":
        Run.create(tmp_path / name, facts={"id": "mine"}).close()
    first, second = Run.open(tmp_path / "a").id, Run.open(tmp_path / "b").id
    assert first != second and len(first) == 16 and int(first, 16) >= 0
    run = Run.resume(tmp_path / "a")
    assert run.id == first == json.loads((tmp_path / "a" / "run.json").read_text())["id"]
    run.close()
    assert Run(tmp_path, Record(), config=None, facts={}).id == ""


def test_resuming_keeps_the_files(tmp_path):
    run = Run.create(tmp_path, config=Training(), facts={"seed": 3})
    append_fit(run.record, epochs=3, end=False)
    run.close()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    run = Run.resume(tmp_path / "events.jsonl", config=Training(), facts={"seed": 4})
    assert run.path == tmp_path and run.config == Training().to_dict() and run.facts["seed"] == 3
    run.record.rewind(5, Event("resume", 2000.0, epoch=1, extra={"checkpoint": "00000010"}))
    run.record.append(Event("note", text="on"))
    run.close()
    assert run.record.series("valid/loss") == pytest.approx([0.7]) and run.record.events_of("warning") == []
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert after.pop("events.jsonl").startswith(before.pop("events.jsonl"))  # nothing was removed
    assert after.pop("log.txt").endswith(b"on\n") and after == before
    assert Run.open(tmp_path).record.events == run.record.events


def test_differences_become_warnings_after_the_resume(tmp_path):
    run = Run.create(tmp_path, config={"lr": 0.1, "model": {"hidden": 64}}, facts={"versions": {"torch": "1.0"}})
    run.record.append(Event("note"))
    run.close()
    run = Run.resume(tmp_path, config={"lr": 0.2, "model": {"hidden": 64}})
    run.record.append(Event("note"))
    assert run.config["lr"] == 0.1 and run.record.events_of("warning") == []
    run.record.rewind(1, Event("resume", extra={"checkpoint": None}))
    config, versions = [event.text for event in run.record.events[2:]]
    began = "the config differs from the one the run began with (config.json, which is not changed)"
    assert config == f"{began}: lr: 0.1 → 0.2"
    assert versions.startswith("versions differ from those the run began with, so the last bits may: torch: '1.0' → '")
    run.record.rewind(1, Event("resume", extra={"checkpoint": None}))
    run.close()
    assert len(run.record.events) == 2  # only once
    Run.create(tmp_path / "none").close()
    run = Run.resume(tmp_path / "none", config={"lr": 0.2})
    run.record.rewind(0, Event("resume"))
    assert run.record.events[1].text.endswith("the run began with (none): lr: nothing → 0.2")
    assert not (tmp_path / "none" / "config.json").exists()


@pytest.mark.parametrize("there", [[], ["config.json"]])
def test_resuming_completes_a_creation_that_was_interrupted(tmp_path, there):
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


def test_a_run_of_another_format_is_an_error_that_says_what_to_do(tmp_path):
    Run.create(tmp_path).close()
    assert Run.open(tmp_path).facts["format"] == 1
    (tmp_path / "run.json").write_text(json.dumps({**Run.open(tmp_path).facts, "format": 2}))
    for use in (Run.open, Run.resume):
        with pytest.raises(BadFile, match="has format 2, and this stoker reads format 1: use the stoker that wrote it"):
            use(tmp_path)


def test_new_facts_are_written_and_a_full_disk_is_a_warning(tmp_path):
    run = Run.create(tmp_path, facts={"seed": 1})
    run.update_facts({"plan": ["eager"]})
    assert Run.open(tmp_path).facts["plan"] == ["eager"] and Run.open(tmp_path).facts["seed"] == 1
    (tmp_path / "run.json").unlink()
    (tmp_path / "run.json").mkdir()
    (tmp_path / "run.json" / "file").touch()
    run.update_facts({"plan": ["compiled"]})
    (warning,) = run.record.events_of("warning")
    assert warning.text.startswith("run.json can't be updated: ") and run.facts["plan"] == ["compiled"]
    run.close()


def test_facts_hold_the_git_commit_of_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    names = iter("abcdef")

    def commit():
        run = Run.create(tmp_path / ".git" / next(names))  # where git does not see it
        run.close()
        return run.facts["git"]

    def git(*command):
        who = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
        return subprocess.run(["git", *who, *command], check=True, capture_output=True, text=True).stdout.strip()

    assert commit() is None
    git("init", "-q")
    assert commit() is None
    (tmp_path / "file").write_text("a")
    git("add", "file")
    git("commit", "-qm", "first")
    git("tag", "v1")
    assert commit() == git("rev-parse", "HEAD")
    (tmp_path / "file").write_text("b")
    assert commit() == git("rev-parse", "HEAD") + "-dirty"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit() is None


@pytest.mark.parametrize(
    ("old", "new", "differences"),
    [
        ({"lr": 0.1}, {"lr": 0.1}, None),
        ({"model": {"a": {"b": 1}}}, {"model": {"a": {"b": 2}}}, "model.a.b: 1 → 2"),
        ({"old": 1, "gone": None}, {"old": 1, "new": [1]}, "gone: None → nothing, new: nothing → [1]"),
        ({"a": {}}, {"a": {"b": 1}}, "a: {} → nothing, a.b: nothing → 1"),
    ],
)
def test_every_field_that_differs_is_named(tmp_path, old, new, differences):
    Run.create(tmp_path, config=old).close()
    run = Run.resume(tmp_path, config=new)
    run.record.rewind(0, Event("resume"))
    run.close()
    texts = [event.text.partition("): ")[2] for event in run.record.events_of("warning")]
    assert texts == ([differences] if differences else [])


def test_settings_are_one_table_wherever_they_were_given():
    facts = {"settings": {"lr": 0.1, "seed": 1, "hparams": {"hidden": 64}}}
    assert run_settings({"train": {"lr": 0.1}, "hidden": 64, "seed": 0}, facts) == {
        "lr": 0.1,
        "seed": 1,
        "hidden": 64,
        "train.lr": 0.1,
        "config.seed": 0,
    }
    assert run_settings(None, {}) == run_settings(None, {"settings": {}}) == {}
    assert run_settings(None, {"settings": ["damaged"]}) == {}
