"""The curves of a run that is over, short enough to keep those of hundreds of runs."""

from stoker.record import Follower, Points
from stoker.view.ui._points import NONE, Source, Wish

MOST = 1000  # points of a curve


class Digest:
    """Every curve of a run, thinned; it answers most wishes, so that the run need not be read again for them."""

    def __init__(self, run: Follower) -> None:
        self.names = run.names
        self._curves = {name: run.points(name).downsample(MOST) for name in self.names}
        self.bytes = sum(4 * points.value.nbytes for points in self._curves.values())

    def points(self, name: str, *, source: Source = "all") -> Points:
        """What a number was over the run."""
        return self._curves.get(name, NONE)

    @staticmethod
    def serves(wish: Wish) -> bool:
        """Whether a wish is for no more than what is kept: all of a curve, by not too many points."""
        return wish.source == "all" and wish.most <= MOST and wish.is_whole
