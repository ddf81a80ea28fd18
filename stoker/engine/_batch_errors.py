"""Errors that a batch causes name the batch, and say what to do if torch does not."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from stoker._tree import tensors_in
from stoker.data import RowSelection
from stoker.errors import NotFinite, PeerFailed

_MAX_PARTS = 12  # of a batch, in a description

# What torch says about data that do not match the model, and what to do about it.
_ADVICE = {
    r"shapes cannot be multiplied|size mismatch|expected input.*channels|normalized_shape": (
        "the inputs have another width than the model expects"
    ),
    r"must have the same dtype|expected scalar type|should be the same|not implemented for 'Long'": (
        "inputs and weights have different types: convert the data (x.float()), or the model (model.double())"
    ),
    r"Target -?\d+ is out of bounds": (
        "the targets are classes from 0 to one less than the number of outputs: give the model more outputs, or change "
        "the numbers of the classes"
    ),
    r"expected target dtype to be Long|target.*Long|expected scalar type Long": "classes are whole numbers: y.long()",
    r"two bool tensors|can't be cast to the desired output type Long": "this loss compares floats: y.float()",
    r"does not have a deterministic implementation": (
        "Learner(deterministic=True) allows no operation without deterministic kernels: replace it, or leave "
        "deterministic out"
    ),
    r"torch\.utils\.checkpoint: ": (
        "a module of recompute= did something else in its second forward pass: it changes an object that it is given, "
        "such as a cache of keys and values (create the model with use_cache=False in its config)"
    ),
    r"out of memory": (
        "it does not fit into memory: choose a smaller batch_size, or fit(micro_batch='auto'), which splits batches"
    ),
    r"index out of range in self": "an embedding got a number that is not below its num_embeddings",
}


@contextmanager
def name_batch(place: str, batch: Any) -> Iterator[None]:
    """Adds a note to an exception: which batch it was, what it holds, and what to do.

    >>> try:
    ...     with name_batch("batch 3 of 'train'", torch.zeros(2, 5)):
    ...         torch.nn.Linear(3, 1)(torch.zeros(2, 5))
    ... except RuntimeError as error:
    ...     print(error.__notes__[0])
    in batch 3 of 'train', float32 [2, 5]: the inputs have another width than the model expects
    """
    try:
        yield
    except Exception as error:
        add_batch_note(error, place, batch)
        raise


def add_batch_note(error: Exception, place: str, batch: Any) -> None:
    """Adds the note of `name_batch` to an exception, unless it says itself where it comes from."""
    if isinstance(error, NotFinite | PeerFailed):
        return
    advice = next((text for pattern, text in _ADVICE.items() if re.search(pattern, str(error))), "")
    error.add_note(f"in {place}, {describe_batch(batch)}{f': {advice}' if advice else ''}")


def describe_batch(value: Any) -> str:
    """The types and shapes of a batch.

    >>> describe_batch({"x": torch.zeros(2, 3), "y": (torch.arange(2), "text")})
    "{'x': float32 [2, 3], 'y': (int64 [2] from 0 to 1, str)}"
    """
    if isinstance(value, RowSelection):
        try:
            return describe_batch(value.gather())
        except RuntimeError:  # memory is full, or the GPU has failed
            return f"{len(value)} rows"
    if isinstance(value, Tensor):
        kind = f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
        is_number = not (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool)
        if is_number and value.numel() and value.device.type == "cpu":
            return f"{kind} from {value.min().item()} to {value.max().item()}"
        return kind
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name!r}: {describe_batch(value[name])}' for name in list(value)[:_MAX_PARTS])}}}"
    if isinstance(value, tuple | list) and tensors_in(value):
        return f"({', '.join(map(describe_batch, value[:_MAX_PARTS]))})"
    return type(value).__name__
