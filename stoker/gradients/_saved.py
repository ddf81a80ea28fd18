"""A window of gradients as tensors and plain values, and whether such a state fits a model."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from stoker.distributed import place_like
from stoker.errors import StateMismatch, did_you_mean

PARTS = ("reduce", "count", "weight", "weight_on_host", "parameters", "sums")


def apart(total: Tensor) -> dict[str, Any]:
    """A sum of gradients; not a copy. A sparse one keeps its places as they came, so that they add up in that order."""
    if total.layout == torch.strided:
        # Outermost dimension first: a norm adds up in the order of memory, and its last bit depends on it.
        return {"values": total, "order": sorted(range(total.ndim), key=total.stride, reverse=True)}
    if total.layout != torch.sparse_coo:
        raise StateMismatch(f"a gradient of the layout {total.layout} is being added up, and can't be saved")
    return {"values": total._values(), "indices": total._indices(), "coalesced": total.is_coalesced()}


def together(saved: Mapping[str, Any], parameter: Tensor) -> Tensor:
    """The undoing of `apart`, as a copy on the parameter's device; it raises where that is no gradient of it."""
    values: Tensor = place_like(saved["values"].detach(), parameter).to(parameter.device)
    if "order" not in saved:
        parts = saved["indices"].to(parameter.device, copy=True), values.clone(), parameter.shape
        return torch.sparse_coo_tensor(*parts, is_coalesced=bool(saved["coalesced"]), check_invariants=True)
    if values.shape != parameter.shape:
        raise ValueError(f"shape {list(values.shape)} in the state, {list(parameter.shape)} in the model")
    outermost_first = values.permute(saved["order"]).clone(memory_format=torch.contiguous_format)
    return outermost_first.permute([saved["order"].index(place) for place in range(values.ndim)])


def sums_of(state: Mapping[str, Any], own: Mapping[str, Tensor], reduce: str) -> dict[str, Tensor]:
    """The sums of a window's state, by parameter; a `StateMismatch` that lists everything that doesn't fit."""
    lines: list[str] = []
    sums: dict[str, Tensor] = {}
    if not isinstance(state, Mapping) or set(state) != set(PARTS) or not _plausible(state):
        lines.append(f"it is no state of an Accumulator, which has {', '.join(PARTS)}")
    else:
        if state["reduce"] != reduce:
            lines.append(f"its reduce is {state['reduce']!r}, here it is {reduce!r}")
        unknown = [name for name in dict.fromkeys([*state["parameters"], *state["sums"]]) if name not in own]
        lines += [f"{name}: not in the model{did_you_mean(name, own)}" for name in unknown]
        for name, saved in state["sums"].items():
            try:
                if name in own:
                    sums[name] = together(saved, own[name])
            except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
                lines.append(f"{name}: {error}")
    if lines:
        raise StateMismatch("\n  ".join(["this state of an Accumulator doesn't fit here", *lines]))
    return sums


def _plausible(state: Mapping[str, Any]) -> bool:
    weight = state["weight"]
    number = weight.numel() == 1 if isinstance(weight, Tensor) else isinstance(weight, int | float)
    counted = isinstance(state["count"], int) and state["count"] >= 0
    return number and counted and isinstance(state["parameters"], list) and isinstance(state["sums"], Mapping)
