"""Tensors out of files that `torch.save` wrote."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stoker.errors import BadFile, InvalidArgument, did_you_mean
from stoker.weights._source import open_source


def load_torch(path: str | os.PathLike[str], *, key: str | None = None) -> dict[str, Tensor]:
    """Reads the tensors of a `.pt` or `.pth` file, on the CPU, by name; `load` takes what it gives.

    >>> import tempfile
    >>> import torch
    >>> from torch import nn
    >>> from stoker.weights import load, load_torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     torch.save({"epoch": 3, "model": nn.Linear(3, 2).state_dict()}, f"{folder}/old.pt")
    ...     load(nn.Linear(3, 2), load_torch(f"{folder}/old.pt", key="model"))
    Linear(in_features=3, out_features=2, bias=True)

    Such a file is a pickle, which can run any code when it is read. This reads it with torch's `weights_only=True`:
    a reader of torch's own that knows tensors, numbers, strings and collections of them, and refuses everything else,
    whole models among it. Open a file that needs more only if you trust who made it, with `torch.load` itself, and
    save what you need of it anew. Nothing is unwrapped by itself: `key` names the entry that holds the tensors where
    they are not at the top. The file is mapped, not read, where it can be (torch >= 1.6 wrote it); so leave it in
    place while the tensors are in use.
    """
    _refuse_others(Path(path))
    found = _read(Path(path))
    if key is not None:
        keys = [str(each) for each in found] if isinstance(found, Mapping) else []
        if not isinstance(found, Mapping) or key not in found:
            there = f"its keys are {_some(keys)}" if keys else f"it holds a {type(found).__name__}"
            raise InvalidArgument(f"{path} has no key {key!r}; {there}{did_you_mean(key, keys)}")
        found = found[key]
    return _tensors(str(path) if key is None else f"{path}[{key!r}]", found, picked=key is not None)


def _refuse_others(path: Path) -> None:
    with open_source(path, limit=1 << 20) as source:
        start = source.read(9)
    if source.compressed or start[8:9] == b"{" or start[:1] == b"{":
        raise BadFile(f"{path} is no file of torch.save; stoker.load reads safetensors, MessagePack and JSON")
    if not start:
        raise BadFile(f"{path} is empty")


def _read(path: Path) -> Any:
    with path.open("rb") as file:
        zipped = file.read(4) == b"PK\x03\x04"
    try:
        return torch.load(str(path), map_location="cpu", weights_only=True, mmap=zipped)
    except Exception as error:  # whatever a damaged file makes torch trip over
        if type(error).__name__ != "UnpicklingError":  # by name: no file of stoker imports pickle
            raise BadFile(f"{path} can't be read as a file of torch.save: {type(error).__name__}: {error}") from error
        raise BadFile(
            f"{path} holds more than tensors, numbers, strings and collections of them, or is damaged; reading it "
            "could run code, so it is refused (weights_only=True). If you trust who made it, read it with "
            "torch.load(path, weights_only=False) and stoker.save the weights anew"
        ) from error


def _tensors(where: str, found: Any, *, picked: bool) -> dict[str, Tensor]:
    if not isinstance(found, Mapping):
        raise InvalidArgument(f"{where} holds a {type(found).__name__}; expected a mapping of names to tensors")
    odd = [str(name) for name, each in found.items() if not isinstance(name, str) or not isinstance(each, Tensor)]
    if not odd:
        return dict(found)
    nested = [name for name, each in found.items() if isinstance(each, Mapping)]
    advice = f"; pick one with key={nested[0]!r}" if nested and not picked else ""
    raise InvalidArgument(f"{where} is no mapping of names to tensors only: there are also {_some(odd)}{advice}")


def _some(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:10])
    return f"{shown} and {len(names) - 10} more" if len(names) > 10 else shown
