"""What the Python code of a training step depends on, as a hashable value.

A CUDA graph or a compiled program repeats tensor operations, not Python. It stays right as long as everything that the
step's Python reads has the same value: attributes of modules and their classes, closed-over variables, globals, and
PyTorch's settings. `fingerprint_modules` collects all of that. `SideEffects` checks the other direction: that a step
changes nothing in Python, which a replay would not repeat.
"""

import functools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from stoker.engine._precision import float32_settings

_PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device)
_CODE = (type, BuiltinFunctionType, ModuleType)
_LONGEST = 1000  # elements of a list or mapping that are compared; of longer ones only the length is
_LARGEST = 1 << 20  # bytes of an array that is compared by value
_MODULE_INTERNALS = {*vars(nn.Module())} - {"training"}
_TABLES = ("_parameters", "_buffers")


class Identity:
    """Equal only for the same object. It holds the object, so that its id can't be used for another one."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def fingerprint(value: Any, depth: int = 5) -> Any:
    """A hashable value that stays equal as long as nothing in `value` changes, also by writing in place."""
    if isinstance(value, _PLAIN):
        return type(value), value
    if isinstance(value, nn.Parameter):
        return Identity(value)  # the step itself writes to it: an RNN keeps a list of its parameters
    if isinstance(value, Tensor):
        return Identity(value), None if value.is_inference() else value._version
    if isinstance(value, numpy.ndarray):
        small = value.nbytes <= _LARGEST and value.dtype != object
        return Identity(value), value.shape, value.tobytes() if small else None
    if not depth or isinstance(value, _CODE):
        return Identity(value)
    return Identity(value), *((name, fingerprint(each, depth - 1)) for name, each in _parts_of(value))


def _parts_of(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yields elements, attributes, and what a function has closed over or reads."""
    if isinstance(value, FunctionType):
        yield from _read_by_function(value)
    elif isinstance(value, MethodType):
        yield from (("function", value.__func__), ("self", value.__self__))
    elif isinstance(value, functools.partial):
        yield from (("function", value.func), ("arguments", value.args), ("keywords", value.keywords))
    elif isinstance(value, Mapping | tuple | list | set | frozenset):
        if len(value) > _LONGEST:
            yield "length", len(value)
        elif isinstance(value, Mapping):
            yield from ((repr(name), each) for name, each in value.items())
        else:
            yield from enumerate(sorted(value, key=repr) if isinstance(value, set | frozenset) else value)
    else:
        yield from vars(value).items() if hasattr(value, "__dict__") else ()
        slots = [name for kind in type(value).__mro__ for name in _slots_of(kind)]
        yield from ((name, getattr(value, name)) for name in slots if hasattr(value, name))


