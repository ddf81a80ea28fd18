"""Predictions for a data set: in its order, on the CPU, in the structure that the model gives."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from stoker.data import moved
from stoker.errors import BadData
from stoker.loop._precision import forward_in
from stoker.step import Supervised, valid


def predict(
    model: nn.Module, batches: Iterable[Any], *, supervised: Supervised, device: torch.device, precision: str = "fp32"
) -> Any:
    """What the model says to every sample, joined along the first dimension; of its `predict_step` where it has one."""
    view, found = valid(model), []
    with torch.no_grad(), forward_in(precision, device):
        for batch in batches:
            batch = moved(batch, device)
            if hasattr(view, "predict_step"):
                answer = view.predict_step(batch)  # pyright: ignore[reportCallIssue]
            else:
                parts = supervised.inputs(batch)
                answer = view(*parts.args, **parts.kwargs)
            found.append(_whole(moved(answer, torch.device("cpu"))))
    if not found:
        raise BadData("there is nothing to predict: the data gave no batches")
    return _joined(found)


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
