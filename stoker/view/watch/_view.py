"""What somebody wants to see: which number, over what, how smooth, of which run."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

Kind = Literal["history", "recent", "epochs"]
KINDS: tuple[Kind, ...] = ("history", "recent", "epochs")
SMOOTHING = (0.0, 0.01, 0.03, 0.1, 0.3)  # what part of a line's points one smoothed point is the mean of


@dataclass(frozen=True, slots=True)
class View:
    """A choice of what to draw; the first tab where `tab` is none of those there are.

    >>> View().turned(1).kind, View(tab="loss").moved(1, ["loss", "lr"]).tab
    ('recent', 'lr')
    """

    tab: str = ""
    kind: Kind = "history"
    smoothing: int = 0  # a place in SMOOTHING
    log: bool | None = None  # None: where the numbers call for it
    by: Literal["update", "time"] = "update"
    run: int = 0  # whose status, log and progress

    def on(self, tab: str) -> "View":
        """Of another number, drawn as that calls for."""
        return replace(self, tab=tab, log=None)

    def moved(self, by: int, tabs: Sequence[str]) -> "View":
        """Of the number so many tabs further; after the last comes the first."""
        if not tabs:
            return self
        return self.on(tabs[((tabs.index(self.tab) if self.tab in tabs else 0) + by) % len(tabs)])

    def turned(self, by: int) -> "View":
        """Of the next kind, or the one before."""
        return replace(self, kind=KINDS[(KINDS.index(self.kind) + by) % len(KINDS)])

    def smoother(self, by: int) -> "View":
        """By so many levels."""
        return replace(self, smoothing=min(max(0, self.smoothing + by), len(SMOOTHING) - 1))

    def over_the_other(self) -> "View":
        """Over the time in the place of the updates, or the other way."""
        return replace(self, by="time" if self.by == "update" else "update")
