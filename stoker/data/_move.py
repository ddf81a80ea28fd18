"""A batch to another device."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from stoker.data._tree import is_namedtuple


def moved(batch: Any, device: torch.device) -> Any:
    """The batch with its tensors on `device`: in tuples, lists, mappings and dataclasses, and whatever has a `.to`.

    >>> moved({"x": torch.zeros(2), "names": ["a", "b"]}, torch.device("cpu"))
    {'x': tensor([0., 0.]), 'names': ['a', 'b']}
    """
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=device.type != "cpu")  # to the host it is waited for: it is read at once
    if isinstance(batch, (str, bytes)):
        return batch
    if hasattr(batch, "to") and not isinstance(batch, type):
        return batch.to(device)
    if isinstance(batch, (tuple, list)):
        parts = [moved(part, device) for part in batch]
        return type(batch)(*parts) if is_namedtuple(batch) else type(batch)(parts)
    if isinstance(batch, Mapping):
        return {name: moved(part, device) for name, part in batch.items()}
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        names = [field.name for field in dataclasses.fields(batch) if field.init]
        return dataclasses.replace(batch, **{name: moved(getattr(batch, name), device) for name in names})
    return batch
