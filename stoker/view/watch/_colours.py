"""The colours of lines and states: Okabe and Ito's, told apart by colour-blind eyes, on black and on white."""

TRAIN, VALID = "#0072B2", "#E69F00"
OTHERS = ("#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
STATES = {
    "running": "#56B4E9",
    "finished": "#009E73",
    "stopped": "#E69F00",
    "interrupted": "#E69F00",
}
BAD = "#D55E00"  # of a run that failed, died or is gone, and of what should worry
QUIET = "#808080"


def faint(colour: str) -> str:
    """A colour half way to grey, for what lies behind.

    >>> faint("#0072B2")
    '#407999'
    """
    return "#" + "".join(f"{(int(colour[at : at + 2], 16) + 128) // 2:02x}" for at in (1, 3, 5))
