"""The colours of lines, the same in every picture, and told apart by colour-blind eyes (Okabe and Ito's)."""

from collections.abc import Iterable
from typing import NamedTuple

TRAIN, VALID = "#0072B2", "#E69F00"
OTHERS = ("#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")


class Look(NamedTuple):
    """How a line is drawn: its colour, and solid (0), dashed (1) or dotted (2) once the colours are used up."""

    colour: str
    dash: int = 0


def looks(names: Iterable[str]) -> dict[str, Look]:
    """A look for each name: training and validation have theirs, the others follow in order.

    >>> looks(["train/loss", "valid/loss", "test/loss"])["test/loss"]
    Look(colour='#009E73', dash=0)
    """
    found: dict[str, Look] = {}
    own = {"train": TRAIN, "valid": VALID}
    others = 0
    for name in names:
        if (colour := own.pop(name.partition("/")[0], None)) is not None:  # of a set's many lines the first has it
            found[name] = Look(colour)
        else:
            found[name] = Look(OTHERS[others % len(OTHERS)], others // len(OTHERS) % 3)
            others += 1
    return found
