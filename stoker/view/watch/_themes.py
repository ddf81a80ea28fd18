"""Light and dark."""

import os
from dataclasses import replace

from textual.theme import Theme

from stoker.view.watch._colours import BAD, OTHERS, TRAIN, VALID

DARK = Theme(
    "stoker-dark",
    primary=TRAIN,
    secondary=OTHERS[2],
    success=OTHERS[0],
    warning=VALID,
    error=BAD,
    background="#101216",
    surface="#171a20",
    panel="#20242c",
    foreground="#d8dbe2",
    variables={"footer-key-foreground": OTHERS[2]},
)
LIGHT = replace(
    DARK,
    name="stoker-light",
    dark=False,
    background="#ffffff",
    surface="#f4f5f7",
    panel="#e8eaee",
    foreground="#1c1e22",
    variables={"footer-key-foreground": TRAIN},
)


def starts_light() -> bool:
    """Whether the terminal says that it is light; the few that do, say it in COLORFGBG: `0;15`."""
    return os.environ.get("COLORFGBG", "").rpartition(";")[2] in ("7", "15")
