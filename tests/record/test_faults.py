"""What is at a run's paths may be anything: special files, links, no permission, a full disk, a wrong clock."""

import contextlib
import errno
import os
import re
import resource
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import stoker
from stoker.errors import BadFile, InvalidArgument, MissingFile, StokerError
from stoker.record import (
    Control,
    Event,
    Follower,
    Record,
    Run,
    export,
    find_runs,
    list_checkpoints,
    run_settings,
    send_request,
)
from tests.hooks import crash_at
from tests.record.examples import append_fit

FILES = ("events.jsonl", "run.json", "config.json", "log.txt", ".events.jsonl.lock", "control.json")
KINDS = ("pipe", "device", "directory", "loop", "outside", "sparse", "nested", "integer", "missing")


def put(kind, path):
    """Puts something else in the place of a file."""
    path.unlink(missing_ok=True)
    match kind:
        case "pipe":
            os.mkfifo(path)  # to open it would wait for ever
        case "device":
            path.symlink_to("/dev/zero")  # it has no end
        case "directory":
            path.mkdir()
        case "loop":
            path.symlink_to(path.name)
        case "outside":
            path.symlink_to(path.parent.parent / "outside")
        case "sparse":
            with path.open("wb") as file:
                file.truncate(1 << 40)
        case "nested":
            path.write_bytes(b'{"kind":"note","time":1,"extra":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001 + b"\n")
        case "integer":
            path.write_text('{"kind":"note","time":1,"id":' + "9" * 5000 + "}\n")


def resume(path):
    run = Run.resume(path)
    try:
        run.record.append(Event("note", text="resumed"))
        run.log("resumed")
        run.update_facts({"plan": []})
    finally:
        run.close()


ACTIONS = {
    "record": Record.open,
    "write": lambda path: Record(path).close(),
    "run": lambda path: Run.open(path).summary(),
    "resume": resume,
    "create": Run.create,
    "list": find_runs,
    "export": lambda path: export(path, path.parent / "out.csv"),
    "request": lambda path: send_request(path, "stop"),
    "poll": lambda path: Control(path).poll(),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_special_file_is_read_around_or_an_error_and_nothing_is_written_through_a_link(tmp_path, kind):
    (tmp_path / "outside").write_text("not the run's\n")
    Run.create(tmp_path / "run", config={"lr": 0.1}).close()
    for file in FILES:
        for name, action in ACTIONS.items():
            path = tmp_path / f"{name}{file}"
            shutil.copytree(tmp_path / "run", path)
            put(kind, path / file)
            with contextlib.suppress(StokerError):
                action(path)
            assert (tmp_path / "outside").read_text() == "not the run's\n", (name, file)


@pytest.mark.parametrize("path", [Path("a\0b"), Path("x" * 300) / "run"], ids=["null character", "too long"])
def test_an_impossible_path_is_an_error(path):
    if "\0" in str(path):
        with pytest.raises(InvalidArgument, match=r"can't contain a zero byte; got 'a\\x00b'"):
            find_runs(path)
    for name, action in ACTIONS.items():
        if name not in ("list", "poll"):
            with pytest.raises(StokerError):
                action(path)


def deny(monkeypatch, name):
    opened = os.open

    def refuse(path, *args, **options):
        if str(path).endswith(name):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, *args, **options)

    monkeypatch.setattr("os.open", refuse)  # root is not stopped by permissions


def test_a_file_without_permission_is_an_error_that_names_it(tmp_path, monkeypatch):
    Run.create(tmp_path / "run").close()
    for name in ("events.jsonl", "run.json"):
        with monkeypatch.context() as patched:
            deny(patched, name)
            with pytest.raises(BadFile, match=f"{name} cannot be read: Permission denied"):
                Run.open(tmp_path / "run")
            with pytest.raises(BadFile, match="Permission denied"):
                Run.resume(tmp_path / "run")
    monkeypatch.setattr("os.mkdir", lambda *_, **__: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    with pytest.raises(BadFile, match=r"the run '.*new' can't be created: Permission denied"):
        Run.create(tmp_path / "new")


def test_a_full_disk_at_creation_is_an_error_and_leaves_no_run(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(BadFile, match=r"the run '.*run' can't be created: File too large"):
            Run.create(tmp_path / "run", config={"lr": 0.1})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list((tmp_path / "run").iterdir()) == []
    Run.create(tmp_path / "run").close()


def test_a_run_whose_events_were_removed_can_be_opened_and_resumed(tmp_path):
    run = Run.create(tmp_path / "run", facts={"seed": 3})
    run.record.append(Event("note", text="lost"))
    run.close()
    (run.path / "checkpoints").mkdir()
    (run.path / "events.jsonl").unlink()
    opened = Run.open(run.path)
    assert (opened.id, opened.facts["seed"], len(opened.record), opened.writer) == (run.id, 3, 0, None)
    (follower,) = find_runs(tmp_path)
    assert (follower.state, follower.reason) == ("gone", "events.jsonl can't be read: No such file or directory")
    resumed = Run.resume(run.path)
    resumed.record.rewind(0, Event("resume"))
    resumed.close()
    assert resumed.id == run.id and [event.kind for event in Record.open(run.path).events] == ["resume"]
    with pytest.raises(MissingFile, match="is not a run: it has no events.jsonl"):
        Run.resume(tmp_path)


def test_a_clock_before_1970(tmp_path, monkeypatch):
    monkeypatch.setattr("time.time", lambda: -86_400.0)
    run = Run.create(tmp_path / "run")
    run.record.append(Event("begin", -86_400.0, extra={"epochs": 2}))
    for update in range(3):
        time = -86_300.0 + update
        run.record.append(Event("progress", time, 1, update, update, {"train/loss": 1.0}, extra={"phase": "train"}))
    run.record.append(Event("note", -86_200.0, text="hello"))
    follower = Follower(run.path)
    follower.refresh()
    assert follower.damaged_lines == 0 and follower.points("train/loss").time.tolist() == [-86_300, -86_299, -86_298]
    assert (follower.status.time, follower.status.seconds, follower.status.update) == (-86_200.0, 200.0, 2)
    assert follower.log[0].startswith("1969-12-3")
    run.close()
    follower.refresh()
    assert Run.open(run.path).summary() == follower.summary


def test_a_fit_resumes_to_the_same_weights_and_best_epoch_without_its_events_or_with_damaged_ones(tmp_path):
    torch.manual_seed(1)
    train, valid = ((torch.randn(size, 3), torch.randn(size, 1)) for size in (32, 16))

    def fit(name, **arguments):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        learner = stoker.Learner(model, loss=nn.MSELoss(), lr=0.5, seed=0)
        arguments = {"epochs": 6, "batch_size": 8, "show": False, **arguments}
        return learner.fit(train, valid=valid, run=tmp_path / name, **arguments)

    whole = fit("whole")
    assert whole.best.epoch == 1, "the best epoch is among the lost ones"
    with pytest.raises(KeyboardInterrupt):
        fit("cut", callbacks=[crash_at(epoch=4, error=KeyboardInterrupt)])
    shutil.copytree(tmp_path / "cut", tmp_path / "damaged")
    events = tmp_path / "damaged" / "events.jsonl"
    lines = events.read_bytes().splitlines(keepends=True)
    events.write_bytes(b"".join([*lines[:2], b"{damaged\n", *lines[3:]]))

    def check(resumed):
        assert resumed.best == whole.best and resumed.stopped == whole.stopped
        for name, value in whole.model.state_dict().items():
            assert torch.equal(resumed.model.state_dict()[name], value)

    for _ in range(2):  # once while it is unfinished, and once when it is finished
        (tmp_path / "cut" / "events.jsonl").unlink()
        check(fit("cut", resume=True))
    assert Run.open(tmp_path / "cut").summary()["reason"] == whole.stopped
    resumed = fit("damaged", resume=True)
    check(resumed)
    assert resumed.history["valid/loss"] == whole.history["valid/loss"], "the other events keep their places"
    (warning,) = resumed.record.events_of("warning")
    assert warning.text.startswith("a damaged event is left out: ") and "line 3" in warning.text


JSON_VALUES = [
    b"null",
    b"true",
    b"-1",
    b"1e999",
    b"NaN",
    b"[]",
    b"{}",
    b'"x"',
    b"9" * 400,
    b"\xff",
    b'"\\ud800"',
    b"[[[]]]",
]


@settings(max_examples=60)
@given(data=st.data())
def test_a_file_with_any_damage_is_read_or_is_one_of_our_errors(tmp_path_factory, data):
    run = Run.create(tmp_path_factory.mktemp("runs") / "run", config={"model": {"hidden": 4}}, facts={"settings": {}})
    append_fit(run.record)
    run.record.rewind(9, Event("resume", 5.0, epoch=2, batch=3, update=20))
    run.close()
    path = run.path / data.draw(st.sampled_from(["events.jsonl", "run.json", "config.json"]))
    content = path.read_bytes()
    values = [match.span() for match in re.finditer(rb'(?<=:) ?("[^"]*"|[-0-9.e+]+|\[[^\[\]]*\]|\{[^{}]*\})', content)]
    start, end = data.draw(st.sampled_from(values))
    damage = data.draw(st.sampled_from(JSON_VALUES) | st.binary(max_size=8))
    path.write_bytes(content[:start] + damage + content[end if data.draw(st.booleans()) else start :])
    follower = Follower(run.path)
    follower.refresh()
    assert follower.state in ("running", "died", "failed", "stopped", "finished") and len(follower.names) >= 4
    run_settings(follower.config, follower.facts)
    list_checkpoints(run.path, follower.facts)
    for name in ("run", "record", "resume"):
        with contextlib.suppress(StokerError):
            ACTIONS[name](run.path)
