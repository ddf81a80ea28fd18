"""Random numbers of a loader: orders and draws are pure functions of (seed, epoch, number of the sample)."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

# What a key is used for, so that two uses never share a stream of random numbers.
ORDER, SAMPLE, BATCH, STREAM, SPLIT, DRAW, MIX, PART = range(1, 9)

_MASK = 2**64 - 1


def random_key(purpose: int, *numbers: int) -> int:
    """Mixes its arguments to a 64-bit number that is the same on every machine."""
    state = purpose
    for number in numbers:  # the finaliser of splitmix64, once per number: all 64 bits depend on all earlier numbers
        state = (state + 0x9E3779B97F4A7C15 ^ number) & _MASK
        state = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ state >> 27) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


def permutation(size: int, seed: int, *, epoch: int = 0, purpose: int = ORDER) -> Tensor:
    """Returns the numbers below `size` in an order that (seed, epoch) determines: int64, on the CPU."""
    generator = torch.Generator("cpu").manual_seed(random_key(purpose, seed, epoch))
    return torch.randperm(size, generator=generator, device="cpu")


def seed_generators(number: int) -> None:
    """Seeds the global generators that user code draws from: torch's for the CPU, numpy's and Python's."""
    torch.default_generator.manual_seed(number)  # `torch.manual_seed` would also seed CUDA, which belongs to training
    np.random.seed(number & 0xFFFFFFFF)
    random.seed(number)


@contextmanager
def preserve_generators() -> Iterator[None]:
    """Restores the three global generators on exit, whatever was drawn or seeded inside."""
    states = torch.default_generator.get_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.default_generator.set_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])
