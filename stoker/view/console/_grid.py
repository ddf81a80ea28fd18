"""A grid of coloured letters with numbers at its left and below it: what a chart is drawn on."""

from collections.abc import Mapping
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

QUIET = "#808080"  # of axes and numbers: it reads on black and on white
_FAINT = "dim #808080"
_LINES = {False: "│┤└─┬┈", True: "|++-+ "}


class Grid:
    """Letters by row and column, each with its style; blank at first."""

    def __init__(self, width: int, height: int) -> None:
        self.width = width
        self.height = height
        self.cells: list[list[tuple[str, str]]] = [[(" ", "")] * width for _ in range(height)]

    def put(self, row: int, column: int, letter: str, style: str) -> None:
        """Sets a letter; what was there is gone."""
        self.cells[row][column] = (letter, style)

    def framed(self, beside: Mapping[int, str], below: Mapping[int, str], *, ascii_only: bool = False) -> list["Text"]:
        """The rows with their axes: `beside` are the numbers of rows, `below` those of columns; two rows more."""
        from rich.text import Text

        bar, tick, corner, rule, foot, faint = _LINES[ascii_only]
        margin = max(map(len, beside.values()), default=0)
        lines: list[Text] = []
        for row, cells in enumerate(self.cells):
            line = Text(f"{beside.get(row, ''):>{margin}} {tick if row in beside else bar}", style=QUIET)
            ruled = [(faint, _FAINT) if row in beside and cell[0] == " " else cell for cell in cells]
            for style, run in groupby(ruled, lambda cell: cell[1]):
                line.append("".join(letter for letter, _ in run), style=style)
            lines.append(line)
        edge = "".join(foot if column in below else rule for column in range(self.width))
        indent = " " * (margin + 1)
        lines.append(Text(f"{indent}{corner}{edge}", style=QUIET))
        lines.append(Text(f"{indent} {_spread(below, self.width)}", style=QUIET))
        return lines


def _spread(texts: Mapping[int, str], width: int) -> str:
    """Texts centred on their columns, in one line; one that has no room is left out."""
    line = ""
    for column, text in sorted(texts.items()):
        start = min(max(0, column - (len(text) - 1) // 2), width - len(text))
        if start >= len(line) + bool(line):
            line += " " * (start - len(line)) + text
    return line
