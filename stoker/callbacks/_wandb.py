"""Numbers for Weights & Biases."""

import os
from collections.abc import Mapping
from typing import Any

from stoker.callbacks._sink import Ending, Tracked
from stoker.callbacks._tracker import Tracker
from stoker.errors import MissingExtra

_CODES = {"finished": 0, "interrupted": 130, "failed": 1}  # what W&B takes a process for, by its exit code

_LETTERS = 5000  # of what the run said, the last ones


class WandB(Tracker):
    """Gives the run's numbers and config to Weights & Biases, over the update; needs `wandb`.

    >>> WandB("digits", mode="offline", tags=["small"])
    WandB(name=None, progress=5.0, patience=30.0)

    Its files go into `wandb` in the run's directory, or below `folder`. Everything else that `wandb.init` takes can be
    given too. Nothing can be taken back there: what a resumed run does again stands there twice, at the same update
    and with the same value.
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
        sink = _Online({"project": project, **init})
        super().__init__(sink, name=name, folder=folder, progress=progress, patience=patience, needs_folder=True)


class _Online:
    """One run of W&B's, beside any other that the program has."""

    def __init__(self, init: Mapping[str, Any]) -> None:
        self._init = init
        self._run: Any = None
        self._said = ""

    def prepare(self) -> None:
        try:
            import wandb  # noqa: F401
        except ImportError as error:
            raise MissingExtra("WandB needs wandb: pip install wandb") from error

    def open(self, run: Tracked) -> None:
        self.prepare()
        import wandb

        assert run.folder is not None
        run.folder.mkdir(parents=True, exist_ok=True)
        own = {
            "id": run.id,
            "name": run.name,
            "dir": str(run.folder),
            "config": run.config,
            "resume": "allow",
            "reinit": "create_new",
            "settings": wandb.Settings(console="off", silent=True),  # the screen is the fit's own
        }
        self._run, self._said = wandb.init(**{**own, **self._init}), ""
        self._run.define_metric("*", step_metric="update")

    def write(self, values: Mapping[str, float], *, update: int, epoch: int, time: float) -> None:
        self._run.log({**values, "epoch": epoch, "update": update})

    def text(self, text: str, *, update: int, time: float) -> None:
        self._said = f"{self._said}\n{text}".lstrip()[-_LETTERS:]
        self._run.summary["said"] = self._said

    def close(self, ending: Ending) -> None:
        self._run.finish(exit_code=_CODES[ending])
