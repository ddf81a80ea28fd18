"""`backward` for one model again and again: what it looks up is looked up once."""

from typing import Any

import torch
from torch import Tensor

from stoker._select import Models, Selector, named_parameters, select_names
from stoker.errors import NoSuchParameter
from stoker.gradients._backward import backward, in_our_words, needs_backward, owned
from stoker.gradients._gradients import Gradients

_run: Any = torch.autograd.graph._engine_run_backward  # what torch.autograd.grad calls, after 20 µs of checks


# Never let go of: a CUDA graph that was recorded with one of them reads it for ever.
_ones: dict[tuple[torch.dtype, torch.device], Tensor] = {}


def _one(loss: Tensor) -> Tensor:
    """What a loss is differentiated with."""
    one = torch.ones((), dtype=loss.dtype, device=loss.device)
    if loss.device.type == "cuda":
        if torch.cuda.is_current_stream_capturing():
            return one  # the graph's own
        made = torch.cuda.Event()
        made.record(torch.cuda.current_stream(loss.device))
        made.synchronize()  # sync: once, and then it is there for every stream
    _ones[loss.dtype, loss.device] = one
    return one


class Differentiator:
    """Gives the gradients of losses of a model, or of a part of it, as `backward` does.

    >>> model = torch.nn.Linear(2, 1)
    >>> differentiate = Differentiator(model)
    >>> differentiate(model(torch.ones(4, 2)).mean())["weight"]
    tensor([[1., 1.]])

    It holds as long as the model has the same parameters; which of them are trained may change.
    """

    __slots__ = ("_all", "_flags", "_inputs", "_model", "_names", "_parameters", "_plain", "_wrt")

    def __init__(self, model: Models, wrt: Selector | None = None) -> None:
        self._model, self._wrt = model, wrt
        self._parameters = named_parameters(model)
        self._all = list(self._parameters.values())
        self._plain = not needs_backward(model, self._all)
        self._look()

    def _look(self) -> None:
        """Which parameters are trained now."""
        self._flags = [parameter.requires_grad for parameter in self._all]
        chosen = None if self._wrt is None else select_names(self._wrt, self._parameters, self._model)
        trained = {
            name: parameter
            for name, parameter in self._parameters.items()
            if parameter.requires_grad and (chosen is None or name in chosen)
        }
        self._names, self._inputs = list(trained), tuple(trained.values())

    def __call__(self, loss: Tensor) -> Gradients:
        """The gradients of a loss; its graph is used up."""
        if self._flags != [parameter.requires_grad for parameter in self._all]:
            self._look()
        if not self._can(loss):
            return backward(loss, self._model, wrt=self._wrt)
        one = _ones.get((loss.dtype, loss.device))
        one = _one(loss) if one is None else one
        try:
            found = _run((loss,), (one,), False, False, self._inputs, True, accumulate_grad=False)
        except RuntimeError as error:
            ours = in_our_words(error)
            if ours is None:
                raise
            raise ours from error
        tensors = {
            name: owned(tensor, parameter)
            for name, tensor, parameter in zip(self._names, found, self._inputs, strict=True)
            if tensor is not None
        }
        if len(tensors) < len(self._names):
            self._check_parameters()
        return Gradients._of(tensors, self._parameters, self._model)

    def _can(self, loss: Tensor) -> bool:
        """Whether there is nothing special about it; all else is left to `backward`, with its errors."""
        return (
            self._plain
            and isinstance(loss, Tensor)
            and loss.requires_grad
            and loss.dim() == 0
            and loss.is_floating_point()
            and bool(self._names)
            and not torch.compiler.is_compiling()
        )

    def _check_parameters(self) -> None:
        """Some gradient is missing: was a parameter replaced, or does the loss not reach it?"""
        now = named_parameters(self._model)
        for name, parameter in self._parameters.items():
            if now.get(name) is not parameter:
                raise NoSuchParameter(
                    f"the parameter {name!r} was replaced while the model was trained: what is replaced is not trained "
                    "by the optimizer; change it in place, under torch.no_grad()"
                )
