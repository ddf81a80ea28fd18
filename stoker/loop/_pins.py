"""What a training step's Python decides by, as a value: where it is equal, a program of the step is still right."""

import random
from collections.abc import Iterable, Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy
import torch
from torch import Tensor, nn

_OF_TORCH = {*vars(nn.Module())} - {"training"}
_TABLES = ("_parameters", "_buffers")
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device)
_CODE = (type, FunctionType, BuiltinFunctionType, MethodType, ModuleType)
_FEW = 50


def pins_of(modules: Iterable[nn.Module], tensors: Iterable[Tensor], other: Any = None) -> tuple[Any, ...]:
    """Attributes of modules and of another object, which tensors they have, and what PyTorch is set to."""
    return (
        None if isinstance(other, nn.Module) else _print(other),
        tuple(tuple(_prints(module).items()) for module in modules),
        tuple([id(tensor) for tensor in tensors]),
        torch.get_float32_matmul_precision(),
        torch.backends.cudnn.allow_tf32,
        torch.backends.cudnn.benchmark,
        torch.are_deterministic_algorithms_enabled(),
    )


def _prints(module: nn.Module) -> dict[str, Any]:
    """Something for every attribute that differs where the attribute does."""
    own = vars(module)
    found = {name: _print(value) for name, value in own.items() if name not in _OF_TORCH}
    for table in _TABLES:
        for name, tensor in own[table].items():
            if tensor is not None:
                address = tensor.data_ptr() if type(tensor) in (Tensor, nn.Parameter) else 0  # a fake one has none
                found[name] = id(tensor), address, tensor.requires_grad, tuple(tensor.shape)
    found["hooks"] = tuple(len(own.get(name) or ()) for name in _HOOKS)
    return found


def _print(value: Any, deep: int = 3) -> Any:
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, nn.Parameter):
        return id(value)  # the step itself writes to it: an RNN keeps a list of them
    if isinstance(value, Tensor):
        return id(value), None if value.is_inference() else value._version
    if not deep or isinstance(value, _CODE):
        return id(value)
    inside: Any = getattr(value, "__dict__", None)  # of a config, say, or a loss that is no module
    if isinstance(value, Mapping) and len(value) <= _FEW:
        inside = {str(name): each for name, each in value.items()}
    elif isinstance(value, tuple | list) and len(value) <= _FEW:
        inside = dict(enumerate(value))
    if not isinstance(inside, dict) or len(inside) > _FEW:
        return type(value).__name__, id(value), len(value) if hasattr(value, "__len__") else 0
    return type(value).__name__, id(value), *((name, _print(each, deep - 1)) for name, each in inside.items())


def _contents(value: Any, deep: int = 3) -> Iterator[tuple[Any, Any]]:
    """Tensors, lists and mappings that a print looks into, each with a copy of what is in it."""
    if isinstance(value, Tensor) and not isinstance(value, nn.Parameter) and not value.is_inference():
        yield value, value.detach().clone()
    if not deep or isinstance(value, (*_PLAIN, *_CODE, Tensor)):
        return
    inside: Any = value if isinstance(value, dict | list) else getattr(value, "__dict__", None)
    if isinstance(inside, dict | list) and len(inside) <= _FEW:
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

    __slots__ = ("_contents", "_generators", "_kept", "_named", "_prints")

    def __init__(self, model: nn.Module, loss: nn.Module | None = None) -> None:
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
