"""A NaN is stopped before it reaches the weights, and traced to the module that it came from."""

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from stoker._select import named_parameters
from stoker.data import RowSelection
from stoker.distributed import is_dtensor, reduce_shards
from stoker.gradients import Gradients, split_for_capture
from stoker.loop._fit import Fit
from stoker.loop._precision import forward_in
from stoker.loop._random import put_back

_check_all: Any = torch._amp_foreach_non_finite_check_and_unscale_  # pyright: ignore[reportPrivateImportUsage]
_ONE = torch.ones(())
_MOST = 110  # tensors whose norms are one launch
_SHORT, _TOGETHER = 2**14, 8  # numbers of a gradient that is joined with others, and with how many


def is_finite(loss: Tensor | None, grads: Gradients, norm: Tensor | None) -> bool:
    """Whether gradients may be used; their norm, where it is known, saves looking at them again.

    On a GPU it waits for the device, once.
    """
    tensors = grads.tensors()
    if norm is None and (found := _checked(tensors)) is not None:
        return found.item() == 0 and (loss is None or math.isfinite(loss.item()))
    sizes = [norm] if norm is not None else _sizes(tensors)
    looked_at = [*sizes] if loss is None else [loss.detach(), *sizes]
    if looked_at[0].device.type == "cpu":
        fine = all(math.isfinite(each.item()) for each in looked_at)
    else:
        fine = bool(torch.stack([each.to(looked_at[0].device).float() for each in looked_at]).isfinite().all())
    # A norm can overflow where no element has: only then every element is looked at.
    return fine or ((loss is None or bool(torch.isfinite(loss))) and bool(grads.all_finite()))


def looked_at(loss: Tensor | None, grads: Gradients) -> list[Tensor]:
    """Numbers on the device that are finite where the loss and every element of the gradients is: the largest ones."""
    tensors = [each for each in grads.tensors() if each.numel()]
    if any(map(is_dtensor, tensors)):
        sizes = reduce_shards(tensors, lambda own: torch.stack(_largest(own)).amax())
    elif torch.compiler.is_compiling():  # written out, so that it becomes a part of what computes the gradients
        sizes = [each.abs().amax() for each in _joined(tensors)]
    else:
        sizes = _largest(tensors)
    return [*sizes] if loss is None else [loss, *sizes]


def _joined(tensors: list[Tensor]) -> list[Tensor]:
    """Short gradients on a GPU as one: a compiler makes each of them a kernel, which takes as long as one for all."""
    short = [each for each in tensors if each.is_cuda and each.numel() <= _SHORT]
    groups = [short[start : start + _TOGETHER] for start in range(0, len(short), _TOGETHER)]
    rest = [each for each in tensors if not (each.is_cuda and each.numel() <= _SHORT)]
    return [*rest, *(torch.cat([each.reshape(-1) for each in group]) for group in groups)]


def _largest(tensors: list[Tensor]) -> list[Tensor]:
    if len({each.dtype for each in tensors}) == 1:  # else torch launches a kernel for each
        (tensors,) = split_for_capture([tensors], _MOST)
    return list(torch._foreach_norm(tensors, torch.inf))  # pyright: ignore[reportPrivateImportUsage]


def _checked(tensors: list[Tensor]) -> Tensor | None:
    """1 where any element is not finite, in one pass over plain gradients on the CPU; None for others."""
    for tensor in tensors:
        if type(tensor) is not Tensor or tensor.dtype != torch.float32 or tensor.is_sparse or not tensor.is_cpu:
            return None
    found = torch.zeros(())
    _check_all(tensors, found, _ONE)  # which also multiplies by one
    return found


def _sizes(tensors: list[Tensor]) -> Sequence[Tensor]:
    """A norm of each tensor, as cheap as can be: it is finite where all of the tensor is (unless it overflows)."""
    if any(tensor.is_sparse or hasattr(tensor, "full_tensor") for tensor in tensors):
        return [_size(tensor) for tensor in tensors]
    return torch._foreach_norm(tensors)  # pyright: ignore[reportPrivateImportUsage]


