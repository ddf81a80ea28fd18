"""Undoing a batch that did not fit into the device's memory, so that it can be run again in smaller parts."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from stoker.checkpoint import random_state, set_random_state
from stoker.engine._buffers import BufferValues
from stoker.engine._state import TrainState

_MESSAGES = ("STATUS_ALLOC_FAILED", "MPS backend out of memory", "DefaultCPUAllocator: can't allocate memory")


class BatchTooLarge(Exception):
    """Memory ran out before the gradients of a batch were used. The state is as before the batch."""


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether memory ran out; libraries and other devices than GPUs raise a plain `RuntimeError` for it."""
    return isinstance(error, torch.OutOfMemoryError) or any(text in str(error) for text in _MESSAGES)


def free_cached_memory(device: torch.device) -> bool:
    """Returns unused memory to a GPU; False, since that alone makes room for no larger batch."""
    if device.type == "cuda":
        gc.collect()  # an exception may be part of a cycle, and so hold tensors
        torch.cuda.empty_cache()
    return False


@contextmanager
def undo_if_out_of_memory(state: TrainState) -> Iterator[None]:
    """Raises `BatchTooLarge` if memory runs out, and restores what a forward and backward pass may change.

    That is: attributes and buffers of the modules, the random generators, and the totals (which a compiled program
    writes too). What a module keeps elsewhere, or writes in place to a tensor that is not a buffer, is not restored.
    """
    modules = [*state.model.modules(), *(() if state.loss is None else state.loss.modules())]
    own_classes = [module for module in modules if not isinstance(module, torch.jit.ScriptModule)]
    attributes = [(vars(module), dict(vars(module)), dict(module._parameters)) for module in own_classes]
    buffers, random, totals = BufferValues(state.model, state.loss), random_state(), state.totals.snapshot()
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        for own, before, parameters in attributes:
            for name in [name for name in own if name not in before]:
                del own[name]
            own.update(before)
            own["_parameters"].update(parameters)
        buffers.restore()
        set_random_state(random)
        state.totals.restore(totals)
        raise BatchTooLarge(str(error).split("\n")[0]) from None
