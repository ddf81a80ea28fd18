"""MLflow, Weights & Biases and Trackio: the real packages, without a network."""

import json
import os
import sqlite3
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from stoker import InvalidArgument
from stoker.callbacks import MLflow, Trackio, WandB, on
from stoker.record import Run
from tests.callbacks.tracked_fits import (
    CONFIG,
    PATIENCE,
    cut_off_and_resume,
    fit,
    log_media,
    offline,
    points,
    same,
    warnings,
)

# MLflow and SQLAlchemy cause warnings in each other.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


@pytest.fixture(autouse=True)
def _offline(monkeypatch, tmp_path):
    offline(monkeypatch, tmp_path / "home")
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("kind", "package"), [(MLflow, "mlflow"), (WandB, "wandb"), (Trackio, "trackio")])
def test_a_missing_package_costs_a_warning(tmp_path, monkeypatch, kind, package):
    monkeypatch.setitem(sys.modules, package, None)  # an import of it then raises ImportError
    run = fit(kind(), run=tmp_path / "run", epochs=1)
    (warning,) = warnings(run)
    name = kind.__name__
    assert warning.endswith(f"it receives nothing: MissingExtra: {name} needs {package}: pip install {package}")
    assert run.summary()["state"] == "finished"


@pytest.mark.parametrize("kind", [MLflow, WandB])
def test_a_tracker_with_files_needs_a_run_or_a_folder(kind):
    with pytest.raises(InvalidArgument, match=rf"{kind.__name__} writes files: give fit run="):
        fit(kind())


def many_notes(ctx):
    for number in range(600):
        ctx.note(f"number {number}")


# --- MLflow


def mlflow_run(folder, experiment="stoker"):
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    found = client.get_experiment_by_name(experiment)
    (run,) = client.search_runs([found.experiment_id])
    return client, run


@pytest.mark.soak
def test_mlflow_has_each_value_of_a_resumed_run_once(tmp_path):
    run = cut_off_and_resume(lambda: MLflow("digits", progress=None, patience=PATIENCE), tmp_path / "run")
    assert warnings(run) == []
    client, found = mlflow_run(tmp_path / "run" / "mlflow", "digits")
    metrics = {
        name: [(point.step, point.value) for point in client.get_metric_history(found.info.run_id, name)]
        for name in found.data.metrics
    }
    assert same(metrics, points(run))
    assert found.data.params == {"model.hidden": "4", "lr": "0.05"}
    assert (found.info.run_name, found.info.status) == ("run", "FINISHED")
    assert "error: KeyboardInterrupt" in found.data.tags["mlflow.note.content"]
    assert {path.name for path in tmp_path.iterdir()} <= {"run", "home"}


@pytest.mark.soak
def test_mlflow_takes_any_name_and_number_and_the_end_of_long_messages(tmp_path):
    def log(ctx):
        for name, value in (("a b@[c]", 1.5), ("gap", float("nan")), ("top", float("inf"))):
            ctx.log(name, value)

    tracker = MLflow(folder=tmp_path / "shared", patience=PATIENCE)
    run = fit(tracker, run=tmp_path / "run", epochs=1, more=[on(epoch_end=log), on(epoch_begin=many_notes)])
    assert warnings(run) == []
    _, found = mlflow_run(tmp_path / "shared")
    assert found.data.metrics["a b__c_"] == 1.5 and str(found.data.metrics["gap"]) == "nan"
    assert found.data.metrics["top"] > 1e300  # a database has no infinity: MLflow stores the largest number
    texts = found.data.tags["mlflow.note.content"]
    assert len(texts) == 5000 and texts.endswith("note: number 598\nnote: number 599")


@pytest.mark.soak
def test_mlflow_has_media_as_artifacts(tmp_path):
    run = fit(MLflow(patience=PATIENCE), run=tmp_path / "run", epochs=1, more=[on(epoch_end=log_media)])
    assert warnings(run) == []
    client, found = mlflow_run(tmp_path / "run" / "mlflow")
    assert {item.path for item in client.list_artifacts(found.info.run_id, "media")} == {
        event.extra["file"] for event in run.record.media
    }


