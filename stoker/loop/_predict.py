"""Predictions for a data set: in its order, on the CPU, in the structure that the model gives."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from stoker.data import PaddingBatch, move_batch
from stoker.distributed import World
from stoker.errors import BadData
from stoker.loop._evaluate import viewed
from stoker.loop._forward import as_forward
from stoker.loop._precision import forward_in
from stoker.steps import Supervised

_ALONE = World()


def predict(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    supervised: Supervised,
    device: torch.device,
    precision: str = "fp32",
    world: World = _ALONE,
) -> Any:
    """What the model says to every sample, joined along the first dimension; of its `predict_step` where it has one.

    Of all ranks' batches, on every rank.
    """
    found, last = list[Any](), None
    with viewed(model) as view, torch.no_grad(), forward_in(precision, device):
        for batch in batches:
            own = move_batch(batch.batch if isinstance(batch, PaddingBatch) else batch, device)
            if hasattr(view, "predict_step"):
                answer = as_forward(view, view.predict_step, own)  # pyright: ignore[reportArgumentType]
            else:
                parts = supervised.inputs(own)
                answer = view(*parts.args, **parts.kwargs)
            last = _whole(move_batch(answer, torch.device("cpu")))
            found.append(None if isinstance(batch, PaddingBatch) else last)
    if world.size > 1:
        found = _of_all(found, last, world)
    if not found:
        raise BadData("there is nothing to predict: the data gave no batches")
    return _joined(found)


def _of_all(found: list[Any], like: Any, world: World) -> list[Any]:
    """The answers of every rank: batch by batch, and in each in the order of the ranks."""
    parts = [part for row in zip(*world.all_gather(found), strict=True) for part in row if part is not None]
    return [_as(like, part) for part in parts]


def _as(like: Any, value: Any) -> Any:
    """What came from another rank, in the named tuples that the model gives."""
    if isinstance(like, Mapping):
        return {name: _as(like[name], part) for name, part in value.items()}
    if isinstance(like, tuple) and hasattr(like, "_fields"):
        return type(like)(*map(_as, like, value))
    if isinstance(like, tuple | list) and any(isinstance(each, Mapping | tuple | list) for each in like):
        return type(like)(map(_as, like, value))
    return value


def _whole(answer: Any) -> Any:
    """In 32 bits where autocast gave 16: the precision of a fit is no matter of who reads its predictions."""
    if isinstance(answer, Tensor):
        return answer.float() if answer.dtype in (torch.float16, torch.bfloat16) else answer
    if isinstance(answer, Mapping):
        return {name: _whole(part) for name, part in answer.items()}
    if isinstance(answer, tuple | list):
        parts = [_whole(part) for part in answer]
        return type(answer)(*parts) if hasattr(answer, "_fields") else type(answer)(parts)
    return answer


def _joined(parts: list[Any]) -> Any:
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(parts) if first.dim() else torch.stack(parts)
    if isinstance(first, Mapping):
        return {name: _joined([part[name] for part in parts]) for name in first}
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(_joined(list(column)) for column in zip(*parts, strict=True)))
    if isinstance(first, tuple | list) and any(isinstance(each, Tensor | Mapping | tuple | list) for each in first):
        return type(first)(_joined(list(column)) for column in zip(*parts, strict=True))
    # What holds no tensors holds the samples' own values: texts, say.
    return [each for part in parts for each in (part if isinstance(part, tuple | list) else [part])]
