"""A run as one page of plain text, for files, pipes and terminals that can't do more."""

from collections.abc import Sequence

from stoker.record import Follower


def page(followers: Sequence[Follower], *, width: int = 100, ascii_only: bool = False) -> str:
    """What there is to see of some runs now, as lines of text without any escape code.

    >>> from stoker.record import Run
    >>> run = Run.create("runs/letters")
    >>> follower = Follower("runs/letters")
    >>> follower.refresh()
    True
    >>> print(page([follower]))
    runs/letters: running
    phase    starting
    epoch    0
    update   0
    time     0:00
    >>> run.close()
    """
    from stoker.view.watch._written import written  # which needs rich: not before it is used

    return written(followers, width, ascii_only=ascii_only)
