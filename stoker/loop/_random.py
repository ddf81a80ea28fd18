"""The random numbers of a fit: its own from a seed, and never disturbed by validation."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy
import torch

from stoker.checkpoint import random_state, set_random_state

RandomState = dict[str, Any]


@contextmanager
def put_back() -> Iterator[None]:
    """Leaves all generators as they were."""
    before = random_state()
    try:
        yield
    finally:
        set_random_state(before)


@contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """All generators from a seed, and as they were afterwards; without one they go on as they are."""
    if seed is None:
        yield
        return
    with put_back():
        random.seed(seed)
        numpy.random.seed(seed % 2**32)
        torch.manual_seed(seed)
        yield


def seed_of_rank(seed: int | None, rank: int, update: int = 0) -> int | None:
    """The seed of one rank's own random numbers, so that dropout is another one on each; rank 0's is the fit's."""
    if seed is None or rank == 0:
        return seed
    return int(numpy.random.SeedSequence([seed % 2**64, rank, update]).generate_state(1, numpy.uint64)[0] >> 1)
