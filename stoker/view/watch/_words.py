"""What all panes write with: texts made harmless, cut, stacked and made to be clicked."""

from rich.style import Style
from rich.text import Text

from stoker.view.watch._colours import BAD, STATES
from stoker.view.watch._scene import Scene


def state_colour(state: str) -> str:
    """The colour of how a run stands."""
    return STATES.get(state, BAD)


def badge(text: str, colour: str) -> Text:
    """A word on a coloured ground, which reads on a dark and on a light screen."""
    return Text(f" {text} ", style=f"bold #000000 on {colour}")


def of(done: int, all_: int | None, between: str = " of ") -> str:
    """How far something came: `7 of 20`, or `7` where nobody knows the end."""
    return f"{done:,}{between}{all_:,}" if all_ else f"{done:,}"


def choosing(scene: Scene, name: str, style: str = "") -> Style:
    """Chooses a number where it is clicked."""
    drawn = Style.parse(style)
    return drawn + doing(f"app.tab({scene.tabs.index(name)})") if name in scene.tabs else drawn


def doing(action: str) -> Style:
    """Does something where it is clicked."""
    return Style(meta={"@click": action})


def stacked(lines: list[Text], width: int, height: int) -> Text:
    """Lines one below the other, those that there is room for, none of them folded."""
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return Text("\n").join(lines[: max(height, 0)])


def cut(text: str, width: int) -> str:
    """A text that is no wider than that."""
    return text if len(text) <= width else f"{text[: width - 1]}…"
