"""Whether all ranks are at the same training: where they are not, they would wait for each other for ever."""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import numpy
import torch
from torch import Tensor

from stoker.data import Loader
from stoker.distributed import World
from stoker.errors import InvalidArgument
from stoker.engine import Fit, length_of, seeded
from stoker.learner._spec import Spec
from stoker.learner._wish import Wish

_OWN = ("structure", "threads")  # what may differ: a description may name a device, say
_LONGEST = 200  # letters of a value in an error


def check_same(world: World, said: Callable[[], Mapping[str, Any]]) -> None:
    """Refuses, on every rank, where what this one says is not what all say; alone nothing is asked."""
    if world.size == 1:
        return
    own = {name: str(value) for name, value in said().items()}
    for rank, theirs in enumerate(world.gathered(own)):
        names = [name for name in {**own, **theirs} if own.get(name) != theirs.get(name)]
        if names:
            lines = [f"{name}: {_short(theirs.get(name))} there, {_short(own.get(name))} here" for name in names]
            raise InvalidArgument(
                "\n  ".join([f"rank {rank} is at another training than rank {world.rank}", *lines])
                + "\nEvery process runs the same script on the same data; stoker gives each its share of it"
            )


def wished(spec: Spec, wish: Wish) -> dict[str, Any]:
    """What the ranks have to agree on before anything is made: what they do together follows from it."""
    names = ("run", "epochs", "updates", "minutes", "validate_every", "keep")
    saving = None if wish.checkpoints is None else wish.checkpoints.replace(deadline=None)  # each rank has its clock
    said = {name: getattr(wish, name) for name in names} | {"resume": wish.resumes, "checkpoint": saving}
    said |= {"valid": wish.valid is not None, "seed": spec.seed, "ema": spec.ema}
    parallel = {each.name: getattr(spec.parallel, each.name) for each in fields(spec.parallel) if each.name != "mesh"}
    return said | {f"parallel.{name}": value for name, value in parallel.items()}


def trained(fit: Fit) -> dict[str, Any]:
    """What makes a fit this one: all that a run that goes on is compared by, and a look at the data."""
    known = {**fit.state.identity["fixed"], **fit.state.identity["free"], **fit.state.identity["limits"]}
    sets: dict[str, Loader] = {"train": fit.train, **fit.valid}
    looks = {f"the samples of {name}": look for name, each in sets.items() if (look := looked_at(each)) is not None}
    return {name: value for name, value in known.items() if name not in _OWN} | looks


def looked_at(loader: Loader) -> str | None:
    """A checksum of the first, the middle and the last sample, before any transform.

    None where that says nothing: of a stream or a DataLoader, where workers read the samples and this process need not
    be able to, and where they are others each time.
    """
    if loader.batch_size is None or loader.workers or length_of(loader) is None:
        return None
    last, single = loader.samples - 1, Loader(loader.source, batch_size=1, batcher=loader.batcher)

    def read() -> int:
        with seeded(0):  # of data that draws, the same on every rank
            samples = [next(iter(single.at(epoch=0, batch=place).raw())) for place in sorted({0, last // 2, last})]
        return zlib.crc32(repr([_summed(sample) for sample in samples]).encode())

    try:
        once, again = read(), read()
    except Exception:  # the training is going to tell, with the sample that it was
        return None
    return f"{once:08x}" if once == again else None


def _summed(value: Any) -> Any:
    """A sample in plain values; of what is neither a tensor nor plain, only which kind it is."""
    if isinstance(value, Tensor):
        flat = value.detach().cpu().contiguous().flatten().view(torch.uint8)  # NumPy has no bfloat16
        return str(value.dtype), list(value.shape), zlib.crc32(flat.numpy().tobytes())
    if isinstance(value, numpy.ndarray):
        return str(value.dtype), value.shape, zlib.crc32(numpy.ascontiguousarray(value).tobytes())
    if isinstance(value, Mapping):
        return [(str(name), _summed(each)) for name, each in value.items()]
    if isinstance(value, tuple | list):
        return [_summed(each) for each in value]
    return value if isinstance(value, bool | int | float | str | bytes | None) else type(value).__name__


def _short(text: str | None) -> str:
    return "nothing" if text is None else text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
