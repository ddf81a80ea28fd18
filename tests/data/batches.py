"""Sources, comparing batches, and the random state around them."""

import random
from dataclasses import dataclass, fields, is_dataclass

import numpy as np
import torch
from torch.utils.data import IterableDataset

from stoker.data import Loader


class Letters(IterableDataset):
    """A stream of seven samples."""

    def __iter__(self):
        return iter("abcdefg")


@dataclass
class Batch:
    images: torch.Tensor
    targets: torch.Tensor


def as_batch(samples):
    """A `batcher` of samples that begin with an image and a class."""
    return Batch(torch.stack([x for x, *_ in samples]), torch.tensor([int(y) for _, y, *_ in samples]))


def is_in_memory(source):
    return Loader(source, batch_size=1).nbytes is not None


def plain(value):
    """A batch as lists and numbers, which compare exactly."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if is_dataclass(value):
        return [plain(getattr(value, field.name)) for field in fields(value)]
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, tuple | list) else value


def tensors(batch):
    """The tensors of a batch, in order."""
    if isinstance(batch, torch.Tensor):
        return [batch]
    return [tensor for part in (batch.values() if isinstance(batch, dict) else batch) for tensor in tensors(part)]


def same(first, second):
    """Whether two batches are equal in structure, values and memory layout."""
    assert type(first) is type(second)
    pairs = zip(tensors(first), tensors(second), strict=True)
    return all(torch.equal(a, b) and (a.dtype, a.stride()) == (b.dtype, b.stride()) for a, b in pairs)


def random_state():
    """The state of the three global generators, as values that compare."""
    kind, words, *rest = np.random.get_state()
    return torch.get_rng_state().tolist(), (kind, words.tolist(), rest), random.getstate()


def set_random_state(state):
    torch.set_rng_state(torch.tensor(state[0], dtype=torch.uint8))
    kind, words, (place, has_gauss, gauss) = state[1]
    np.random.set_state((kind, np.array(words, dtype=np.uint32), place, has_gauss, gauss))
    random.setstate(state[2])
