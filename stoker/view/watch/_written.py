"""The parts of the screen one below the other, as a page of plain text."""

from collections.abc import Sequence

from rich.text import Text

from stoker.record import Follower
from stoker.view.console import visible
from stoker.view.watch import _panes as panes
from stoker.view.watch import _picture as pictures
from stoker.view.watch import _table as table
from stoker.view.watch._scene import Scene, scene_of
from stoker.view.watch._view import View

_CHART = 12  # lines
_LOG = 8


def written(followers: Sequence[Follower], width: int, *, ascii_only: bool) -> str:
    """The page; see `page`."""
    scene = scene_of(followers, View())
    parts = [part for place in range(len(followers)) for part in _run(scene_of(followers, View(run=place)), width)]
    drawn = [pictures.picture(scene, width, _CHART, ascii_only=ascii_only, colours=False)] if scene.lines else []
    return "\n\n".join("\n".join(line.rstrip() for line in part.plain.split("\n")) for part in [*parts, *drawn])


def _run(scene: Scene, width: int) -> list[Text]:
    run = scene.run
    heading = Text(f"{visible(run.path)}: {run.state}")
    if run.title:
        heading.append(f" ({visible(run.title)})")
    warned = panes.banner(scene)
    told = Text("\n").join([heading, *([warned] if warned else []), panes.status(scene, width, 20)])
    parts = [told, table.metrics(scene, width, 40), Text("\n").join(panes.log_lines(run, _LOG))]
    return [part for part in parts if part.plain.strip()]
