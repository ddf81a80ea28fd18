"""With the real MLflow, and a database in the run's directory."""

import builtins
import threading
import types

import pytest

from stoker import InvalidArgument
from stoker.callbacks import MLflow, on
from stoker.callbacks._mlflow import _Client
from tests.callbacks.tracked import PATIENCE, cut_off_and_resumed, fit, offline, points, same, warnings

# MLflow's own: it and SQLAlchemy are not always of one mind.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


@pytest.fixture(autouse=True)
def _offline(monkeypatch, tmp_path):
    offline(monkeypatch, tmp_path)
    monkeypatch.chdir(tmp_path)


def client_of(folder):
    from mlflow import MlflowClient

    return MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")


def only_run(client, experiment="stoker"):
    found = client.get_experiment_by_name(experiment)
    (run,) = client.search_runs([found.experiment_id])
    return run


def metrics(client, run):
    return {
        name: [(point.step, point.value) for point in client.get_metric_history(run.info.run_id, name)]
        for name in run.data.metrics
        if not name.startswith("running/")
    }


def test_a_run_that_is_cut_off_and_resumed_is_one_run_with_each_number_once(tmp_path):
    run = cut_off_and_resumed(lambda: MLflow("digits", progress=None, patience=PATIENCE), tmp_path / "run")
    assert warnings(run) == []
    client = client_of(tmp_path / "run" / "mlflow")
    found = only_run(client, "digits")
    assert same(metrics(client, found), points(run))
    assert found.data.params == {"model.hidden": "4", "lr": "0.05"}
    assert (found.info.run_name, found.info.status) == ("run", "FINISHED")
    assert "error: KeyboardInterrupt" in found.data.tags["mlflow.note.content"]
    assert {path.name for path in tmp_path.iterdir()} == {"run"}  # nothing outside


def test_odd_names_and_numbers(tmp_path):
    def log(ctx):
        for name, value in (("a b@[c]", 1.5), ("gap", float("nan")), ("top", float("inf"))):
            ctx.log(name, value)

    run = fit(
        MLflow(folder=tmp_path / "shared", patience=PATIENCE), run=tmp_path / "run", epochs=1, more=[on(epoch_end=log)]
    )
    assert warnings(run) == []
    found = only_run(client_of(tmp_path / "shared"))
    assert found.data.metrics["a b__c_"] == 1.5 and str(found.data.metrics["gap"]) == "nan"
    assert found.data.metrics["top"] > 1e300  # a database has no infinity: MLflow puts the largest number there


def test_a_server_that_is_not_there_or_a_package_that_is_missing_costs_a_warning(tmp_path, monkeypatch):
    real, threads = builtins.__import__, []

    def missing(name, *rest):
        if name.partition(".")[0] == "mlflow":
            threads.append(threading.current_thread())
            raise ImportError("No module named 'mlflow'")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    run = fit(MLflow(uri="http://127.0.0.1:9"), run=tmp_path / "run")
    assert threads[0] is threading.current_thread()  # a worker that is forked meanwhile would wait for it forever
    (warning,) = warnings(run)
    assert warning.endswith("it gets nothing: MissingExtra: MLflow needs mlflow: pip install mlflow")
    assert run.summary()["state"] == "finished"


def test_what_the_run_says_is_cut_in_front():
    sink, tags = _Client("digits", None), {}
    sink._client = types.SimpleNamespace(set_tag=lambda run, name, value: tags.update({name: value}))
    sink.text("note: hello", update=1, time=2.0)
    assert tags == {"mlflow.note.content": "note: hello"}
    for number in range(6000):
        sink.text(f"note: {number}", update=1, time=2.0)
    said = tags["mlflow.note.content"]
    assert len(said) == len(sink._said) == 5000 and said.endswith("note: 5998\nnote: 5999")


def test_a_server_needs_no_folder(monkeypatch):
    with pytest.raises(InvalidArgument, match="MLflow writes files"):
        fit(MLflow())
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    fitted = fit(MLflow(uri="http://127.0.0.1:9", patience=PATIENCE), epochs=1)
    assert fitted is not None  # nobody listens there, and the fit went to its end
