"""Numbers for MLflow."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stoker.callbacks._sink import Ending, Known, Tracked
from stoker.callbacks._tracker import Tracker
from stoker.errors import MissingExtra
from stoker.record import flatten_config as flat

_URI = "MLFLOW_TRACKING_URI"
_TAG = "stoker.run"  # by which a resumed run finds its run of MLflow's
_STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
_MOST = 100  # parameters that MLflow takes in one go; a value of them has 6000 letters at the most

_LETTERS = 5000  # of what the run said, the last ones


class MLflow(Tracker):
    """Gives the run's numbers, config and words to MLflow, the update as the step; needs `mlflow`.

    >>> MLflow("digits", uri="http://localhost:5000")
    MLflow(name=None, progress=5.0, patience=30.0)

    `uri` is the tracking server; where it is not named, MLFLOW_TRACKING_URI is, and else a database in `mlflow` in the
    run's directory (or in `folder`): `mlflow ui --backend-store-uri sqlite:///runs/digits/mlflow/mlflow.db`. A letter
    that MLflow has no place for in a name becomes `_`.
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
        uri = uri or os.environ.get(_URI)
        sink = _Client(experiment, uri)
        super().__init__(sink, name=name, folder=folder, progress=progress, patience=patience, needs_folder=uri is None)


class _Client:
    """One run of MLflow's, through a client of its own: what the program does with `mlflow` itself is not touched."""

    def __init__(self, experiment: str, uri: str | None) -> None:
        self._experiment, self._uri = experiment, uri
        self._client: Any = None
        self._run = ""
        self._said = ""

    def prepare(self) -> None:
        try:
            import mlflow.entities  # noqa: F401
        except ImportError as error:
            raise MissingExtra("MLflow needs mlflow: pip install mlflow") from error

    def open(self, run: Tracked) -> Known:
        self.prepare()
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client, self._said = MlflowClient(self._uri or _database(run)), ""
        experiment = self._found_experiment(run)
        found = self._client.search_runs([experiment], filter_string=f"tags.`{_TAG}` = '{run.id}'", max_results=1)
        if found:
            self._run = found[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            self._said = found[0].data.tags.get("mlflow.note.content", "")
            return self._known(found[0].data.metrics, run.update)
        made = self._client.create_run(experiment, int(1000 * run.time), {_TAG: run.id}, run.name)
        self._run = made.info.run_id
        params = [Param(_name(name), str(value)[:6000]) for name, value in flat(run.config)]
        for first in range(0, len(params), _MOST):
            self._client.log_batch(self._run, params=params[first : first + _MOST])
        return {}

    def write(self, values: Mapping[str, float], *, update: int, epoch: int, time: float) -> None:
        from mlflow.entities import Metric

        self._client.log_batch(
            self._run, [Metric(_name(name), value, int(1000 * time), update) for name, value in values.items()]
        )

    def text(self, text: str, *, update: int, time: float) -> None:
        self._said = f"{self._said}\n{text}".lstrip()[-_LETTERS:]
        self._client.set_tag(self._run, "mlflow.note.content", self._said)

    def close(self, ending: Ending) -> None:
        self._client.set_terminated(self._run, _STATUS[ending])

    def _found_experiment(self, run: Tracked) -> str:
        found = self._client.get_experiment_by_name(self._experiment)
        if found is not None:
            return found.experiment_id
        place = None if self._uri is not None or run.folder is None else (run.folder / "artifacts").absolute().as_uri()
        return self._client.create_experiment(self._experiment, artifact_location=place)

    def _known(self, metrics: Mapping[str, float], update: int) -> Known:
        return {
            (point.step, name): point.value
            for name in metrics
            for point in self._client.get_metric_history(self._run, name)
            if point.step >= update
        }


def _database(run: Tracked) -> str:
    assert run.folder is not None
    run.folder.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{Path(run.folder, 'mlflow.db').absolute()}"


def _name(name: str) -> str:
    return re.sub(r"[^\w\-. :/]", "_", name, flags=re.ASCII)
