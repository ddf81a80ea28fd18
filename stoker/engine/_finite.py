"""Finds values that are not finite, as the guards need it, and where the first one comes from."""

import math
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from stoker._select import named_parameters
from stoker._tree import named_leaves
from stoker.distributed import is_dtensor, reduce_shards
from stoker.engine._buffers import preserve_buffers
from stoker.engine._precision import autocast
from stoker.engine._rng import preserve_rng
from stoker.gradients import Gradients, split_for_capture
from stoker.steps import Steps

_check_and_unscale: Any = torch._amp_foreach_non_finite_check_and_unscale_  # pyright: ignore[reportPrivateImportUsage]
_foreach_norm: Any = torch._foreach_norm  # pyright: ignore[reportPrivateImportUsage]
_ONE = torch.ones((), dtype=torch.float32, device="cpu")
_PLAIN = {(Tensor, torch.float32, torch.strided, True)}  # the kinds of gradients on the CPU that one pass can check
_TENSORS_PER_LAUNCH = 110  # of torch's foreach norm
_SHORT = 2**14  # elements of a gradient that a compiled check joins with others, at most
_JOINED = 8  # gradients that are joined


def is_finite(loss: Tensor | None, grads: Gradients, norm: Tensor | None) -> bool:
    """Whether the loss and all gradients are finite; the gradients' norm, if it is known, saves a pass over them.

    On a GPU this waits for the device, once.
    """
    tensors = grads.tensors()
    if norm is None and {(type(each), each.dtype, each.layout, each.is_cpu) for each in tensors} <= _PLAIN:
        found = torch.zeros((), dtype=torch.float32, device="cpu")
        _check_and_unscale(tensors, found, _ONE)  # one pass: writes 1 if an element is not finite, and multiplies by 1
        return found.item() == 0 and (loss is None or math.isfinite(loss.item()))
    norms = [norm] if norm is not None else _norms(tensors)
    values = [*norms] if loss is None else [loss.detach(), *norms]
    if values[0].device.type == "cpu":
        finite = all(math.isfinite(each.item()) for each in values)
    else:
        finite = bool(torch.stack([each.to(values[0].device).float() for each in values]).isfinite().all())
    # A norm can overflow although every element is finite: only then each element is checked.
    return finite or ((loss is None or bool(torch.isfinite(loss))) and bool(grads.all_finite()))


def find_nonfinite(tensors: Mapping[str, Tensor]) -> str | None:
    """The name of the first tensor with an element that is not finite; waits for the device, once if all are finite."""
    norms = _norms([tensor.detach() for tensor in tensors.values()]) if tensors else []
    if all(bool(torch.stack(group).isfinite().all()) for group in _group_by_kind(norms)):
        return None
    return next((name for name, tensor in tensors.items() if not all_finite(tensor)), None)


def _norms(tensors: list[Tensor]) -> Sequence[Tensor]:
    """A norm of each tensor: it is finite if the tensor is, unless it overflows."""
    if any(tensor.is_sparse or hasattr(tensor, "full_tensor") for tensor in tensors):
        return [_norm(tensor) for tensor in tensors]
    return _foreach_norm(tensors)


def _norm(tensor: Tensor) -> Tensor:
    values = tensor.coalesce().values() if tensor.is_sparse else tensor
    norm = torch.linalg.vector_norm(values)
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # pyright: ignore[reportAttributeAccessIssue]


def largest_values(loss: Tensor | None, grads: Gradients) -> list[Tensor]:
    """The loss and the largest element of each gradient, on the device: finite if all elements are."""
    tensors = [each for each in grads.tensors() if each.numel()]
    if any(map(is_dtensor, tensors)):
        largest = reduce_shards(tensors, lambda own: torch.stack(_largest_of_each(own)).amax())
    elif torch.compiler.is_compiling():  # plain operations, which fuse with what computes the gradients
        largest = [each.abs().amax() for each in _join_short(tensors)]
    else:
        largest = _largest_of_each(tensors)
    return [*largest] if loss is None else [loss, *largest]


def _join_short(tensors: list[Tensor]) -> list[Tensor]:
    """Joins short gradients on a GPU: the compiler makes one kernel for each, which takes as long as one for all."""
    short = [each for each in tensors if each.is_cuda and each.numel() <= _SHORT]
    groups = [short[start : start + _JOINED] for start in range(0, len(short), _JOINED)]
    rest = [each for each in tensors if not (each.is_cuda and each.numel() <= _SHORT)]
    return [*rest, *(torch.cat([each.reshape(-1) for each in group]) for group in groups)]