@pytest.mark.soak
def test_an_mlflow_server_needs_no_folder_and_may_be_unreachable(monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    assert fit(MLflow(uri="http://127.0.0.1:9", patience=PATIENCE), epochs=1) is not None


# --- Weights & Biases


def wandb_records(path):
    """The messages of a .wandb file: LevelDB's log format after seven bytes, in blocks of 32 KiB."""
    from wandb.proto import wandb_internal_pb2

    data, place, whole = path.read_bytes(), 7, b""
    while place < len(data):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        _, size, kind = struct.unpack_from("<IHB", data, place)
        whole += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # a whole message, or the last part of one
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            whole = b""
            yield record


def wandb_messages(folder, kind):
    import wandb

    wandb.teardown()  # its service process writes the rest of the files
    paths = sorted(folder.rglob("*.wandb"), key=lambda path: path.stat().st_mtime_ns)
    records = [record for path in paths for record in wandb_records(path)]
    return [getattr(record, kind) for record in records if record.WhichOneof("record_type") == kind]


def test_wandb_has_one_run_with_every_value_of_a_resumed_run(tmp_path):
    trackers = lambda: WandB("digits", mode="offline", progress=None, patience=PATIENCE)  # noqa: E731
    run = cut_off_and_resume(trackers, tmp_path / "run")
    assert warnings(run) == []
    folder = tmp_path / "run" / "wandb"
    begun = wandb_messages(folder, "run")
    assert {each.run_id for each in begun} == {run.id} and {each.project for each in begun} == {"digits"}
    config = {item.key: json.loads(item.value_json) for item in begun[0].config.update}
    assert {key: config[key] for key in CONFIG} == CONFIG
    rows = [
        {(item.key or item.nested_key[0]): json.loads(item.value_json) for item in history.item}
        for history in wandb_messages(folder, "history")
    ]
    found = {}
    for row in rows:  # what was trained again appears twice, with the same value
        for name in points(run):
            if name in row:
                found.setdefault(name, {}).setdefault(row["update"], set()).add(row[name])
    assert same(
        {name: [(at, *values) for at, values in sorted(each.items())] for name, each in found.items()}, points(run)
    )
    assert [row["epoch"] for row in rows if "train/loss" in row] == [1, 2, 3, 2, 3, 4]
    assert [each.exit_code for each in wandb_messages(folder, "exit")] == [1, 0]
    assert {path.name for path in tmp_path.iterdir()} <= {"run", "home"}


@pytest.mark.soak
def test_wandb_has_media(tmp_path):
    tracker = WandB(mode="offline", progress=None, patience=PATIENCE)
    run = fit(tracker, run=tmp_path / "run", epochs=1, more=[on(epoch_end=log_media)])
    assert warnings(run) == []
    histories = wandb_messages(tmp_path / "run" / "wandb", "history")
    items = [item for history in histories for item in history.item if list(item.nested_key[1:]) == ["_type"]]
    types = {item.nested_key[0]: json.loads(item.value_json) for item in items}
    assert types == {
        "picture": "image-file", "weights": "histogram", "words": "table-file", "table": "table-file",
        "sound": "audio-file",
    }  # fmt: skip


def test_a_wrong_argument_of_wandb_init_costs_a_warning(tmp_path):
    run = fit(WandB(mode="offline", no_such_thing=1, patience=PATIENCE), run=tmp_path / "run")
    (warning,) = warnings(run)
    assert "WandB failed, and training continues; it receives nothing: TypeError" in warning


# --- Trackio: it reads its directory when it is imported, so it runs in another process

TRACKIO = """
import sys
from stoker.callbacks import Trackio, on
from tests.callbacks.tracked_fits import PATIENCE, cut_off_and_resume, fit, warnings

run = cut_off_and_resume(lambda: Trackio("digits", progress=None, patience=PATIENCE), sys.argv[1] + "/run")
assert warnings(run) == []
hello = on(epoch_end=lambda ctx: ctx.note("hello *there*"))
fit(Trackio("digits", name="other", patience=PATIENCE), epochs=1, more=[hello])
"""


@pytest.mark.soak
def test_trackio_has_each_value_of_a_resumed_run_once(tmp_path):
    root = Path(__file__).parents[2]
    environment = {**os.environ, "TRACKIO_DIR": str(tmp_path / "trackio"), "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", TRACKIO, str(tmp_path)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    run = Run.open(tmp_path / "run")
    connection = sqlite3.connect(tmp_path / "trackio" / "digits.db")
    rows = connection.execute("select run_name, step, metrics from metrics order by id").fetchall()
    configs = connection.execute("select config from configs order by id").fetchall()
    connection.close()
    found = {}
    for name, step, metrics in rows:
        for metric, value in json.loads(metrics).items():
            if name == f"run-{run.id[:8]}" and metric not in ("epoch", "messages"):
                found.setdefault(metric, []).append((step, value))
    assert same(found, points(run))
    config = json.loads(configs[0][0])
    assert {key: config[key] for key in CONFIG} == CONFIG
    others = [metrics for name, _, metrics in rows if name.startswith("other-")]
    assert any("hello *there*" in str(metrics) for metrics in others)
