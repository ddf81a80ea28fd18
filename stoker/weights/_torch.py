"""Reads tensors from files that `torch.save` wrote."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stoker.errors import BadFile, InvalidArgument, did_you_mean
from stoker.weights._header import open_reader


def load_torch(path: str | os.PathLike[str], *, key: str | None = None) -> dict[str, Tensor]:
    """Reads the tensors of a `.pt` or `.pth` file, by name and on the CPU; `load` accepts the result.

    >>> import tempfile
    >>> import torch
    >>> from torch import nn
    >>> from stoker.weights import load, load_torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     torch.save({"epoch": 3, "model": nn.Linear(3, 2).state_dict()}, f"{folder}/old.pt")
    ...     load(nn.Linear(3, 2), load_torch(f"{folder}/old.pt", key="model"))
    Linear(in_features=3, out_features=2, bias=True)

    Such a file is a pickle, which can run any code when it is read. This function reads it with `weights_only=True`,
    torch's own reader for tensors, numbers, strings and collections of these, which refuses everything else, such as
    whole models. If a file needs more and you trust its author, read it with `torch.load` and save what you need.
    `key` names the entry that holds the tensors if they are not at the top level. Files of torch >= 1.6 are mapped
    into memory, so leave the file in place while the tensors are in use.
    """
    path = Path(path)
    with open_reader(path, limit=1 << 20) as reader:
        start = reader.read(9)
    if reader.is_compressed or start[8:9] == b"{" or start[:1] == b"{":
        raise BadFile(f"{path} was not written by torch.save; stoker.load reads safetensors, MessagePack and JSON")
    found = _read(path, mmap=start[:4] == b"PK\x03\x04")
    where = str(path)
    if key is not None:
        keys = [str(each) for each in found] if isinstance(found, Mapping) else []
        if not isinstance(found, Mapping) or key not in found:
            contents = f"its keys are {_list(keys)}" if keys else f"it holds a {type(found).__name__}"
            raise InvalidArgument(f"{path} has no key {key!r}; {contents}{did_you_mean(key, keys)}")
        found, where = found[key], f"{path}[{key!r}]"
    if not isinstance(found, Mapping):
        raise InvalidArgument(f"{where} holds a {type(found).__name__}; expected a mapping of names to tensors")
    others = [str(name) for name, each in found.items() if not isinstance(name, str) or not isinstance(each, Tensor)]
    if others:
        nested = [name for name, each in found.items() if isinstance(each, Mapping)]
        hint = f"; choose one with key={nested[0]!r}" if nested and key is None else ""
        raise InvalidArgument(f"{where} does not map names to tensors only: it also holds {_list(others)}{hint}")
    return dict(found)


def _read(path: Path, *, mmap: bool) -> Any:
    try:
        return torch.load(str(path), map_location="cpu", weights_only=True, mmap=mmap)
    except Exception as error:  # a damaged file can raise anything
        if type(error).__name__ != "UnpicklingError":  # by name: no module of stoker imports pickle
            raise BadFile(f"{path} cannot be read by torch.load: {type(error).__name__}: {error}") from error
        raise BadFile(
            f"{path} holds more than tensors, numbers, strings and collections of these, or is damaged; reading it "
            "could run code, so it is refused (weights_only=True). If you trust its author, read it with "
            "torch.load(path, weights_only=False) and save the weights with stoker.save"
        ) from error


def _list(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:10])
    return f"{shown} and {len(names) - 10} more" if len(names) > 10 else shown
