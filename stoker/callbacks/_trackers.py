"""Trackers for TensorBoard, MLflow, Weights & Biases and Trackio."""

import contextlib
import json
import os
import re
import tempfile
import time as _time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stoker.callbacks._tracker import Ending, MediaItem, Tracked, Tracker
from stoker.errors import explain_missing
from stoker.record import flatten_config

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

_MLFLOW_TAG = "stoker.run"  # the tag by which a resumed run finds its run in MLflow
_MLFLOW_STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
_MLFLOW_MAX_PARAMS = 100  # MLflow's limit for one request
_MLFLOW_MAX_LENGTH = 6000  # MLflow's limit for the value of a parameter
_WANDB_EXIT_CODES = {"finished": 0, "interrupted": 130, "failed": 1}
_TEXT_LIMIT = 5_000  # characters of messages that are kept where a tracker has one field for all of them


def _append_text(texts: str, text: str) -> str:
    """Adds a line to the run's messages, of which the last 5000 characters are kept."""
    return f"{texts}\n{text}".lstrip()[-_TEXT_LIMIT:]


class TensorBoard(Tracker):
    """Writes the run's numbers, media, config and messages for TensorBoard; needs `stoker[tensorboard]`.

    >>> TensorBoard("boards")
    TensorBoard(name=None, progress=5.0, patience=30.0)

    The files go into `tensorboard` in the run's directory (`tensorboard --logdir runs` shows all runs), or into a
    directory per fit below `folder`. TensorBoard stores numbers in 32 bits. What a resumed run repeats is purged.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        name: str | None = None,
        progress: float | None = 5.0,
        patience: float = 30.0,
    ) -> None:
        sink = _EventFiles(directory_per_fit=folder is not None)
        super().__init__(sink, name=name, folder=folder, progress=progress, patience=patience, needs_folder=True)


class _EventFiles:
    """One event file for each process that works on the run."""

    def __init__(self, *, directory_per_fit: bool) -> None:
        self._directory_per_fit = directory_per_fit
        self._writer: SummaryWriter | None = None

    def prepare(self) -> None:
        with explain_missing('TensorBoard needs tensorboard: pip install "stoker[tensorboard]"'):
            import torch.utils.tensorboard  # noqa: F401

    def open(self, run: Tracked) -> None:
        self.prepare()
        from torch.utils.tensorboard import SummaryWriter

        assert run.folder is not None
        directory = run.folder / f"{run.name}-{run.id[:8]}" if self._directory_per_fit else run.folder
        directory.mkdir(parents=True, exist_ok=True)
        _wait_for_new_second(directory)
        self._writer = SummaryWriter(str(directory), purge_step=run.update)
        for title, content in (("config", run.config), ("run", dict(run.facts))):
            if content and run.update == 0:
                text = f"```\n{json.dumps(content, indent=2, default=str)}\n```"
                self._writer.add_text(title, text, 0, run.time)
        self._writer.flush()

    def write(self, values: Mapping[str, float], *, update: int, epoch: int, time: float) -> None:
        assert self._writer is not None
        for name, value in values.items():
            self._writer.add_scalar(name, value, update, time)
        self._writer.flush()  # a kill of this process then loses nothing

    def text(self, text: str, *, update: int, time: float) -> None:
        assert self._writer is not None
        self._writer.add_text("messages", text, update, time)
        self._writer.flush()

    def media(self, item: MediaItem) -> None:
        assert self._writer is not None
        if item.type in ("text", "table"):
            text = "\n".join(f"    {line}" for line in item.content.decode().splitlines())  # not as Markdown
            self._writer.add_text(item.name, text, item.update, item.time)
        else:
            self._writer._get_file_writer().add_summary(_summary(item), item.update, item.time)
        self._writer.flush()

    def close(self, ending: Ending) -> None:
        if self._writer is not None:
            self._writer.close()


def _summary(item: MediaItem) -> Any:
    """An image, histogram or sound in TensorBoard's own format, which takes encoded files as they are."""
    import tensorboard.compat.proto.summary_pb2 as proto

    formats: Any = proto  # its classes are made when it is imported
    HistogramProto, Summary = formats.HistogramProto, formats.Summary
    extra: Mapping[str, Any] = item.extra
    if item.type == "image":
        content = Summary.Image(height=extra["height"], width=extra["width"], encoded_image_string=item.content)
        return Summary(value=[Summary.Value(tag=item.name, image=content)])
    if item.type == "audio":
        sound = Summary.Audio(
            sample_rate=extra["rate"],
            num_channels=extra["channels"],
            length_frames=round(extra["seconds"] * extra["rate"]),
            encoded_audio_string=item.content,
            content_type="audio/wav",
        )
        return Summary(value=[Summary.Value(tag=item.name, audio=sound)])
    bins = json.loads(item.content)
    limits = {"min": extra.get("minimum", 0.0), "max": extra.get("maximum", 0.0)}
    count, mean = sum(bins["counts"]), extra.get("mean", 0.0)
    histogram = HistogramProto(
        **limits,
        num=count,
        sum=count * mean,
        sum_squares=count * mean * mean,  # not known; TensorBoard does not show it
        bucket_limit=bins["edges"][1:],
        bucket=bins["counts"],
    )
    return Summary(value=[Summary.Value(tag=item.name, histo=histogram)])