def _size(tensor: Tensor) -> Tensor:
    values = tensor.coalesce().values() if tensor.is_sparse else tensor
    whole = torch.linalg.vector_norm(values)
    return whole.full_tensor() if hasattr(whole, "full_tensor") else whole  # pyright: ignore[reportAttributeAccessIssue]


def first_not_finite(fit: Fit, loss: Tensor | None, grads: Gradients) -> str:
    """Where the first number came up that is none: the batch, the weights, a module's output, the loss, a gradient."""
    given = _first_given(fit)
    if given is not None and not fit.sharded:  # else the other ranks can't run their forward without this one
        return given
    try:
        found = _first_module(fit)
    except Exception as error:  # the search must not hide what it searches for
        return f"a second forward to find the module failed ({type(error).__name__}: {error})"
    if given is not None or found is not None:
        return given or str(found)
    if loss is not None and not _fine(loss):
        return "every module's output is finite, so it is the loss itself (log or division at zero, or an overflow)"
    bad = next((name for name, tensor in grads.items() if not _fine(tensor)), "?")
    return f"loss and outputs are finite; the gradient of {bad!r} is not (sqrt or division at zero, or an overflow)"


def _first_given(fit: Fit) -> str | None:
    """What was not finite before the forward began."""
    if isinstance(fit.ctx.batch, RowSelection):  # gathered by a program, which has not left it here
        fit.ctx.batch = fit.ctx.batch.gather()
    for name, tensor in _tensors(fit.ctx.batch, "the batch"):
        if not _fine(tensor):
            return f"{name} holds NaN or infinity already: look at the data"
    for name, parameter in named_parameters(fit.model).items():
        if not _fine(parameter):
            return f"the parameter {name!r} is not finite"
    return None


def _first_module(fit: Fit) -> str | None:
    """Runs the batch once more, watching; random numbers and running statistics are put back."""
    found: list[str] = []

    def watch(name: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if not found and any(not _fine(tensor) for _, tensor in _tensors(output, "")):
                whose = f"that of {name!r} ({type(module).__name__})" if name else "the model's own"
                found.append(f"the first output that is not finite is {whose}")

        return hook

    before = [buffer.clone() for buffer in fit.model.buffers()]
    handles = [module.register_forward_hook(watch(name)) for name, module in fit.model.named_modules()]
    try:
        with put_back(), torch.no_grad(), forward_in(fit.settings.precision, fit.device):
            _forward(fit)
    finally:
        for handle in handles:
            handle.remove()
        for buffer, own in zip(fit.model.buffers(), before, strict=True):
            buffer.copy_(own)
    return found[0] if found else None


def _forward(fit: Fit) -> None:
    if fit.supervised is not None:
        parts = fit.supervised.parts(fit.ctx.batch)
        fit.model(*parts.args, **parts.kwargs)
        return
    answer = fit.model.train_step(fit.ctx.batch)  # pyright: ignore[reportCallIssue]
    if isinstance(answer, Generator):
        for _ in answer:
            pass


def _fine(tensor: Tensor) -> bool:
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()  # pyright: ignore[reportAttributeAccessIssue]  what this rank has of it
    return bool(torch.isfinite(tensor.coalesce().values() if tensor.is_sparse else tensor).all())


def _tensors(value: Any, name: str) -> list[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        return [(name, value)]
    if isinstance(value, Mapping):
        return [pair for key, part in value.items() for pair in _tensors(part, f"{name}[{key!r}]")]
    if isinstance(value, tuple | list):
        return [pair for place, part in enumerate(value) for pair in _tensors(part, f"{name}[{place}]")]
    if is_dataclass(value):
        own = [field.name for field in fields(value)]
        return [pair for key in own for pair in _tensors(getattr(value, key), f"{name}.{key}")]
    return []
