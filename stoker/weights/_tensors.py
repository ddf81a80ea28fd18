"""Tensors by name to an open file and back, in one pass: plain safetensors, without a seal."""

import json
from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from stoker.errors import BadFile, InvalidArgument
from stoker.weights._head import Entry
from stoker.weights._safetensors import Contents, Writable, storage_order, write_header
from stoker.weights._source import Source, raw
from stoker.weights._state import refuse_odd


class Readable(Protocol):
    """What tensors are read from, from front to back."""

    def read(self, count: int, /) -> bytes:
        """At most `count` bytes; none at the end."""
        ...

    def readinto(self, memory: memoryview, /) -> int:
        """Fills some of `memory`, and says how much."""
        ...

    def seek(self, position: int, /) -> object:
        """Goes to where it already is."""
        ...


def check_tensor(name: str, tensor: Tensor) -> None:
    """An error that names a tensor which a file can't hold: a sparse, sharded, quantized or otherwise special one."""
    refuse_odd(name, tensor)
    if type(tensor) not in (Tensor, nn.Parameter):
        raise InvalidArgument(
            f"{name!r} is a {type(tensor).__name__}, a tensor of a kind of its own; files hold plain ones, "
            "so save what it is made of"
        )


def write_tensors(file: Writable, tensors: Mapping[str, Tensor]) -> None:
    """Writes tensors as a safetensors file; one of another device is brought over when its turn comes.

    >>> import io
    >>> file = io.BytesIO()
    >>> write_tensors(file, {"weight": torch.ones(2)})
    >>> size = file.tell()
    >>> file.seek(0)
    0
    >>> read_tensors(file, name="memory", size=size)
    {'weight': tensor([1., 1.])}
    """
    for name, tensor in tensors.items():
        check_tensor(name, tensor)
    entries = {name: Entry(tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}
    pairs = [name for name, entry in entries.items() if entry.dtype == torch.complex128]
    write_header(file, entries, {"format": "pt", **({"complex128": json.dumps(pairs)} if pairs else {})})
    for name in storage_order(entries):
        file.write(raw(tensors[name].detach().cpu().resolve_conj().resolve_neg().contiguous()))


def read_tensors(file: Readable, *, name: str, size: int) -> dict[str, Tensor]:
    """The tensors of a safetensors file of `size` bytes; `name` is what an error calls it."""
    contents = Contents(Source(name, file, compressed=False, size=size, limit=size))  # pyright: ignore[reportArgumentType]
    tensors = dict(contents.tensors(contents.head.tensors))
    for key in _pairs(name, contents.head.metadata.get("complex128", "[]")):
        if key not in tensors or tensors[key].dtype != torch.float64 or tensors[key].shape[-1:] != (2,):
            raise BadFile(f"{name}: it says that {key!r} is complex, but it doesn't hold such pairs of numbers")
        tensors[key] = torch.view_as_complex(tensors[key])
    return {key: tensors[key] for key in contents.head.tensors}


def _pairs(name: str, text: str) -> list[str]:
    try:
        names = json.loads(text)
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        raise BadFile(f"{name}: its list of complex tensors is damaged")
    return names