def _largest_of_each(tensors: list[Tensor]) -> list[Tensor]:
    if len({each.dtype for each in tensors}) == 1:  # otherwise torch launches one kernel for each tensor
        (tensors,) = split_for_capture([tensors], _TENSORS_PER_LAUNCH)
    return list(_foreach_norm(tensors, torch.inf))


def join_values(values: list[Tensor], device: torch.device) -> Tensor:
    """The values as one tensor of one type, with few operations if many have the same type."""
    wide = torch.float64 if any(value.dtype == torch.float64 for value in values) else torch.float32
    parts = [torch.stack(group).to(device, wide) for group in _group_by_kind(values)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _group_by_kind(values: Sequence[Tensor]) -> list[list[Tensor]]:
    groups: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for value in values:
        groups.setdefault((value.dtype, value.device), []).append(value.detach())
    return list(groups.values())


class NonFiniteSearch:
    """Finds where the first value that is not finite comes from."""

    def __init__(self, model: nn.Module, steps: Steps, precision: str, device: torch.device) -> None:
        self._model, self._steps, self._precision, self._device = model, steps, precision, device

    def describe(self, batch: Any, loss: Tensor | None, grads: Gradients, *, always_forward: bool = False) -> str:
        """Names the origin: the batch, a parameter, a module's output, the loss, or a gradient.

        `always_forward`: other ranks run their forward pass with this one, so it is never left out.
        """
        before = self._nonfinite_before_forward(batch)
        if before is not None and not always_forward:
            return before
        try:
            inside = self._first_nonfinite_module(batch)
        except Exception as error:  # the search must not hide what it is looking for
            return f"a second forward pass to find the module failed ({type(error).__name__}: {error})"
        if before is not None or inside is not None:
            return before or str(inside)
        if loss is not None and not all_finite(loss):
            return "every module's output is finite, so it is the loss itself (log or division at zero, or an overflow)"
        bad = next((name for name, tensor in grads.items() if not all_finite(tensor)), "?")
        return f"loss and outputs are finite; the gradient of {bad!r} is not (sqrt or division at zero, or an overflow)"

    def _nonfinite_before_forward(self, batch: Any) -> str | None:
        for name, tensor in _named_tensors(batch, "the batch"):
            if not all_finite(tensor):
                return f"{name} already holds NaN or infinity: look at the data"
        for name, parameter in named_parameters(self._model).items():
            if not all_finite(parameter):
                return f"the parameter {name!r} is not finite"
        return None

    def _first_nonfinite_module(self, batch: Any) -> str | None:
        """Runs the batch again with hooks on all modules; random numbers and running statistics are restored."""
        found: list[str] = []

        def watch(name: str) -> Any:
            def hook(module: nn.Module, args: Any, output: Any) -> None:
                if not found and any(not all_finite(tensor) for _, tensor in _named_tensors(output, "")):
                    whose = f"that of {name!r} ({type(module).__name__})" if name else "the model's own"
                    found.append(f"the first output that is not finite is {whose}")

            return hook

        model = self._model
        handles = [module.register_forward_hook(watch(name)) for name, module in model.named_modules()]
        try:
            with preserve_buffers(model), preserve_rng(), torch.no_grad(), autocast(self._precision, self._device):
                self._forward(batch)
        finally:
            for handle in handles:
                handle.remove()
        return found[0] if found else None

    def _forward(self, batch: Any) -> None:
        step = self._steps.train
        if step is None:
            parts = self._steps.split.parts(batch)
            self._model(*parts.args, **parts.kwargs)
            return
        returned = step.run(self._model, batch)
        if isinstance(returned, Generator):
            for _ in returned:
                pass


def all_finite(tensor: Tensor) -> bool:
    """Whether a tensor of any type has no NaN and no infinity; of a sharded one, this rank's part."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()  # pyright: ignore[reportAttributeAccessIssue]  the part that this rank has
    if tensor.layout != torch.strided:
        tensor = tensor.coalesce().values() if tensor.is_sparse else tensor.values()
    return bool((tensor.float() if tensor.dtype.itemsize == 1 else tensor).isfinite().all())  # not for 8 bits


def _named_tensors(value: Any, name: str) -> list[tuple[str, Tensor]]:
    return [(where, leaf) for where, leaf in named_leaves(value, name) if isinstance(leaf, Tensor)]
