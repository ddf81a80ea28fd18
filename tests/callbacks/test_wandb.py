"""With the real W&B, which writes its files and tells nobody."""

import builtins
import json
import struct
import threading
import types

import pytest

from stoker import InvalidArgument
from stoker.callbacks import WandB
from stoker.callbacks._wandb import _Online
from tests.callbacks.tracked import CONFIG, PATIENCE, cut_off_and_resumed, fit, offline, points, same, warnings


@pytest.fixture(autouse=True)
def _offline(monkeypatch, tmp_path):
    offline(monkeypatch, tmp_path / "home")
    yield
    import wandb

    wandb.teardown()


def records(path):
    """The messages of a .wandb file: the log format of LevelDB behind seven bytes, in blocks of 32 KiB."""
    from wandb.proto import wandb_internal_pb2

    data, place, whole = path.read_bytes(), 7, b""
    while place < len(data):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        _, size, kind = struct.unpack_from("<IHB", data, place)
        whole += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last part of one
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            whole = b""
            yield record


def of(folder, kind):
    import wandb

    wandb.teardown()  # a run that is finished hands its file over: the process behind it writes the rest
    paths = sorted(folder.rglob("*.wandb"), key=lambda path: path.stat().st_mtime_ns)
    return [getattr(each, kind) for path in paths for each in records(path) if each.WhichOneof("record_type") == kind]


def rows(folder):
    return [
        {(item.key or item.nested_key[0]): json.loads(item.value_json) for item in history.item}
        for history in of(folder, "history")
    ]


def test_a_run_that_is_cut_off_and_resumed_has_one_id_and_every_number(tmp_path):
    run = cut_off_and_resumed(
        lambda: WandB("digits", mode="offline", progress=None, patience=PATIENCE), tmp_path / "run"
    )
    assert warnings(run) == []
    folder = tmp_path / "run" / "wandb"
    begun = of(folder, "run")
    assert {each.run_id for each in begun} == {run.id} and {each.project for each in begun} == {"digits"}
    config = {item.key: json.loads(item.value_json) for item in begun[0].config.update}
    assert {key: config[key] for key in CONFIG} == CONFIG
    found = {}
    for row in rows(folder):  # what was done again stands there twice, with the same value
        for name in points(run):
            if name in row:
                found.setdefault(name, {}).setdefault(row["update"], set()).add(row[name])
    assert same(
        {name: [(at, *values) for at, values in sorted(each.items())] for name, each in found.items()}, points(run)
    )
    assert [row["epoch"] for row in rows(folder) if "train/loss" in row] == [1, 2, 3, 2, 3, 4]
    assert [each.exit_code for each in of(folder, "exit")] == [1, 0]
    assert {path.name for path in tmp_path.iterdir()} <= {"run", "home"}


def test_what_the_run_says_is_cut_in_front():
    sink = _Online({})
    sink._run = types.SimpleNamespace(summary={})
    sink.text("note: hello", update=1, time=2.0)
    assert sink._run.summary == {"said": "note: hello"}
    for number in range(6000):
        sink.text(f"note: {number}", update=1, time=2.0)
    said = sink._run.summary["said"]
    assert len(said) == len(sink._said) == 5000 and said.endswith("note: 5998\nnote: 5999")


def test_the_fits_own_thread_imports_the_package_and_one_that_is_missing_costs_a_warning(tmp_path, monkeypatch):
    real, threads = builtins.__import__, []

    def missing(name, *rest):
        if name == "wandb":
            threads.append(threading.current_thread())
            raise ImportError("No module named 'wandb'")
        return real(name, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(builtins, "__import__", missing)
        run = fit(WandB(mode="offline"), run=tmp_path / "run", epochs=1)
    assert threads[0] is threading.current_thread()
    (warning,) = warnings(run)
    assert warning.endswith("it gets nothing: MissingExtra: WandB needs wandb: pip install wandb")


def test_a_run_or_a_folder_is_needed_and_a_wrong_setting_costs_a_warning(tmp_path):
    with pytest.raises(InvalidArgument, match="WandB writes files"):
        fit(WandB(mode="offline"))
    run = fit(WandB(mode="offline", no_such_thing=1), run=tmp_path / "run")
    (warning,) = warnings(run)
    assert "WandB failed, and the run goes on; it gets nothing: TypeError" in warning
