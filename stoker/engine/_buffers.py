"""Buffers of modules and their values, to go back to."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class BufferValues:
    """The buffers of modules now; `restore` writes these values back, also where a buffer was replaced.

    >>> norm = nn.BatchNorm1d(2)
    >>> before = BufferValues(norm)
    >>> _ = norm(torch.ones(4, 2))
    >>> before.restore()
    >>> norm.running_mean
    tensor([0., 0.])
    """

    __slots__ = ("_tables", "_values")

    def __init__(self, *models: nn.Module | None) -> None:
        modules = [module for model in models if model is not None for module in model.modules()]
        scripted = [module for module in modules if not isinstance(module._buffers, dict)]  # TorchScript
        tables = [module._buffers for module in modules if module._buffers and isinstance(module._buffers, dict)]
        self._tables = [(table, dict(table)) for table in tables]
        found = [each for table in tables for each in table.values() if each is not None]
        found += [each for module in scripted for each in module.buffers(recurse=False)]
        tensors: dict[int, Tensor] = {id(each): each for each in found}
        self._values = [(tensor, tensor.detach().clone(), _version(tensor)) for tensor in tensors.values()]

    def restore(self, *, keep: Callable[[Tensor], bool] = lambda buffer: False) -> None:
        """Goes back to these buffers and values, except for buffers that `keep` returns True for."""
        for table, before in self._tables:
            for name in [*before, *(name for name in table if name not in before)]:
                now = table.get(name)
                if now is not None and keep(now):
                    continue
                if name in before:
                    table[name] = before[name]
                else:
                    del table[name]
        with torch.no_grad():
            for tensor, value, version in self._values:
                if (version is None or version != _version(tensor)) and not keep(tensor):
                    tensor.copy_(value)


def _version(tensor: Tensor) -> int | None:
    """How often a tensor was written to that can't always be copied to: one of a subclass, or an expanded one.

    None for others: torch's batch norms write to their running statistics without counting.
    """
    is_plain = type(tensor) is Tensor and tensor.layout == torch.strided
    if is_plain and all(stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1):
        return None
    return None if tensor.is_inference() else tensor._version


@contextmanager
def preserve_buffers(*models: nn.Module | None) -> Iterator[None]:
    """Restores the buffers afterwards."""
    before = BufferValues(*models)
    try:
        yield
    finally:
        before.restore()
