"""One epoch of a loader, from a batch on."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from stoker.data._batchable import finished
from stoker.data._feeds import Feed, Rows
from stoker.data._move import moved
from stoker.data._pick import Pick
from stoker.errors import InvalidArgument


@dataclass(frozen=True)
class Walk:
    """One epoch of a loader, from a batch on: `Loader.at` gives it.

    >>> from stoker.data import Loader
    >>> walk = Loader(torch.arange(6), batch_size=2).at(epoch=3, batch=1)
    >>> len(walk), len(list(walk))
    (2, 2)
    """

    _feed: Feed
    epoch: int
    batch: int
    device: torch.device | None
    after: Callable[..., Any] | None = None

    def __len__(self) -> int:
        """Batches that this walk has, from its first on."""
        return self._feed.batches() - self.batch

    def __iter__(self) -> Iterator[Any]:
        batches, device, after = self.raw(), self.device, self.after
        if device is None and after is None:
            return batches
        return (finished(batch if device is None else moved(batch, device), after) for batch in batches)

    def raw(self) -> Iterator[Any]:
        """The batches as they are made: neither moved to `device` nor put through a batchable transform.

        For who moves them by himself, and calls `Loader.finished` then.
        """
        return self._feed.open(self.epoch, self.batch)

    def picks(self) -> Iterator[Pick]:
        """The batches as rows that are still to be gathered; only where `Loader.picks`."""
        if not isinstance(self._feed, Rows) or not self._feed.picks:
            raise InvalidArgument("only columns in memory have rows to pick, without a transform or batcher")
        return self._feed.pick(self.epoch, self.batch, self.after)
