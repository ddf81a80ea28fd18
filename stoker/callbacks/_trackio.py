"""Metrics for Trackio."""

from collections.abc import Mapping
from typing import Any

from stoker.callbacks._tracker import Ending, Tracked, Tracker, needs_package


class Trackio(Tracker):
    """Sends the run's metrics, config and messages to Trackio, with the update as the step; needs `trackio`.

    >>> Trackio("digits")
    Trackio(name=None, progress=5.0, patience=30.0)

    Trackio keeps one database for all runs of a project, in TRACKIO_DIR or its default directory; `trackio show`
    displays it. `init` are further arguments of `trackio.init`, such as `space_id`.
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
        with needs_package("trackio", owner="Trackio"):
            import trackio  # noqa: F401

    def open(self, run: Tracked) -> Mapping[tuple[int, str], float]:
        self.prepare()
        import trackio

        name = f"{run.name}-{run.id[:8]}"
        defaults = {"embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
        arguments = {"project": self._project, "name": name, "config": run.config, "resume": "allow"}
        self._run = trackio.init(**{**defaults, **self._init, **arguments})
        return _read_values(self._project, name, run.update)

    def write(self, values: Mapping[str, float], *, update: int, epoch: int, time: float) -> None:
        self._run.log({**values, "epoch": epoch}, step=update)

    def text(self, text: str, *, update: int, time: float) -> None:
        import trackio

        self._run.log({"messages": trackio.Markdown(text)}, step=update)

    def close(self, ending: Ending) -> None:
        self._run.finish()


def _read_values(project: str, name: str, update: int) -> Mapping[tuple[int, str], float]:
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
