"""The random numbers of a fit: its own from a seed, and never disturbed by validation."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor


class RandomState(NamedTuple):
    """Where Python's, numpy's and torch's generators stand, those of GPUs that are in use included."""

    python: Any
    arrays: Any
    cpu: Tensor
    cuda: list[Tensor] | None


def random_state() -> RandomState:
    """Where all generators stand now."""
    in_use = torch.cuda.is_available() and torch.cuda.is_initialized()
    cuda = torch.cuda.get_rng_state_all() if in_use else None
    return RandomState(random.getstate(), numpy.random.get_state(), torch.get_rng_state(), cuda)


def set_random_state(state: RandomState) -> None:
    """All generators as they stood."""
    random.setstate(state.python)
    numpy.random.set_state(state.arrays)
    torch.set_rng_state(state.cpu)
    if state.cuda is not None:
        torch.cuda.set_rng_state_all(state.cuda)


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
