"""Numbers for TensorBoard."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from stoker.callbacks._tracker import Ending, Tracked, Tracker
from stoker.record import TensorBoardFile


class TensorBoard(Tracker):
    """Writes the run's numbers, its config and what it said for TensorBoard; needs no package.

    >>> TensorBoard("boards")
    TensorBoard(name=None, progress=5.0, patience=30.0)

    The files go into `tensorboard` in the run's directory (`tensorboard --logdir runs` shows all runs), or into a
    folder of the fit's own below `folder`. Numbers have 32 bits there. What a resumed run makes void is void there too.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        name: str | None = None,
        progress: float | None = 5.0,
        patience: float = 30.0,
    ) -> None:
        sink = _Files(apart=folder is not None)
        super().__init__(sink, name=name, folder=folder, progress=progress, patience=patience, needs_folder=True)


class _Files:
    """A file of events for each process that works on the run."""

    def __init__(self, *, apart: bool) -> None:
        self._apart = apart  # whether fits share the folder
        self._file: TensorBoardFile | None = None

    def open(self, run: Tracked) -> None:
        self._file = TensorBoardFile(self._place(run), update=run.update)
        for title, what in (("config", run.config), ("run", dict(run.facts))):
            if what and run.update == 0:
                self._file.text(title, f"```\n{json.dumps(what, indent=2, default=str)}\n```", update=0, time=run.time)

    def write(self, values: Mapping[str, float], *, update: int, epoch: int, time: float) -> None:
        assert self._file is not None
        self._file.write(values, update=update, time=time)

    def text(self, text: str, *, update: int, time: float) -> None:
        assert self._file is not None
        self._file.text("said", text, update=update, time=time)

    def close(self, ending: Ending) -> None:
        if self._file is not None:
            self._file.close()

    def _place(self, run: Tracked) -> Path:
        assert run.folder is not None
        return run.folder / f"{run.name}-{run.id[:8]}" if self._apart else run.folder