@contextlib.contextmanager
def _temporary_file(item: MediaItem) -> Iterator[Path]:
    """The item as a file with its proper name, for packages that take paths only."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / Path(item.extra["file"]).name
        path.write_bytes(item.content)
        yield path


def _wait_for_new_second(directory: Path) -> None:
    """TensorBoard reads files in order of their names, which start with the second they were created in."""
    while any(directory.glob(f"events.out.tfevents.{int(_time.time()):010d}.*")):
        _time.sleep(0.05)


class MLflow(Tracker):
    """Sends the run's metrics, media, config and messages to MLflow, with the update as the step; needs `mlflow`.

    >>> MLflow("digits", uri="http://localhost:5000")
    MLflow(name=None, progress=5.0, patience=30.0)

    `uri` is the tracking server, by default MLFLOW_TRACKING_URI. Without either, the metrics go into a database in
    `mlflow` in the run directory, or in `folder`: `mlflow ui --backend-store-uri sqlite:///runs/digits/mlflow/mlflow.db`.
    Characters that MLflow does not allow in names become `_`. Media are artifacts in `media`.
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
        with explain_missing("MLflow needs mlflow: pip install mlflow"):
            import mlflow.entities  # noqa: F401

    def open(self, run: Tracked) -> Mapping[tuple[int, str], float]:
        self.prepare()
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client = MlflowClient(self._uri or _mlflow_database(run))
        self._texts = ""
        experiment = self._find_experiment(run)
        found = self._client.search_runs(
            [experiment], filter_string=f"tags.`{_MLFLOW_TAG}` = '{run.id}'", max_results=1
        )
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
        self._run_id = self._client.create_run(
            experiment, int(1000 * run.time), {_MLFLOW_TAG: run.id}, run.name
        ).info.run_id
        params = [
            Param(_clean_mlflow_name(name), str(value)[:_MLFLOW_MAX_LENGTH])
            for name, value in flatten_config(run.config)
        ]
        for first in range(0, len(params), _MLFLOW_MAX_PARAMS):
            self._client.log_batch(self._run_id, params=params[first : first + _MLFLOW_MAX_PARAMS])
        return {}

    def write(self, values: Mapping[str, float], *, update: int, epoch: int, time: float) -> None:
        from mlflow.entities import Metric

        metrics = [Metric(_clean_mlflow_name(name), value, int(1000 * time), update) for name, value in values.items()]
        self._client.log_batch(self._run_id, metrics)

    def text(self, text: str, *, update: int, time: float) -> None:
        self._texts = _append_text(self._texts, text)
        self._client.set_tag(self._run_id, "mlflow.note.content", self._texts)

    def media(self, item: MediaItem) -> None:
        with _temporary_file(item) as path:
            self._client.log_artifact(self._run_id, str(path), "media")

    def close(self, ending: Ending) -> None:
        self._client.set_terminated(self._run_id, _MLFLOW_STATUS[ending])

    def _find_experiment(self, run: Tracked) -> str:
        found = self._client.get_experiment_by_name(self._experiment)
        if found is not None:
            return found.experiment_id
        is_local = self._uri is None and run.folder is not None
        artifacts = (run.folder / "artifacts").absolute().as_uri() if is_local and run.folder else None
        return self._client.create_experiment(self._experiment, artifact_location=artifacts)


def _mlflow_database(run: Tracked) -> str:
    assert run.folder is not None
    run.folder.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{(run.folder / 'mlflow.db').absolute()}"


def _clean_mlflow_name(name: str) -> str:
    return re.sub(r"[^\w\-. :/]", "_", name, flags=re.ASCII)


class WandB(Tracker):
    """Sends the run's metrics, media, config and messages to Weights & Biases, over the update; needs `wandb`.

    >>> WandB("digits", mode="offline", tags=["small"])
    WandB(name=None, progress=5.0, patience=30.0)

    Its files go into `wandb` in the run directory, or into `folder`. `init` are further arguments of `wandb.init`.
    Weights & Biases cannot remove values: those that a resumed run computes again appear twice, with the same update.
    """

    def __init__(
        self,
        project: str = "stoker",
        *,
        folder: str | os.PathLike[str] | None = None,
        name: str | None = None,
        progress: float | None = 5.0,
        patience: float = 30.0,
        **init: Any,
    ) -> None:
        sink = _WandBSink({"project": project, **init})
        super().__init__(sink, name=name, folder=folder, progress=progress, patience=patience, needs_folder=True)


