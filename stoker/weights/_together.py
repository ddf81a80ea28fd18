"""Saving a sharded model: rank 0 writes, and asks the others for their parts of one tensor at a time."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

from torch import Tensor

from stoker.distributed import joined
from stoker.errors import PeerFailed
from stoker.weights._sharded import is_sharded, whole_of

Fetch: TypeAlias = Callable[[str], Tensor]  # a whole tensor by its name


def save_together(tensors: Mapping[str, Tensor], write: Callable[[Fetch], Path]) -> Path:
    """Lets rank 0 write, with tensors that are whole when it fetches them; where it fails, all ranks do.

    Every process calls it. Where nothing is sharded it only writes, on whichever does.
    """
    if not any(map(is_sharded, tensors.values())):
        return write(tensors.__getitem__)
    world = joined()
    if not world.is_first:
        while (name := world.told(None)) is not None:
            whole_of(tensors[name])
        path, failed = world.told(None)
        if failed is not None:
            raise PeerFailed(f"rank 0 could not save the model: {failed}")
        return Path(path)

    def fetch(name: str) -> Tensor:
        if is_sharded(tensors[name]):
            world.told(name)
        return whole_of(tensors[name])

    try:
        written = write(fetch)
    except Exception as error:
        world.told(None)
        world.told((None, f"{type(error).__name__}: {error}"))
        raise
    world.told(None)
    world.told((str(written), None))
    return written
