"""What a training step's Python decides by, as a value: where it is equal, a program of the step is still right."""

import random
from collections.abc import Iterable, Iterator, Sequence
from types import FunctionType, MethodType
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from stoker.loop._precision import rounding
from stoker.loop._prints import CODE, MANY, PLAIN, Same, class_reads, print_of

_OF_TORCH = {*vars(nn.Module())} - {"training"}
_TABLES = ("_parameters", "_buffers")


def pins_of(modules: Sequence[nn.Module], tensors: Iterable[Tensor], *others: Any) -> tuple[Any, ...]:
    """Attributes of modules, of their classes and of other objects, their tensors, and what PyTorch is set to."""
    kinds = {type(module): None for module in modules}
    return (
        tuple(map(print_of, others)),
        tuple((Same(module), *_prints(module).items()) for module in modules),
        tuple((name, print_of(value)) for kind in kinds for name, value in class_reads(kind)),
        tuple(map(Same, tensors)),
        rounding(),
        torch.get_default_dtype(),
        torch.backends.cudnn.benchmark,
        torch.backends.cudnn.deterministic,
        torch.are_deterministic_algorithms_enabled(),
    )


def heard(model: nn.Module) -> Iterator[str]:
    """Why a program of a model would leave something out: hooks of the user's on modules, and on gradients."""
    for module in model.modules():
        if any(not str(hook.__module__).startswith("torch.") for hook in _hooks_of(module)):
            yield f"a hook of {type(module).__name__} may do anything, and a program would not call it"
    for name, parameter in model.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            yield f"a hook on the gradient of {name!r} may do anything, and a program would not call it"


def _hooks_of(module: nn.Module) -> list[Any]:
    tables = (module._forward_pre_hooks, module._forward_hooks, module._backward_pre_hooks, module._backward_hooks)
    return [hook for table in tables for hook in table.values()]


def _prints(module: nn.Module) -> dict[str, Any]:
    """Something for every attribute that differs where the attribute does."""
    own = vars(module)
    found = {name: print_of(value) for name, value in own.items() if name not in _OF_TORCH}
    for table in _TABLES:
        for name, tensor in own[table].items():
            if tensor is not None:
                address = tensor.data_ptr() if type(tensor) in (Tensor, nn.Parameter) else 0  # a fake one has none
                found[name] = Same(tensor), address, tensor.requires_grad, tuple(tensor.shape), tensor.dtype
    found["hooks"] = tuple(map(Same, _hooks_of(module)))
    return found


def _contents(value: Any, deep: int = 3) -> Iterator[tuple[Any, Any]]:
    """Tensors, lists and mappings that a print looks into, each with a copy of what is in it."""
    if isinstance(value, Tensor) and not isinstance(value, nn.Parameter) and not value.is_inference():
        yield value, value.detach().clone()
    if not deep or isinstance(value, (*PLAIN, *CODE, FunctionType, MethodType, Tensor)):
        return
    inside: Any = value if isinstance(value, dict | list) else getattr(value, "__dict__", None)
    if isinstance(inside, dict | list) and len(inside) <= MANY:
        yield inside, inside.copy()
        for each in list(inside.values() if isinstance(inside, dict) else inside):
            yield from _contents(each, deep - 1)


def _refill(container: Any, before: Any) -> None:
    if isinstance(container, Tensor):
        if not torch.equal(container, before):
            container.detach().copy_(before)
        return
    container.clear()
    container.extend(before) if isinstance(container, list) else container.update(before)


class Surroundings:
    """Modules' attributes and the host's generators, as they stood before a step was recorded."""

    __slots__ = ("_contents", "_generators", "_kept", "_named", "_others", "_prints")

    def __init__(self, model: nn.Module, loss: nn.Module | None = None, others: Iterable[Any] = ()) -> None:
        self._others = [(type(each).__name__, print_of(each)) for each in others]
        self._named = [*model.named_modules(), *(() if loss is None else loss.named_modules(prefix="loss"))]
        self._prints = [_prints(module) for _, module in self._named]
        self._kept = [
            (dict(vars(module)), *(dict(vars(module)[each]) for each in _TABLES)) for _, module in self._named
        ]
        self._contents = [
            each for own, *_ in self._kept for name in own if name not in _OF_TORCH for each in _contents(own[name])
        ]
        self._generators = random.getstate(), numpy.random.get_state(), torch.default_generator.get_state()

    def difference(self, now: "Surroundings") -> str | None:
        """What a step has changed in Python, which a program of it would not do again."""
        if (changed := self.changed(now)) is not None:
            return changed
        python, arrays, tensors = self._generators
        if python != now._generators[0] or repr(arrays) != repr(now._generators[1]):
            return "the step draws from Python's or numpy's random numbers; draw from torch's, on the device"
        if not torch.equal(tensors, now._generators[2]):
            return (
                "the step draws random numbers on the host; draw them on the device: torch.rand(..., device=x.device)"
            )
        return None

    def changed(self, now: "Surroundings") -> str | None:
        """An attribute that is another one now."""
        for (name, module), before, after in zip(self._named, self._prints, now._prints, strict=False):
            changed = [each for each in {**before, **after} if before.get(each) != after.get(each)]
            if changed:
                where = f"{type(module).__name__}{f' ({name!r})' if name else ''}"
                what = "replaces its buffer" if changed[0] in module._buffers else "sets its attribute"
                return f"{where} {what} `{changed[0]}` in every step, which only Python can do"
        for (name, before), (_, after) in zip(self._others, now._others, strict=False):
            if before != after:
                return f"the loss or transform ({name}) changes itself in every step, which only Python can do"
        return None

    def put_back(self) -> None:
        """Attributes and generators as they stood."""
        for (_, module), (own, *tables) in zip(self._named, self._kept, strict=True):
            for name in [name for name in vars(module) if name not in own]:
                del module.__dict__[name]
            module.__dict__.update(own)
            for name, table in zip(_TABLES, tables, strict=True):
                own[name].clear()
                own[name].update(table)
        for container, before in self._contents:
            _refill(container, before)
        random.setstate(self._generators[0])
        numpy.random.set_state(self._generators[1])
        torch.default_generator.set_state(self._generators[2])