class _WandBSink:
    """A run of Weights & Biases, beside any other run of the program."""

    def __init__(self, init: Mapping[str, Any]) -> None:
        self._init = init
        self._run: Any = None
        self._texts = ""

    def prepare(self) -> None:
        with explain_missing("WandB needs wandb: pip install wandb"):
            import wandb  # noqa: F401

    def open(self, run: Tracked) -> None:
        self.prepare()
        import wandb

        assert run.folder is not None
        run.folder.mkdir(parents=True, exist_ok=True)
        defaults = {
            "id": run.id,
            "name": run.name,
            "dir": str(run.folder),
            "config": run.config,
            "resume": "allow",
            "reinit": "create_new",
            "settings": wandb.Settings(console="off", silent=True),  # the fit itself shows what happens
        }
        self._run, self._texts = wandb.init(**{**defaults, **self._init}), ""
        self._run.define_metric("*", step_metric="update")

    def write(self, values: Mapping[str, float], *, update: int, epoch: int, time: float) -> None:
        self._run.log({**values, "epoch": epoch, "update": update})

    def text(self, text: str, *, update: int, time: float) -> None:
        self._texts = _append_text(self._texts, text)
        self._run.summary["messages"] = self._texts

    def media(self, item: MediaItem) -> None:
        with _temporary_file(item) as path:
            self._run.log({item.name: _wandb_media(item, path), "update": item.update})

    def close(self, ending: Ending) -> None:
        self._run.finish(exit_code=_WANDB_EXIT_CODES[ending])


def _wandb_media(item: MediaItem, path: Path) -> Any:
    import wandb

    caption = item.caption or None
    if item.type == "image":
        return wandb.Image(str(path), caption=caption)
    if item.type == "audio":
        return wandb.Audio(str(path), caption=caption)
    if item.type == "text":
        return wandb.Table(columns=["text"], data=[[item.content.decode()]])
    content = json.loads(item.content)
    if item.type == "table":
        data: Any = [[value if value is None else str(value) for value in row] for row in content["rows"]]
        return wandb.Table(columns=content["columns"], data=data)
    counts, edges = np.array(content["counts"]), np.array(content["edges"])
    if len(counts) > wandb.Histogram.MAX_LENGTH:
        edges = edges[:: -(-len(counts) // wandb.Histogram.MAX_LENGTH)]
        counts, edges = np.histogram(np.array(content["edges"])[:-1], bins=edges, weights=counts)
    return wandb.Histogram(np_histogram=(counts, edges))


class Trackio(Tracker):
    """Sends the run's metrics, config and messages to Trackio, with the update as the step; needs `trackio`.

    >>> Trackio("digits")
    Trackio(name=None, progress=5.0, patience=30.0)

    Trackio keeps one database for all runs of a project, in TRACKIO_DIR or its default directory; `trackio show`
    displays it. `init` are further arguments of `trackio.init`, such as `space_id`. It gets no media.
    """

    def __init__(
        self,
        project: str = "stoker",
        *,
        name: str | None = None,
        progress: float | None = 5.0,
        patience: float = 30.0,
        **init: Any,
    ) -> None:
        super().__init__(_TrackioSink(project, init), name=name, progress=progress, patience=patience)


class _TrackioSink:
    """A run of Trackio; a resumed run is found by its name."""

    def __init__(self, project: str, init: Mapping[str, Any]) -> None:
        self._project, self._init = project, init
        self._run: Any = None

    def prepare(self) -> None:
        with explain_missing("Trackio needs trackio: pip install trackio"):
            import trackio  # noqa: F401

    def open(self, run: Tracked) -> Mapping[tuple[int, str], float]:
        self.prepare()
        import trackio

        name = f"{run.name}-{run.id[:8]}"
        defaults = {"embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
        arguments = {"project": self._project, "name": name, "config": run.config, "resume": "allow"}
        self._run = trackio.init(**{**defaults, **self._init, **arguments})
        return _read_trackio_values(self._project, name, run.update)

    def write(self, values: Mapping[str, float], *, update: int, epoch: int, time: float) -> None:
        self._run.log({**values, "epoch": epoch}, step=update)

    def text(self, text: str, *, update: int, time: float) -> None:
        import trackio

        self._run.log({"messages": trackio.Markdown(text)}, step=update)

    def close(self, ending: Ending) -> None:
        self._run.finish()


def _read_trackio_values(project: str, name: str, update: int) -> Mapping[tuple[int, str], float]:
    """The values that the local database has from `update` on; empty for a remote one.

    Trackio's public API cannot read metrics. If `SQLiteStorage` moves, a resumed run writes some values twice, and
    the test of a resumed run fails.
    """
    try:
        from trackio.sqlite_storage import SQLiteStorage

        rows = SQLiteStorage.get_logs(project, name)
    except (ImportError, AttributeError):
        return {}
    return {
        (row["step"], key): value
        for row in rows
        if row["step"] >= update
        for key, value in row.items()
        if type(value) is float
    }
