"""Whether a step can be recorded in a CUDA graph or compiled, and what its Python depends on.

A CUDA graph or a compiled program repeats tensor operations, not Python. It stays right as long as everything that the
step's Python reads has the same value: attributes of modules and their classes, closed-over variables, globals, and
PyTorch's settings. `fingerprint_modules` collects all of that. `SideEffects` checks the other direction: that a step
changes nothing in Python, which a replay would not repeat. `explain_failure` says why a step could not be recorded.
"""

import argparse
import functools
import operator
import os
import random
import sys
import threading
import traceback
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from stoker.engine._precision import float32_settings

_PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device)
_CODE = (type, BuiltinFunctionType, ModuleType)
_VALUES = (*_PLAIN, Tensor, list, dict, set, tuple, numpy.ndarray)
_DEPTH = 6  # of attributes and elements that are looked into
_LONGEST = 1000  # elements of a list or mapping; of a longer one only the length is compared
_LARGEST = 1 << 20  # bytes of an array; of a larger one only identity and shape are compared
_MODULE_INTERNALS = {*vars(nn.Module())} - {"training"}
_TABLES = ("_parameters", "_buffers")
# Directories of frames that are not the user's. Whole directories: a checkout may be called "stoker" or "torch" too.
_LIBRARIES = ("<", *(str(Path(file).parent) + os.sep for file in (Path(__file__).parent, torch.__file__)))
_LIBRARY_NAMES = {"torch", "numpy", "stoker", *sys.stdlib_module_names}  # packages that no user changes during a fit
_lock = threading.Lock()
_uses: dict[int, int] = {}  # of `pretend_compiling` by thread, because torch has one flag for the process


class CannotReplay(Exception):
    """A step can't be recorded or compiled; the text tells the user why."""


@contextmanager
def pretend_compiling() -> Iterator[None]:
    """Sets torch's is-compiling flag, so that its optimizers compute with tensors and read no counter on the host.

    >>> with pretend_compiling():
    ...     torch.compiler.is_compiling()
    True

    `torch.compiler._is_compiling_flag` is private: without it, torch's functional optimizers read their step counter
    with `.item()`, which no trace can contain.
    """
    thread = threading.get_ident()
    count = _uses.get(thread, 0)
    with _lock:
        _uses[thread] = count + 1
        torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        _set_users(thread, count)


def stop_pretending() -> None:
    """Ends all uses of `pretend_compiling` in this thread, also one that was interrupted while it ended."""
    _set_users(threading.get_ident(), 0)


def _set_users(thread: int, count: int) -> None:
    with _lock:
        if count:
            _uses[thread] = count
        else:
            _uses.pop(thread, None)
        torch.compiler._is_compiling_flag = bool(_uses)


def explain_failure(error: BaseException) -> str:
    """Why a step could not be recorded or compiled, in one line: the first thing that went wrong."""
    while error.__context__ is not None and not isinstance(error, CannotReplay):
        error = error.__context__
    if isinstance(error, CannotReplay):
        return str(error)
    message = str(error)
    if type(error).__name__ == "SubprocException":  # torch compiles in other processes: their error is the last line
        message = next((line for line in reversed(message.splitlines()) if line.strip()), message)
    text = " ".join(message.split("\n\n")[0].split())
    if "capturing" in text or "graph capture" in text or "DataDependent" in type(error).__name__:
        how = "by .item(), a branch on a tensor, or a copy between host and device"
        return f"the step reads a value on the host{_user_line(error)}, {how}"
    if "convert all Tensors to FakeTensors" in text:
        return f"the step reads a tensor that is neither a parameter nor a buffer{_user_line(error)}; make it a buffer"
    return f"{type(error).__name__}: {text[:300] or _last_line(error)}{_user_line(error)}"


def _last_line(error: BaseException) -> str:
    """Where an error without a text was raised."""
    last = traceback.extract_tb(error.__traceback__)[-1:]
    return "".join(f"{Path(each.filename).name}, line {each.lineno}: {each.line}" for each in last)


def _user_line(error: BaseException) -> str:
    """The user's own line at which it went wrong, if there is one."""
    frames: list[tuple[str, int]] = []
    trace = error.__traceback__
    while trace is not None:
        frames.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    own = [each for each in frames if not each[0].startswith(_LIBRARIES) and "torchinductor" not in each[0]]
    return f" ({Path(own[-1][0]).name}, line {own[-1][1]})" if own else ""


# --- what Python depends on


def object_key(value: Any) -> MethodType:
    """A value that is equal only for the same object. It holds the object, so that no other one gets its id.

    A bound method compares and hashes its object by identity, and does it in C: a fingerprint has many of them.
    """
    return MethodType(id, value)


