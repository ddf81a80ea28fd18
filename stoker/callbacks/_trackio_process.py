"""The process that Trackio lives in: lines of JSON come in, each is done, and an answer goes out.

It is started as a file, and imports nothing of stoker.
"""

import json
import sys
from typing import Any, TextIO


class Desk:
    """Does what a line asks for."""

    def __init__(self) -> None:
        self._run: Any = None

    def open(self, project: str, name: str, config: Any, update: int) -> list[tuple[int, str, float]]:
        """Makes or finds the run, and says what is there already from an update on."""
        try:
            import trackio
        except ImportError:
            raise RuntimeError("Trackio needs trackio: pip install trackio") from None
        self._run = trackio.init(
            project=project,
            name=name,
            config=config,
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        return _known(project, name, update)

    def write(self, values: dict[str, float], update: int) -> None:
        """Logs numbers."""
        self._run.log(values, step=update)

    def text(self, text: str, update: int) -> None:
        """Logs what was said."""
        import trackio

        self._run.log({"said": trackio.Markdown(text)}, step=update)

    def close(self) -> None:
        """Brings everything to where it goes."""
        self._run.finish()


def _known(project: str, name: str, update: int) -> list[tuple[int, str, float]]:
    from trackio.sqlite_storage import SQLiteStorage

    return [
        (row["step"], key, value)
        for row in SQLiteStorage.get_logs(project, name)
        if row["step"] >= update
        for key, value in row.items()
        if type(value) is float
    ]


def main(lines: TextIO, answers: TextIO) -> None:
    """Answers until it is told to close, or nothing more comes."""
    desk = Desk()
    for line in lines:
        given = json.loads(line)
        what = given.pop("what")
        try:
            answer = {"done": getattr(desk, what)(**given)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
        if what == "close":  # the lines may never end: a worker that was forked holds their other end, too
            return


if __name__ == "__main__":
    answers, sys.stdout = sys.stdout, sys.stderr  # what Trackio prints is no answer
    main(sys.stdin, answers)
