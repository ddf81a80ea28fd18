"""A batch taken apart for mixing, its samples in pairs, and the batch put together again."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stoker.callbacks._context import Context
from stoker.errors import InvalidArgument, WrongType
from stoker.steps import Supervised


class Pairing(NamedTuple):
    """Sample i is mixed with sample `order[i]`, and counts `weight[i]` itself; both are [B]."""

    order: Tensor
    weight: Tensor

    def blend(self, x: Tensor) -> Tensor:
        """Each sample with its partner: weight of its own, the rest of the other's."""
        weight = self.weight.to(x.dtype).reshape(-1, *(1 for _ in x.shape[1:]))
        return x * weight + x[self.order] * (1 - weight)

    def weighed(self, own: Tensor) -> tuple[Tensor, "Pairing"]:
        """What the mixed samples count where samples do, and the pairing in which each target counts as its sample.

        A sample that counts for nothing (padding, say) so lends no target.
        """
        total = self.blend(own)
        share = torch.where(total > 0, self.weight * own / total, torch.ones_like(self.weight))
        return total, Pairing(self.order, share)


class Taken(NamedTuple):
    """The parts of a batch, each by its place or name in it."""

    inputs: dict[Any, Any]
    targets: dict[Any, Any]
    weight: tuple[Any, Tensor] | None
    samples: int
    device: torch.device


def take_apart(ctx: Context, *, who: str) -> Taken:
    """The inputs, targets and sample weights of `ctx.batch`, by the supervised convention."""
    batch, weight = ctx.batch, None
    if isinstance(batch, tuple | list) and len(batch) > 1:
        inputs, targets = dict(enumerate(batch[:-1])), {len(batch) - 1: batch[-1]}
    elif isinstance(batch, Mapping):
        parts = Supervised(ctx.model, None).parts(batch)
        inputs = dict(parts.kwargs)
        weight = None if parts.weight is None else ("weight", parts.weight)
        left = "weight" if weight else None
        targets = {name: value for name, value in batch.items() if name not in inputs and name != left}
    else:
        inputs, targets = {}, {}
    if not targets:
        raise InvalidArgument(
            f"{who} mixes inputs and targets: it needs batches of (inputs…, target), or mappings with a name that "
            f"forward does not take; got {type(batch).__name__}"
        )
    first = _checked([*inputs.values(), *targets.values()], who)
    return Taken(inputs, targets, weight, first.shape[0], first.device)


def replaced(batch: Any, changes: Mapping[Any, Any]) -> Any:
    """The batch with some parts changed, and its structure kept."""
    if isinstance(batch, Mapping):
        return {**batch, **changes}
    parts = [changes.get(place, part) for place, part in enumerate(batch)]
    return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)


def each_tensor(function: Callable[[Tensor], Tensor], part: Any) -> Any:
    """The same structure, with every tensor replaced by the function of it."""
    if isinstance(part, Mapping):
        return {name: each_tensor(function, value) for name, value in part.items()}
    if isinstance(part, tuple | list):
        values = [each_tensor(function, value) for value in part]
        return type(part)(*values) if hasattr(part, "_fields") else type(part)(values)
    return function(part)


def tensors_in(part: Any) -> list[Tensor]:
    """Every tensor of a structure."""
    if isinstance(part, Mapping | tuple | list):
        inside = part.values() if isinstance(part, Mapping) else part
        return [tensor for value in inside for tensor in tensors_in(value)]
    return [part]


def _checked(parts: list[Any], who: str) -> Tensor:
    """The first tensor; everything has to be one, with a row for each sample."""
    found = tensors_in(parts)
    for leaf in found:
        if not isinstance(leaf, Tensor):
            raise WrongType(f"{who} mixes tensors, and this batch holds {type(leaf).__name__}")
    rows = {tensor.shape[:1] for tensor in found}
    if len(rows) > 1 or not next(iter(rows)):
        shapes = ", ".join(str(list(tensor.shape)) for tensor in found)
        raise InvalidArgument(f"{who} needs a row for each sample in every tensor of the batch; got shapes {shapes}")
    return found[0]
