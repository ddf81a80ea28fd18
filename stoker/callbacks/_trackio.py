"""Numbers for Trackio."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stoker.callbacks import _trackio_process
from stoker.callbacks._sink import Ending, Known, Tracked
from stoker.callbacks._tracker import Tracker


class Trackio(Tracker):
    """Gives the run's numbers and config to Trackio, the update as the step; needs `trackio`.

    >>> Trackio("digits")
    Trackio(name=None, progress=5.0, patience=30.0)

    Its database goes into `trackio` in the run's directory, or into `folder`, which runs may share:
    `TRACKIO_DIR=runs/digits/trackio trackio show` is the page. Trackio's own environment variables are obeyed, so
    with TRACKIO_SPACE_ID it goes to a Space.
    """

    def __init__(
        self,
        project: str = "stoker",
        *,
        folder: str | os.PathLike[str] | None = None,
        name: str | None = None,
        progress: float | None = 5.0,
        patience: float = 30.0,
    ) -> None:
        sink = _Process(project)
        super().__init__(sink, name=name, folder=folder, progress=progress, patience=patience, needs_folder=True)


class _Process:
    """A process of its own: Trackio has one folder for as long as it is imported, and prints."""

    def __init__(self, project: str) -> None:
        self._project = project
        self._process: subprocess.Popen[str] | None = None

    def open(self, run: Tracked) -> Known:
        assert run.folder is not None
        self._process = subprocess.Popen(
            [sys.executable, "-P", _trackio_process.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            env={**os.environ, "TRACKIO_DIR": str(Path(run.folder).absolute())},
            start_new_session=True,  # Ctrl-C is the training's; this one ends when it is closed, or nothing more comes
        )
        name = f"{run.name}-{run.id[:8]}"  # a run of Trackio's is found again by its name
        try:
            known = self._ask("open", project=self._project, name=name, config=run.config, update=run.update)
        except BaseException:
            with self._process as process:
                process.kill()  # it has nothing to lose, and a forked worker may hold the other end of its stdin
            raise
        return {(update, name): float(value) for update, name, value in known}

    def write(self, values: Mapping[str, float], *, update: int, epoch: int, time: float) -> None:
        self._ask("write", values={**values, "epoch": epoch}, update=update)

    def text(self, text: str, *, update: int, time: float) -> None:
        self._ask("text", text=text, update=update)

    def close(self, ending: Ending) -> None:
        assert self._process is not None
        with self._process:  # it ends once it has answered
            self._ask("close")

    def _ask(self, what: str, **given: Any) -> Any:
        assert self._process is not None
        questions, answers = self._process.stdin, self._process.stdout
        assert questions is not None
        assert answers is not None
        questions.write(json.dumps({"what": what, **given}) + "\n")
        questions.flush()
        answer = json.loads(answers.readline() or '{"error": "the process of Trackio is gone"}')
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["done"]
