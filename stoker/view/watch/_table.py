"""The table of numbers: by set for one run, by run for several."""

from rich.style import Style
from rich.text import Text

from stoker.record import line_styles, number
from stoker.view.console import visible
from stoker.view.watch._colours import QUIET
from stoker.view.watch._scene import Row, Scene
from stoker.view.watch._words import choosing, cut, doing, stacked, state_colour

_CELL = 9  # letters of a number


def metrics(scene: Scene, width: int, height: int) -> Text:
    """The latest numbers by set, and the best; a name can be clicked."""
    if len(scene.runs) > 1:
        return _overlaid(scene, width, height)
    run = scene.run
    if not run.rows:
        return Text()
    sets = [group for group in run.sets if any(group in row.values for row in run.rows)]
    fitting = max(1, (width - 8) // _CELL)
    with_best = fitting > len(sets)
    sets = sets[:fitting]
    widest = max(6, width - _CELL * len(sets) - (_CELL + 4) * with_best)
    widest = min(widest, max((len(row.name) for row in run.rows), default=6))
    colours = line_styles(sets)
    head = Text(" " * widest)
    for group in sets:
        head.append(f"{cut(visible(group), _CELL - 1):>{_CELL}}", style=colours[group].color)
    lines = [head.append(f"{'best':>{_CELL}}" if with_best else "", style=QUIET)]
    room = max(0, height - 1)
    first = _first_shown([row.name for row in run.rows], scene.tab, room)
    shown = run.rows[first : first + room]
    lines += [_row(scene, row, sets, widest, with_best=with_best) for row in shown]
    return stacked(lines, width, height)


def _row(scene: Scene, row: Row, sets: list[str], widest: int, *, with_best: bool) -> Text:
    chosen = row.name == scene.tab
    line = Text(
        f"{cut(visible(row.name), widest):<{widest}}", style=choosing(scene, row.name, "bold" if chosen else "")
    )
    if "" in row.values:
        unit = f" {visible(row.unit)}" if row.unit else ""
        return line.append(f"{number(row.values['']):>{_CELL}}{unit}")
    for group in sets:
        value = row.values.get(group)
        line.append(f"{number(value):>{_CELL}}", style="bold" if chosen else "")
    if with_best and row.best is not None:
        line.append(f"{number(row.best.value):>{_CELL}}")
        line.append(f" @{row.best.epoch}", style=QUIET)
    return line


def _overlaid(scene: Scene, width: int, height: int) -> Text:
    """Of several runs: each with its state and its latest value of the number that is drawn."""
    longest = max(len(visible(run.name)) for run in scene.runs) + 1
    widest = max(8, min(longest, width - 2 * _CELL - 2))
    last = max(_CELL, min(len(visible(scene.tab)), width - widest - _CELL - 1))
    lines = [Text(f"{'':<{widest}}{'state':>{_CELL}} {cut(visible(scene.tab), last):>{last}}", style=QUIET)]
    styles = {line.name: line.style for line in scene.lines if line.name}
    for place, run in enumerate(scene.runs):
        chosen = place == scene.view.run % len(scene.runs)
        style = f"{'bold ' if chosen else ''}{styles.get(visible(run.name), QUIET)}"
        name = f"{cut(visible(run.name), widest - 1):<{widest}}"
        line = Text().append(name, style=Style.parse(style) + doing(f"app.run({place})"))
        line.append(f"{cut(run.state, _CELL - 1):>{_CELL}}", style=state_colour(run.state))
        lines.append(line.append(f" {number(run.status.latest.get(scene.tab)):>{last}}"))
    return stacked(lines, width, height)


def _first_shown(names: list[str], chosen: str, room: int) -> int:
    """Where a list begins that has to show the chosen one."""
    at = names.index(chosen) if chosen in names else 0
    return min(max(0, at - room // 2), max(0, len(names) - room))
