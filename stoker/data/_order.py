"""Where order comes from: permutations and random keys are pure functions of (seed, epoch, index)."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stoker.errors import WrongType

# What a key is for, so that no two uses ever share a stream of random numbers.
ORDER, SAMPLE, BATCH, STREAM, SPLIT = range(1, 6)

_MASK = 2**64 - 1


def key(purpose: int, *numbers: int) -> int:
    """A 64-bit number that is well mixed out of its arguments, and the same on every machine.

    >>> len({key(ORDER, 0, 1), key(ORDER, 0, 1), key(ORDER, 1, 0), key(SAMPLE, 0, 1)})
    3
    """
    state = purpose
    for number in numbers:  # the finaliser of splitmix64, once for each number: all 64 bits depend on all before
        state = (state + 0x9E3779B97F4A7C15 ^ number) & _MASK
        state = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ state >> 27) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


def permutation(size: int, seed: int, *, epoch: int = 0, purpose: int = ORDER) -> Tensor:
    """The numbers below `size` in an order keyed by (seed, epoch): int64, on the CPU, whatever the device.

    >>> permutation(5, 0).tolist() == permutation(5, 0).tolist(), sorted(permutation(5, 0, epoch=1).tolist())
    (True, [0, 1, 2, 3, 4])
    """
    generator = torch.Generator("cpu").manual_seed(key(purpose, seed, epoch))
    return torch.randperm(size, generator=generator, device="cpu")


def seed_everything(number: int) -> None:
    """Seeds the generators that user code draws from: torch's for the CPU, numpy's global one, and Python's."""
    torch.default_generator.manual_seed(number)  # `torch.manual_seed` would seed CUDA's too, which training owns
    np.random.seed(number & 0xFFFFFFFF)
    random.seed(number)


@contextmanager
def own_random_numbers() -> Iterator[None]:
    """Whatever is drawn or seeded inside, the three generators are afterwards as they were before."""
    kept = torch.default_generator.get_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.default_generator.set_state(kept[0])
        np.random.set_state(kept[1])
        random.setstate(kept[2])


def seed_of(name: str, value: Any) -> int:
    """A seed that the user gave: a whole number, and not `True`, which looks like one."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise WrongType(f"{name} takes a seed, which is a whole number, as in {name}=0; got {value!r}")
    return int(value.__index__())