def fingerprint(value: Any, depth: int, seen: set[int]) -> Any:
    """A hashable value that stays equal as long as nothing in `value` changes, also by writing in place.

    `seen` are objects that were looked into already: of those, only the identity is compared.
    """
    if isinstance(value, _PLAIN):
        return type(value), value
    if isinstance(value, nn.Parameter):
        return object_key(value)  # the step itself writes to it: an RNN keeps a list of its parameters
    if isinstance(value, Tensor):
        return object_key(value), None if value.is_inference() else value._version
    if isinstance(value, numpy.ndarray):
        small = value.nbytes <= _LARGEST and value.dtype != object
        return object_key(value), value.shape, value.tobytes() if small else None
    if not depth or id(value) in seen or isinstance(value, BuiltinFunctionType | ModuleType):
        return object_key(value)
    seen.add(id(value))
    return object_key(value), *((name, fingerprint(part, depth - 1, seen)) for name, part in _parts_of(value))


def _parts_of(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yields elements, attributes, and what a function has closed over or reads."""
    if isinstance(value, FunctionType):
        yield from _read_by_function(value)
    elif isinstance(value, type):
        yield from _read_by_class(value) if _is_users_class(value) else ()
    elif isinstance(value, MethodType):
        yield from (("function", value.__func__), ("self", value.__self__))
    elif isinstance(value, functools.partial):
        yield from (("function", value.func), ("arguments", value.args), ("keywords", value.keywords))
    elif isinstance(value, Mapping | tuple | list | set | frozenset):
        if len(value) > _LONGEST:
            yield "length", len(value)
        elif isinstance(value, Mapping):
            items = dict.items(value) if isinstance(value, dict) else value.items()  # not its own __getitem__
            yield from ((repr(name), part) for name, part in items)
        else:
            yield from enumerate(sorted(value, key=repr) if isinstance(value, set | frozenset) else value)
    else:
        attributes = vars(value) if hasattr(value, "__dict__") else {}
        skipped = _TABLES if isinstance(value, nn.Module) else ()  # the step itself may write to buffers
        yield from ((name, part) for name, part in attributes.items() if name not in skipped)
        slots = [name for kind in type(value).__mro__ for name in _slots_of(kind)]
        yield from ((name, getattr(value, name)) for name in slots if hasattr(value, name))
        if _is_users_class(type(value)):
            yield "class", type(value)


def _slots_of(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


def _read_by_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yields what a function reads besides its arguments: closed-over variables, defaults, and globals.

    Of a user's function these are all globals that it names, with the functions, config objects and modules among
    them. Of a function in an installed package they are plain values only.
    """
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not filled yet
            continue
    yield from (("defaults", function.__defaults__), ("keywords", function.__kwdefaults__))
    names, is_users = _names_in(function.__code__), _is_users_code(function.__code__)
    for name in names:
        value = function.__globals__.get(name)
        if isinstance(value, ModuleType) and is_users:
            if _is_users_module(value.__name__):
                attributes = vars(value)
                yield from ((f"{name}.{other}", attributes[other]) for other in names if other in attributes)
        elif value is not None and (isinstance(value, _VALUES) or (is_users and _is_users_object(value))):
            yield name, value


@functools.lru_cache(maxsize=4096)
def _names_in(code: CodeType) -> tuple[str, ...]:
    """The names of globals and attributes in a function, with those of functions that it defines."""
    inner = [name for part in code.co_consts if isinstance(part, CodeType) for name in _names_in(part)]
    return tuple(dict.fromkeys([*code.co_names, *inner]))


@functools.lru_cache(maxsize=4096)
def _is_users_code(code: CodeType) -> bool:
    return not (code.co_filename.startswith(_LIBRARIES) or "-packages" in code.co_filename)


def _is_users_module(name: str) -> bool:
    return name.partition(".")[0] not in _LIBRARY_NAMES


def _is_users_class(kind: type) -> bool:
    return _is_users_module(kind.__module__)


def _is_users_object(value: Any) -> bool:
    """Whether a global is a function, class or object that may be part of a user's settings."""
    if isinstance(value, FunctionType):
        return _is_users_code(value.__code__)
    if isinstance(value, type):
        return _is_users_class(value)
    if isinstance(value, MethodType | functools.partial | SimpleNamespace | argparse.Namespace):
        return True
    return _is_users_class(type(value))


def _read_by_class(kind: type) -> Iterator[tuple[str, Any]]:
    """Yields the plain attributes of a user's class, and what its methods read."""
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] in ("torch", "builtins"):
            continue
        for name, value in vars(base).items():
            function = getattr(value, "__func__", value)  # of a static method or class method
            if isinstance(function, FunctionType):
                yield from ((f"{name}.{inner}", part) for inner, part in _read_by_function(function))
            elif not name.startswith("__") and isinstance(value, _VALUES):
                yield name, value


def _read_by_classes(modules: Iterable[nn.Module], seen: set[int]) -> dict[str, Any]:
    """What the classes of modules depend on, by name."""
    kinds = dict.fromkeys(type(module) for module in modules)
    return {
        f"{kind.__qualname__}.{name}": fingerprint(value, _DEPTH, seen)
        for kind in kinds
        for name, value in _read_by_class(kind)
    }


