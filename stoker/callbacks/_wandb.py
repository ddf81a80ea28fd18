"""Metrics for Weights & Biases."""

import os
from collections.abc import Mapping
from typing import Any

from stoker.callbacks._tracker import Ending, Tracked, Tracker, append_text, needs_package

_EXIT_CODES = {"finished": 0, "interrupted": 130, "failed": 1}


class WandB(Tracker):
    """Sends the run's metrics, config and messages to Weights & Biases, over the update; needs `wandb`.

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
        with needs_package("wandb", owner="WandB"):
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
        self._texts = append_text(self._texts, text)
        self._run.summary["messages"] = self._texts

    def close(self, ending: Ending) -> None:
        self._run.finish(exit_code=_EXIT_CODES[ending])