def _slots_of(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


def _read_by_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yields what a function reads besides its arguments: closed-over variables, defaults, plain globals it names."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not filled yet
            continue
    yield from (("defaults", function.__defaults__), ("keywords", function.__kwdefaults__))
    for name in function.__code__.co_names:
        each = function.__globals__.get(name)
        if each is not None and isinstance(each, (*_PLAIN, Tensor, list, dict, set, tuple, numpy.ndarray)):
            yield name, each


def _read_by_class(kind: type) -> Iterator[tuple[str, Any]]:
    """Yields the plain attributes of a user's module class, and what its methods read."""
    for each in kind.__mro__:
        if each.__module__.split(".")[0] in ("torch", "builtins"):
            continue
        for name, value in vars(each).items():
            if isinstance(value, FunctionType):
                yield from ((f"{name}.{inner}", found) for inner, found in _read_by_function(value))
            elif not name.startswith("__") and isinstance(value, (*_PLAIN, Tensor, list, dict, set, tuple)):
                yield name, value


def fingerprint_modules(modules: Sequence[nn.Module], tensors: Iterable[Tensor], others: Iterable[Any]) -> Any:
    """The fingerprint of modules, their classes, other objects, the identity of tensors, and PyTorch's settings."""
    kinds = {type(module): None for module in modules}
    return (
        tuple(map(fingerprint, others)),
        tuple((Identity(module), *_attributes(module).items()) for module in modules),
        tuple((name, fingerprint(value)) for kind in kinds for name, value in _read_by_class(kind)),
        tuple(map(Identity, tensors)),
        float32_settings(),
        torch.get_default_dtype(),
        torch.backends.cudnn.benchmark,
        torch.backends.cudnn.deterministic,
        torch.are_deterministic_algorithms_enabled(),
    )


def _attributes(module: nn.Module) -> dict[str, Any]:
    """A fingerprint of every attribute of a module."""
    own = vars(module)
    found = {name: fingerprint(value) for name, value in own.items() if name not in _MODULE_INTERNALS}
    for table in _TABLES:
        for name, tensor in own[table].items():
            if tensor is not None:
                address = tensor.data_ptr() if type(tensor) in (Tensor, nn.Parameter) else 0  # fake tensors have none
                found[name] = Identity(tensor), address, tensor.requires_grad, tuple(tensor.shape), tensor.dtype
    found["hooks"] = tuple(map(Identity, _hooks_of(module)))
    return found


def _hooks_of(module: nn.Module) -> list[Any]:
    tables = (module._forward_pre_hooks, module._forward_hooks, module._backward_pre_hooks, module._backward_hooks)
    return [hook for table in tables for hook in table.values()]


def find_user_hooks(model: nn.Module) -> Iterator[str]:
    """Yields why a replay of a model's operations would leave something out: hooks that the user has registered."""
    for module in model.modules():
        if any(not str(hook.__module__).startswith("torch.") for hook in _hooks_of(module)):
            yield f"a hook of {type(module).__name__} runs Python code, which a CUDA graph or compiled step skips"
    for name, parameter in model.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            yield f"a hook on the gradient of {name!r} runs Python code, which a CUDA graph or compiled step skips"


class SideEffects:
    """Attributes of modules and the host's random generators before a step, to find or undo what the step changes."""

    __slots__ = ("_attributes", "_contents", "_copies", "_generators", "_named", "_others")

    def __init__(self, model: nn.Module, loss: nn.Module | None = None, others: Iterable[Any] = ()) -> None:
        self._others = [(type(each).__name__, fingerprint(each)) for each in others]
        self._named = [*model.named_modules(), *(() if loss is None else loss.named_modules(prefix="loss"))]
        self._attributes = [_attributes(module) for _, module in self._named]
        self._copies = [
            (dict(vars(module)), *(dict(vars(module)[each]) for each in _TABLES)) for _, module in self._named
        ]
        self._contents = [
            pair
            for own, *_ in self._copies
            for name in own
            if name not in _MODULE_INTERNALS
            for pair in _copies_of_contents(own[name])
        ]
        self._generators = random.getstate(), numpy.random.get_state(), torch.default_generator.get_state()

    def describe_change(self, now: "SideEffects", *, generators: bool = True) -> str | None:
        """What the step has changed in Python, or None. An eager step may draw random numbers: `generators=False`."""
        for (name, module), before, after in zip(self._named, self._attributes, now._attributes, strict=False):
            changed = [each for each in {**before, **after} if before.get(each) != after.get(each)]
            if changed:
                where = f"{type(module).__name__}{f' ({name!r})' if name else ''}"
                what = "replaces its buffer" if changed[0] in module._buffers else "sets its attribute"
                return f"{where} {what} `{changed[0]}` in every step, which only Python can do"
        for (name, before), (_, after) in zip(self._others, now._others, strict=False):
            if before != after:
                return f"the loss or transform ({name}) changes itself in every step, which only Python can do"
        if not generators:
            return None
        python, arrays, tensors = self._generators
        if python != now._generators[0] or repr(arrays) != repr(now._generators[1]):
            return "the step draws from Python's or numpy's random numbers; draw from torch's, on the device"
        if not torch.equal(tensors, now._generators[2]):
            return (
                "the step draws random numbers on the host; draw them on the device: torch.rand(..., device=x.device)"
            )
        return None

    def undo(self) -> None:
        """Restores attributes and generators."""
        for (_, module), (own, *tables) in zip(self._named, self._copies, strict=True):
            for name in [name for name in vars(module) if name not in own]:
                del module.__dict__[name]
            module.__dict__.update(own)
            for name, table in zip(_TABLES, tables, strict=True):
                own[name].clear()
                own[name].update(table)
        for container, before in self._contents:
            _restore_contents(container, before)
        random.setstate(self._generators[0])
        numpy.random.set_state(self._generators[1])
        torch.default_generator.set_state(self._generators[2])


def _copies_of_contents(value: Any, depth: int = 3) -> Iterator[tuple[Any, Any]]:
    """Yields the tensors, lists and mappings that a fingerprint looks into, each with a copy of its contents."""
    if isinstance(value, Tensor) and not isinstance(value, nn.Parameter) and not value.is_inference():
        yield value, value.detach().clone()
    if not depth or isinstance(value, (*_PLAIN, *_CODE, FunctionType, MethodType, Tensor)):
        return
    inside: Any = value if isinstance(value, dict | list) else getattr(value, "__dict__", None)
    if isinstance(inside, dict | list) and len(inside) <= _LONGEST:
        yield inside, inside.copy()
        for each in list(inside.values() if isinstance(inside, dict) else inside):
            yield from _copies_of_contents(each, depth - 1)


def _restore_contents(container: Any, before: Any) -> None:
    if isinstance(container, Tensor):
        if not torch.equal(container, before):
            container.detach().copy_(before)
        return
    container.clear()
    container.extend(before) if isinstance(container, list) else container.update(before)