def fingerprint_modules(modules: Sequence[nn.Module], tensors: Iterable[Tensor], others: Iterable[Any]) -> Any:
    """The fingerprint of modules, their classes, other objects, the identity of tensors, and PyTorch's settings."""
    seen = set(map(id, modules))
    return (
        tuple(fingerprint(each, _DEPTH, seen) for each in others),
        tuple((object_key(module), *_attributes(module, seen).items()) for module in modules),
        tuple(_read_by_classes(modules, seen).items()),
        tuple(map(object_key, tensors)),
        float32_settings(),
        torch.get_default_dtype(),
        torch.backends.cudnn.benchmark,
        torch.backends.cudnn.deterministic,
        torch.are_deterministic_algorithms_enabled(),
    )


def _attributes(module: nn.Module, seen: set[int]) -> dict[str, Any]:
    """A fingerprint of every attribute of a module."""
    own = vars(module)
    found = {name: fingerprint(value, _DEPTH, seen) for name, value in own.items() if name not in _MODULE_INTERNALS}
    for table in _TABLES:
        for name, tensor in own[table].items():
            if tensor is not None:
                address = tensor.data_ptr() if type(tensor) in (Tensor, nn.Parameter) else 0  # fake tensors have none
                found[name] = object_key(tensor), address, tensor.requires_grad, tuple(tensor.shape), tensor.dtype
    found["hooks"] = tuple(map(object_key, _hooks_of(module)))
    return found


def _hooks_of(module: nn.Module) -> list[Any]:
    tables = (module._forward_pre_hooks, module._forward_hooks, module._backward_pre_hooks, module._backward_hooks)
    return [hook for table in tables for hook in table.values()]


def find_user_hooks(model: nn.Module) -> Iterator[str]:
    """Yields a text for each hook that the user has registered, which a replay of the operations would leave out."""
    for module in model.modules():
        if any(not str(hook.__module__).startswith("torch.") for hook in _hooks_of(module)):
            yield f"a hook of {type(module).__name__} runs Python code, which a CUDA graph or compiled step skips"
    parameters = [each for module in model.modules() for each in module._parameters.values() if each is not None]
    if not any(map(_has_gradient_hooks, parameters)):
        return
    for name, parameter in model.named_parameters():
        if _has_gradient_hooks(parameter):
            yield f"a hook on the gradient of {name!r} runs Python code, which a CUDA graph or compiled step skips"


def _has_gradient_hooks(parameter: Tensor) -> bool:
    return bool(parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None))


class SideEffects:
    """Attributes of modules and the host's random generators before a step, to find or undo what the step changes."""

    __slots__ = ("_attributes", "_classes", "_contents", "_copies", "_generators", "_named", "_others")

    def __init__(self, model: nn.Module, loss: nn.Module | None = None, others: Iterable[Any] = ()) -> None:
        self._named = [*model.named_modules(), *(() if loss is None else loss.named_modules(prefix="loss"))]
        modules = [module for _, module in self._named]
        seen = set(map(id, modules))
        self._others = [(type(each).__name__, fingerprint(each, _DEPTH, seen)) for each in others]
        self._attributes = [_attributes(module, seen) for module in modules]
        self._classes = _read_by_classes(modules, seen)
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
        for kind in {type(module) for module in modules}:
            self._contents += [pair for _, value in _read_by_class(kind) for pair in _copies_of_contents(value)]
        self._generators = random.getstate(), numpy.random.get_state(), torch.default_generator.get_state()

    def describe_change(self, now: "SideEffects", *, generators: bool = True) -> str | None:
        """What the step has changed in Python, or None. An eager step may draw random numbers: `generators=False`."""
        for (name, module), before, after in zip(self._named, self._attributes, now._attributes, strict=False):
            changed = [each for each in {**before, **after} if before.get(each) != after.get(each)]
            if changed:
                where = f"{type(module).__name__}{f' ({name!r})' if name else ''}"
                what = "replaces its buffer" if changed[0] in module._buffers else "sets its attribute"
                return f"{where} {what} `{changed[0]}` in every step, which only Python can do"
        for name, before in self._classes.items():
            if before != now._classes.get(name):
                return f"the step changes {name.rpartition('.')[2]!r}, which {name.rpartition('.')[0]} reads, in Python"
        for (name, before), (_, after) in zip(self._others, now._others, strict=False):
            if before != after:
                return f"the loss, step or transform ({name}) changes itself in every step, which only Python can do"
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
    # Other classes may give something else than what they hold.
    if type(inside) in (dict, list, OrderedDict, defaultdict) and len(inside) <= _LONGEST:
        yield inside, inside.copy()
        for each in list(inside.values() if isinstance(inside, dict) else inside):
            yield from _copies_of_contents(each, depth - 1)


def _restore_contents(container: Any, before: Any) -> None:
    if isinstance(container, Tensor):
        if not torch.equal(container, before):
            container.detach().copy_(before)
        return
    if isinstance(container, list):
        container[:] = before
    elif not _has_items(container, before):
        container.clear()
        container.update(before)


def _has_items(container: dict[Any, Any], items: dict[Any, Any]) -> bool:
    """Whether a dict has exactly these keys and objects, in this order."""
    return list(container) == list(items) and all(map(operator.is_, dict.values(container), items.values()))
