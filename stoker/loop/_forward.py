"""Steps of the user's as forwards of a sharded model: FSDP brings its shards together for what it takes for one."""

from collections.abc import Callable
from types import MethodType
from typing import Any

from torch import Tensor, nn

_NAME = "_as_forward"  # of the method that FSDP is told of


def as_forward(model: nn.Module, call: Callable[..., Any], *args: Any) -> Any:
    """What `call(*args)` gives; where the model is in shards, they are together meanwhile.

    >>> as_forward(nn.Linear(1, 1), max, 1, 2)
    2
    """
    if not hasattr(model, "unshard"):  # torch's FSDPModule has it
        return call(*args)
    if not hasattr(model, _NAME):
        from torch.distributed.fsdp import register_fsdp_forward_method

        setattr(model, _NAME, MethodType(_called, model))
        register_fsdp_forward_method(model, _NAME)
    kept: list[Any] = []
    getattr(model, _NAME)(lambda *given: _loss_of(call, given, kept), *args)
    if isinstance(kept[0], StopIteration):
        raise kept[0]
    return kept[0]


def _called(model: nn.Module, call: Callable[..., Tensor | None], *args: Any) -> Tensor | None:
    return call(*args)


def _loss_of(call: Callable[..., Any], args: tuple[Any, ...], kept: list[Any]) -> Tensor | None:
    """Keeps the answer, and gives its loss alone: FSDP waits for the backward pass at the tensors that it is given."""
    try:
        kept.append(call(*args))
    except StopIteration as end:  # of a step that has yielded its last objective: FSDP is to see the end of it as well
        kept.append(end)
    return kept[0] if isinstance(kept[0], Tensor) else getattr(kept[0], "loss", None)
