"""What the user gave, as what it has to be."""

from typing import Any

import torch

from stoker.errors import InvalidArgument, WrongType


def whole(name: str, value: Any, *, least: int) -> int:
    """A whole number of at least so much.

    >>> whole("batch_size", 4, least=1)
    4
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise WrongType(f"{name} has to be a whole number; got {value!r}")
    if value < least:
        raise InvalidArgument(f"{name} has to be at least {least}; got {value}")
    return int(value)


def device_or_none(device: torch.device | str | None) -> torch.device | None:
    """A device, or None where none was given."""
    try:
        return None if device is None else torch.device(device)
    except RuntimeError as error:
        raise InvalidArgument(f"device={device!r} is no device that torch knows: {error}") from None
