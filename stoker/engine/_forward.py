"""Calls a method of a sharded model as if it was its forward pass."""

from collections.abc import Callable
from types import MethodType
from typing import Any

from torch import Tensor, nn

_METHOD = "_stoker_call"  # registered with FSDP as a forward method


def call_as_forward(model: nn.Module, call: Callable[..., Any], *args: Any) -> Any:
    """Returns `call(*args)`; FSDP gathers the shards of the model meanwhile, as in a forward pass.

    >>> call_as_forward(nn.Linear(1, 1), max, 1, 2)
    2
    """
    if not hasattr(type(model), "unshard"):  # only torch's FSDPModule has it
        return call(*args)
    if not hasattr(model, _METHOD):
        from torch.distributed.fsdp import register_fsdp_forward_method

        setattr(model, _METHOD, MethodType(_call, model))
        register_fsdp_forward_method(model, _METHOD)
    results: list[Any] = []
    getattr(model, _METHOD)(lambda *given: _loss_of_call(call, given, results), *args)
    if isinstance(results[0], StopIteration):
        raise results[0]
    return results[0]


def _call(model: nn.Module, call: Callable[..., Tensor | None], *args: Any) -> Tensor | None:
    return call(*args)


def _loss_of_call(call: Callable[..., Any], args: tuple[Any, ...], results: list[Any]) -> Tensor | None:
    """Stores the result and returns its loss: FSDP hooks the backward pass to the tensors that it is given."""
    try:
        results.append(call(*args))
    except StopIteration as end:  # of a step that has yielded its last objective: FSDP has to see the end too
        results.append(end)
    return results[0] if isinstance(results[0], Tensor) else getattr(results[0], "loss", None)
