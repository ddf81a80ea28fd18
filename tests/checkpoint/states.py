"""States, places and comparisons for the tests of checkpoints."""

import struct
import tempfile
from collections import deque
from unittest.mock import patch

import torch
from torch import Tensor

from stoker.checkpoint import Moment, Place, Saved, Store


def same(a, b) -> bool:
    """Whether two states are equal in type, order and every bit."""
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and a.shape == b.shape and bits(a) == bits(b)
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, dict):
        return same(list(a), list(b)) and same(list(a.values()), list(b.values()))
    if isinstance(a, list | tuple | deque):
        lengths = len(a) == len(b) and getattr(a, "maxlen", None) == getattr(b, "maxlen", None)
        return lengths and all(map(same, a, b))
    return a == b


def bits(tensor: Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def write_and_read(state):
    """The state after it was saved and read again."""
    with tempfile.TemporaryDirectory() as folder, patch("os.fsync"):  # a sync would only take time
        store = Store(folder)
        return store.read(store.write(state, place(1)))


def place(update, **fields):
    return Place(**{"epoch": 1, "batch": update, "update": update, **fields})


def moment(update, *, loss=None, **fields):
    values = {} if loss is None else {"valid/loss": loss}
    return Moment(**{"epoch": 1, "batch": update, "update": update, "values": values, **fields})


def saved(update, *, suffix="", loss=None, **fields):
    values = {} if loss is None else {"valid/loss": loss}
    defaults = {"epoch": 1, "batch": update, "run": "5f0c", "time": 0.0, "bytes": 1, "values": values}
    return Saved(update=update, name=f"{update:08}{suffix}", **{**defaults, **fields})
