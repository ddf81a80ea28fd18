"""A batch that counts for nothing, for a rank whose share of a batch is empty."""

from typing import Any, NamedTuple


class Ghost(NamedTuple):
    """A batch of one sample that another rank has too: it is run for the sake of what all ranks do together.

    >>> import torch
    >>> from stoker.data import Loader
    >>> one_sample = Loader(torch.tensor([7]), batch_size=4)
    >>> [next(iter(one_sample.shared(rank, 2))) for rank in range(2)]
    [Ghost(batch=tensor([7])), tensor([7])]

    Its loss, its metrics and its sample are not to be counted, or the sample would count twice.
    """

    batch: Any
