"""The picture and the two lines above it: which number, and how it is drawn."""

from rich.style import Style
from rich.text import Text

from stoker.view.console import bars, chart, legend, visible
from stoker.view.watch._colours import QUIET
from stoker.view.watch._scene import Scene
from stoker.view.watch._view import KINDS, SMOOTHING
from stoker.view.watch._words import choosing, cut, doing

_LEAST = (16, 5)  # letters and lines of a chart


def tabs(scene: Scene, width: int, _: int = 1) -> Text:
    """The numbers there are, as many as fit around the chosen one; the others are behind ‹ and ›."""
    if scene.tab not in scene.tabs:
        return Text(" no numbers yet", style=QUIET)
    names = [f" {place} {cut(visible(name), 24)} " for place, name in enumerate(scene.tabs, 1)]
    chosen = scene.tabs.index(scene.tab)
    shown = _fitting([len(name) for name in names], chosen, width - 2)
    line = Text().append("‹" if shown.start else " ", style=doing("app.metric(-1)"))
    for place in shown:
        line.append(names[place], choosing(scene, scene.tabs[place], "bold reverse" if place == chosen else ""))
    return line.append("›" if shown.stop < len(names) else "", style=doing("app.metric(1)"))


def controls(scene: Scene, width: int, _: int = 1) -> Text:
    """How the picture is drawn, to be read and to be clicked."""
    view, quiet = scene.view, Style.parse(QUIET)
    line = Text("")
    for kind in KINDS:
        mark = Style(bold=True, underline=True) if kind == view.kind else quiet
        line.append(" ").append(kind, style=mark + doing(f"app.kind('{kind}')"))
    if view.kind != "epochs":
        share = SMOOTHING[view.smoothing]
        line.append("  ").append(f"mean {share:.0%}" if share else "raw", style=quiet + doing("app.smooth(1)"))
        line.append(" ").append("log" if scene.log else "linear", style=quiet + doing("app.log"))
        line.append(" ").append(view.by, style=quiet + doing("app.by"))
    line.truncate(width)
    return line


def picture(scene: Scene, width: int, height: int, *, ascii_only: bool = False, colours: bool = True) -> Text:
    """The lines or bars with their names above; a word where there is nothing to draw or no room."""
    if width < _LEAST[0] or height < _LEAST[1] + 1:
        return Text("no room", style=QUIET)
    if not scene.lines:
        return Text("\n  nothing to draw yet", style=QUIET)
    names = Text(" ").append_text(legend(scene.lines, ascii_only=ascii_only, colours=colours))
    names.truncate(width, overflow="ellipsis")
    if scene.view.kind == "epochs":
        rows = bars(scene.lines, width, height - 1, ascii_only=ascii_only, colours=colours)
    else:
        scale = {"log": scene.log, "times": scene.view.by == "time"}
        rows = chart(scene.lines, width, height - 1, **scale, ascii_only=ascii_only, colours=colours)
    return Text("\n").join([names, *rows])


def _fitting(sizes: list[int], chosen: int, room: int) -> range:
    """As many neighbours of the chosen one as there is room for, to both sides in turn."""
    first, after = chosen, chosen + 1
    while True:
        before = (first, after)
        if after < len(sizes) and sum(sizes[first : after + 1]) <= room:
            after += 1
        if first > 0 and sum(sizes[first - 1 : after]) <= room:
            first -= 1
        if (first, after) == before:
            return range(first, after)
