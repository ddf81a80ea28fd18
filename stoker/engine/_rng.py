"""Random numbers of a fit: seeded for the whole fit, and never consumed by validation."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy
import torch

from stoker.checkpoint import random_state, set_random_state


@contextmanager
def preserve_rng() -> Iterator[None]:
    """Restores all global generators afterwards."""
    before = random_state()
    try:
        yield
    finally:
        set_random_state(before)


@contextmanager
def seed_rng(seed: int | None) -> Iterator[None]:
    """Seeds all global generators and restores them afterwards; does nothing if `seed` is None."""
    if seed is None:
        yield
        return
    with preserve_rng():
        random.seed(seed)
        numpy.random.seed(seed % 2**32)
        torch.manual_seed(seed)
        yield


def seed_of_rank(seed: int | None, rank: int, update: int = 0) -> int | None:
    """The seed of one rank, so that dropout differs between ranks; rank 0 uses the fit's own seed."""
    if seed is None or rank == 0:
        return seed
    return int(numpy.random.SeedSequence([seed % 2**64, rank, update]).generate_state(1, numpy.uint64)[0] >> 1)
