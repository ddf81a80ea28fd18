"""A batch to another device."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from stoker.data._tree import is_namedtuple


def moved(batch: Any, device: torch.device) -> Any:
    """The batch with its tensors on `device`: in tuples, lists, mappings and dataclasses, and whatever has a `.to`.

    >>> moved({"x": torch.zeros(2), "names": ["a", "b"]}, torch.device("cpu"))
    {'x': tensor([0., 0.]), 'names': ['a', 'b']}
    """

    def move(part: Any) -> Any:
        if isinstance(part, Tensor):  # to the host it is waited for: it is read at once
            return part.to(device, non_blocking=device.type != "cpu")
        return part.to(device) if hasattr(part, "to") and not isinstance(part, type) else part

    return map_batch(move, batch)


def map_batch(function: Callable[[Any], Any], batch: Any) -> Any:
    """The same tuples, lists, mappings and dataclasses, with `function` of what is in them and has no `.to` itself."""
    if isinstance(batch, (Tensor, str, bytes)) or hasattr(batch, "to"):
        return function(batch)
    if isinstance(batch, (tuple, list)):
        parts = [map_batch(function, part) for part in batch]
        return type(batch)(*parts) if is_namedtuple(batch) else type(batch)(parts)
    if isinstance(batch, Mapping):
        return {name: map_batch(function, part) for name, part in batch.items()}
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        names = [field.name for field in dataclasses.fields(batch) if field.init]
        return dataclasses.replace(batch, **{name: map_batch(function, getattr(batch, name)) for name in names})
    return function(batch)
