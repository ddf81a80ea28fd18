"""`evaluating`: the one way in which a fit evaluates. The model itself is in eval mode, and afterwards as it was."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

from torch import Tensor, nn

from stoker._dispatch import run_compiled_eagerly
from stoker._select import has_compiled_modules, named_parameters
from stoker.checkpoint import random_state, set_random_state
from stoker.distributed import reshard, to_local
from stoker.engine._buffers import BufferValues
from stoker.engine._signals import delay_interrupt
from stoker.steps import unwrap


@contextmanager
def evaluating(
    model: nn.Module, weights: Mapping[str, Tensor] | None = None, *, loss: Any = None
) -> Iterator[nn.Module]:
    """Switches the model to eval mode for the length of the block, with other weights if some are given.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(2, 1), nn.Dropout(0.5))
    >>> with evaluating(model, {"0.weight": torch.zeros(1, 2)}) as evaluated:
    ...     evaluated is model, model[1].training, model[0].weight.tolist()
    (True, False, [[0.0, 0.0]])
    >>> model[1].training, model[0].weight.any().item()
    (True, True)

    Afterwards every module's mode, the buffers, the random generators and the weights are as before, also after an
    exception or Ctrl-C. Modes are switched by `eval()` and `train()` of the model, which it may override.

    Yields the user's module inside of DDP and `torch.compile`: one process alone may call it, and modules that are
    compiled run eagerly, so that eval mode compiles no second program. A `loss` that is a module is treated in the same
    way; its parameters are called `loss.*` in `weights`. Weights are copied into the model's own memory, whose
    addresses and version counters stay: CUDA graphs and resume points refer to them.
    """
    evaluated = unwrap(model)
    roots = [evaluated, loss] if isinstance(loss, nn.Module) else [evaluated]
    reshard(evaluated)  # whole weights would hide what is written to the shards
    own = _local_tensors(roots, weights or {})
    weights_before = [tensor.clone() for tensor in own.values()]
    root_modes = [(root, root.training) for root in roots]
    modes = [(module, module.training) for root in roots for module in root.modules()]
    buffers, generators = BufferValues(*roots), random_state()
    is_compiled = any(map(has_compiled_modules, roots))
    try:
        with run_compiled_eagerly() if is_compiled else nullcontext():
            for name, tensor in own.items():
                tensor.copy_(to_local((weights or {})[name]))
            for root in roots:
                root.eval()
            yield evaluated
    finally:
        with delay_interrupt():
            try:
                for root, mode in root_modes:
                    root.train(mode)
            finally:
                for module, mode in modes:
                    module.training = mode
                reshard(evaluated)  # without a backward pass nothing else does
                for tensor, value in zip(own.values(), weights_before, strict=True):
                    tensor.copy_(value)
                buffers.restore()
                set_random_state(generators)


def _local_tensors(roots: list[nn.Module], names: Mapping[str, Any]) -> dict[str, Tensor]:
    """The memory of these parameters on this rank, as tensors with a version counter of their own."""
    if not names:
        return {}
    found = {f"loss.{name}": each for loss in roots[1:] for name, each in named_parameters(loss).items()}
    found |= named_parameters(roots[0])
    return {name: to_local(found[name]).data for name in names}
