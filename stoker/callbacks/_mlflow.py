"""Metrics for MLflow."""

import os
import re
from collections.abc import Mapping
from typing import Any

from stoker.callbacks._tracker import Ending, Tracked, Tracker, append_text, needs_package
from stoker.record import flatten_config

_TAG = "stoker.run"  # the tag by which a resumed run finds its run in MLflow
_STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
_MAX_PARAMS = 100  # MLflow's limit for one request
_MAX_LENGTH = 6000  # MLflow's limit for the value of a parameter


class MLflow(Tracker):
    """Sends the run's metrics, config and messages to MLflow, with the update as the step; needs `mlflow`.

    >>> MLflow("digits", uri="http://localhost:5000")
    MLflow(name=None, progress=5.0, patience=30.0)

    `uri` is the tracking server, by default MLFLOW_TRACKING_URI. Without either, the metrics go into a database in
    `mlflow` in the run directory, or in `folder`: `mlflow ui --backend-store-uri sqlite:///runs/digits/mlflow/mlflow.db`.
    Characters that MLflow does not allow in names become `_`.
    """

    def __init__(
        self,
        experiment: str = "stoker",
        *,
        uri: str | None = None,
        folder: str | os.PathLike[str] | None = None,
        name: str | None = None,
        progress: float | None = 5.0,
        patience: float = 30.0,
    ) -> None:
        uri = uri or os.environ.get("MLFLOW_TRACKING_URI")
        sink = _MLflowSink(experiment, uri)
        super().__init__(sink, name=name, folder=folder, progress=progress, patience=patience, needs_folder=uri is None)


class _MLflowSink:
    """A run of MLflow, through its own client: the program's global `mlflow` state does not change."""

    def __init__(self, experiment: str, uri: str | None) -> None:
        self._experiment, self._uri = experiment, uri
        self._client: Any = None
        self._run_id = ""
        self._texts = ""

    def prepare(self) -> None:
        with needs_package("mlflow", owner="MLflow"):
            import mlflow.entities  # noqa: F401

    def open(self, run: Tracked) -> Mapping[tuple[int, str], float]:
        self.prepare()
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client, self._texts = MlflowClient(self._uri or _database_uri(run)), ""
        experiment = self._find_experiment(run)
        found = self._client.search_runs([experiment], filter_string=f"tags.`{_TAG}` = '{run.id}'", max_results=1)
        if found:
            self._run_id = found[0].info.run_id
            self._client.update_run(self._run_id, status="RUNNING")
            self._texts = found[0].data.tags.get("mlflow.note.content", "")
            return {
                (point.step, name): point.value
                for name in found[0].data.metrics
                for point in self._client.get_metric_history(self._run_id, name)
                if point.step >= run.update
            }
        self._run_id = self._client.create_run(experiment, int(1000 * run.time), {_TAG: run.id}, run.name).info.run_id
        params = [Param(_clean(name), str(value)[:_MAX_LENGTH]) for name, value in flatten_config(run.config)]
        for first in range(0, len(params), _MAX_PARAMS):
            self._client.log_batch(self._run_id, params=params[first : first + _MAX_PARAMS])
        return {}

    def write(self, values: Mapping[str, float], *, update: int, epoch: int, time: float) -> None:
        from mlflow.entities import Metric

        metrics = [Metric(_clean(name), value, int(1000 * time), update) for name, value in values.items()]
        self._client.log_batch(self._run_id, metrics)

    def text(self, text: str, *, update: int, time: float) -> None:
        self._texts = append_text(self._texts, text)
        self._client.set_tag(self._run_id, "mlflow.note.content", self._texts)

    def close(self, ending: Ending) -> None:
        self._client.set_terminated(self._run_id, _STATUS[ending])

    def _find_experiment(self, run: Tracked) -> str:
        found = self._client.get_experiment_by_name(self._experiment)
        if found is not None:
            return found.experiment_id
        is_local = self._uri is None and run.folder is not None
        artifacts = (run.folder / "artifacts").absolute().as_uri() if is_local and run.folder else None
        return self._client.create_experiment(self._experiment, artifact_location=artifacts)


def _database_uri(run: Tracked) -> str:
    assert run.folder is not None
    run.folder.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{(run.folder / 'mlflow.db').absolute()}"


def _clean(name: str) -> str:
    return re.sub(r"[^\w\-. :/]", "_", name, flags=re.ASCII)
