"""Watching runs on a terminal."""

import os
from collections.abc import Sequence

from stoker.errors import MissingExtra
from stoker.record import Follower
from stoker.view.console import visible


def watch(runs: Sequence[str | os.PathLike[str]], *, light: bool | None = None) -> int:
    """Shows runs on this terminal until somebody leaves with `q`, and returns 0, or 1 where the screen broke down.

    Several runs are laid over each other. `light` says which colours, where the terminal doesn't. At the end it prints
    how each run stood: that was the end of the viewer, not of the run. Needs Textual.
    """
    try:
        from stoker.view.watch._app import Dashboard
    except ImportError as error:
        raise MissingExtra("watch needs textual: pip install 'stoker[watch]'") from error
    if os.environ.get("NO_COLOR") == "":
        del os.environ["NO_COLOR"]  # Textual goes by its being there; an empty one says nothing
    app = Dashboard([Follower(run) for run in runs], light=light)
    app.run()
    if app.broken is not None:
        raise app.broken
    for run in app.scene.runs if app.scene is not None else ():
        goes_on = ", and goes on without a viewer" if run.state == "running" else ""
        print(f"{visible(run.path)}: {run.state}{goes_on}")
    return app.return_code or 0
