"""TensorBoard: a run's numbers in TensorBoard's event files, written by `torch.utils.tensorboard`."""

import json
import os
import time as clock
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.callbacks._tracker import Ending, Tracked, Tracker, needs_package

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoard(Tracker):
    """Writes the run's numbers, config and messages for TensorBoard; needs `stoker[tensorboard]`.

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
        with needs_package("tensorboard", owner="TensorBoard", install='"stoker[tensorboard]"'):
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

    def close(self, ending: Ending) -> None:
        if self._writer is not None:
            self._writer.close()


def _wait_for_new_second(directory: Path) -> None:
    """TensorBoard reads files in order of their names, which start with the second they were created in."""
    while any(directory.glob(f"events.out.tfevents.{int(clock.time()):010d}.*")):
        clock.sleep(0.05)
