"""Everything that a training has come to as one short text; of two that differ in a bit, it differs."""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor

import stoker
from stoker.checkpoint import Found, Store
from stoker.record import Run

CLOCKS = ("seconds", "epoch_seconds", "events")  # of the state's "loop": no two runs are of the same length in time


def checkpoints_of(folder: Path) -> Store:
    """The checkpoints of a run."""
    return Store(folder / "checkpoints", run=Run.open(folder).id)


def digest(fitted: stoker.Fitted, folder: Path) -> str:
    """The model as it was given back, its history and its best, and the whole state of the last checkpoint."""
    found = checkpoints_of(folder).newest()
    numbers = {name: fitted.record.all(name) for name in fitted.record.columns}
    whole = [fitted.model.state_dict(), numbers, fitted.best, fitted.stopped, fitted.epochs, _timeless(found)]
    found_bytes = hashlib.sha256()
    for piece in _pieces(whole):
        found_bytes.update(piece)
    return found_bytes.hexdigest()


def _timeless(found: Found) -> dict[str, Any]:
    loop = {name: value for name, value in found.state["loop"].items() if name not in CLOCKS}
    return {**found.state, "loop": loop}


def _pieces(value: Any) -> Iterator[bytes]:
    """A tree of tensors and plain values, as bytes that say where each part of it begins."""
    if isinstance(value, Tensor):
        whole = value.full_tensor() if isinstance(value, DTensor) else value
        yield f"{whole.dtype} {list(whole.shape)} ".encode()
        yield whole.detach().contiguous().numpy().tobytes()
    elif isinstance(value, Mapping):
        yield f"mapping of {len(value)} ".encode()
        for key, item in value.items():
            yield repr(key).encode()
            yield from _pieces(item)
    elif isinstance(value, list | tuple):
        yield f"list of {len(value)} ".encode()
        for item in value:
            yield from _pieces(item)
    else:
        yield repr(value).encode()
