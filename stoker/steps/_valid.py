"""`valid(model)`: a copy of the model in eval mode that shares its tensors.

Switching the model itself with `.eval()` would change it for a training in another thread, and `.train()` afterwards
forgets which parts were in eval mode before. So `valid` copies the structure: every module of the view is an instance
of the same class with its own attributes, and `.eval()` is called on the copy. What is copied and what is shared:

- Modules are copied, and so is everything that holds modules: containers, objects, bound methods, closures, hooks.
  In the copies they hold the view's modules.
- Parameters are the same memory as tensors that don't require gradients. Buffers are the same tensors.
- Everything else (numbers, vocabularies, locks, …) is the same object.

A view compares itself with its model when it is called, and copies again what has changed.
"""

import copy
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from itertools import islice
from operator import is_
from types import CellType, FunctionType, MemberDescriptorType, MethodType, ModuleType, SimpleNamespace
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, jit, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import is_lazy
from torch.utils.weak import WeakTensorKeyDictionary

from stoker._select import WRAPPERS
from stoker._tree import tensors_in
from stoker.distributed import is_sharded, reshard
from stoker.errors import InvalidArgument, WrongType

M = TypeVar("M", bound=nn.Module)
Leaf = Callable[[Any, int], Any]  # what to put in the place of a module, a tensor or an object, found at some depth

_DEPTH = 3  # containers and objects inside each other that are searched for modules
_HEAD = 64  # parts of a container that are searched: a vocabulary is not walked through
_PLAIN = frozenset({bool, int, float, str, bytes, type(None), type, torch.Size, torch.dtype, torch.device})
_PROXIES = (weakref.ProxyType, weakref.CallableProxyType)
_CONTAINERS = (dict, list, tuple, set, frozenset, deque)
_BUILT_IN = frozenset({OrderedDict, *_CONTAINERS})
# The dicts of a module that are changed in place when something is registered; each copy has its own.
_MEMBERS = (
    "_parameters",
    "_buffers",
    "_modules",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
)
_MISSING = object()


def valid(model: M) -> M:
    """A view of the model for validation: the same weights, in eval mode, without gradients.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5))
    >>> view = valid(model)
    >>> view(torch.ones(1, 3)).requires_grad, view.training, model.training
    (False, False, True)
    >>> view[0].weight.data_ptr() == model[0].weight.data_ptr()
    True

    The model is never switched, so it may train in another thread meanwhile. The view follows it: it sees every update
    of the weights, and when it is called also new submodules and attributes. Attributes that a forward pass sets on
    the view stay in the view. Buffers that it writes in place are the model's own, as after `model.eval()`.

    The parameters of the view don't require gradients, so it records no graph. An input that does require gradients
    gets them through the view; call it under `torch.no_grad()` to prevent that. A forward pass may differentiate with
    respect to its input.

    A view of a model that is compiled or wrapped for DDP is a view of the module inside: it runs eagerly and without
    collectives. Modules are found in attributes, containers, objects, functions and weak references, up to three
    inside each other. A module that code reaches through a global variable is the model's own, in training mode.
    """
    if not isinstance(model, nn.Module):
        given = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        raise WrongType(f"valid() takes an instance of torch.nn.Module; got {given}")
    if isinstance(vars(model).get("_compiled_call_impl"), _Call):
        return model  # a view already
    return cast(M, _View(unwrap(model)).create())


class _Copied:
    """A module or an object, its copy, and what the copy was made from."""

    __slots__ = ("copy", "members", "nested", "origin", "parameters", "seen", "written")

    def __init__(self, origin: Any, made: Any) -> None:
        self.origin = origin
        # Weak, so that a view is freed as soon as it is dropped. Instances with slots only have no weak references.
        self.copy: Callable[[], Any] = weakref.ref(made) if type(made).__weakrefoffset__ else lambda: made
        self.seen: dict[str, Any] = {}  # the origin's attributes when it was copied, without those in `nested`
        self.nested: set[str] = set()  # attributes that were copied because they hold modules
        self.members: tuple[Any, ...] = ()  # the parameters, buffers, submodules and hooks of a module
        self.parameters: tuple[Any, ...] = ()  # the copy's parameters, for which a caller may have swapped others in
        self.written: dict[str, Any] = {}  # the attributes of the copy, where the origin is not a module

    def is_current(self) -> bool:
        """Whether the origin has not changed since it was copied."""
        if self.nested or not isinstance(self.origin, nn.Module):
            return False
        values = tuple(vars(self.origin).values())  # at once: another thread may set attributes
        if len(values) != len(self.seen) or not all(map(is_, values, self.seen.values())):
            return False
        return type(self.copy()) is type(self.origin) and self.has_same_members()

    def has_same_members(self) -> bool:
        members = _members(self.origin)
        if len(members) != len(self.members) or not all(map(is_, members, self.members)):
            return False
        return not any(map(_has_moved, self.origin._parameters.values(), self.parameters))


class _View:
    """Makes the copy of a model and keeps it up to date."""

    __slots__ = ("_copies", "_has_new_modules", "_in_training", "_model", "_shares_parameters", "_tensors")

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._copies: dict[int, _Copied] = {}  # by the id of the origin
        self._tensors: Any = WeakTensorKeyDictionary()  # the view's parameters by the model's
        self._shares_parameters = is_sharded(model)  # FSDP2 exchanges the parameters of the model's own modules
        self._has_new_modules = self._in_training = False

    def create(self) -> nn.Module:
        root = self._copy(self._model)
        vars(root)["_compiled_call_impl"] = _Call(self, root)
        self._set_eval(root)
        return root

    def run(self, root: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if root.training and not self._in_training:
            raise InvalidArgument(
                f"a view is always in eval mode, and this {type(root).__name__} was switched to training; "
                "train the model itself, not what valid() returned for it"
            )
        self._refresh(root)
        # Where nothing requires gradients this changes no result but the last bits: some kernels ask for the grad mode.
        differentiates = not self._shares_parameters and any(each.requires_grad for each in tensors_in((args, kwargs)))
        try:
            with torch.set_grad_enabled(differentiates and torch.is_grad_enabled()):
                return root._call_impl(*args, **kwargs)
        finally:
            self._write_back()
            if self._shares_parameters:
                reshard(self._model)  # otherwise the outermost module keeps its whole weights until the next backward

    def _refresh(self, root: nn.Module) -> None:
        for key, copied in list(self._copies.items()):
            if copied.copy() is None:  # no longer part of the model
                del self._copies[key]
            elif not copied.is_current():
                self._synchronize(copied)
        if self._has_new_modules:
            self._set_eval(root)

    def _set_eval(self, root: nn.Module) -> None:
        root.eval()
        registered = {id(module) for module in root.modules()}
        for copied in list(self._copies.values()):
            made = copied.copy()
            if isinstance(made, nn.Module) and id(made) not in registered:
                made.eval()  # held by a plain attribute, so that the root's eval() does not reach it
        self._has_new_modules, self._in_training = False, root.training  # a model may override train()

    def _copy(self, origin: Any) -> Any:
        """The copy of a module or an object; made at the first request."""
        copied = self._copies.get(id(origin))
        made = copied and copied.copy()
        if made is None:
            if isinstance(origin, jit.ScriptModule):
                raise InvalidArgument(
                    f"valid() can't copy a TorchScript module ({origin.original_name}), whose training flag is part of "
                    "its code; use the module that it was scripted or traced from"
                )
            made = _new(type(origin))
            copied = self._copies[id(origin)] = _Copied(origin, made)  # first, because parts may refer back to it
            self._has_new_modules = self._has_new_modules or isinstance(origin, nn.Module)
            self._synchronize(copied)
        return made

    def _synchronize(self, copied: _Copied) -> None:
        """Copies the attributes of the origin that have changed since the last time."""
        origin, made, first = copied.origin, copied.copy(), not copied.seen
        is_module = isinstance(origin, nn.Module)
        if type(made) is not type(origin):
            object.__setattr__(made, "__class__", type(origin))
        attributes, before = _attributes(origin), copied.seen
        for name in before.keys() - attributes.keys():
            getattr(made, "__dict__", {}).pop(name, None)
        if is_module and (first or not copied.has_same_members()):
            self._copy_members(copied)
        copied.seen, copied.nested = dict(attributes), set()
        for name, value in attributes.items():
            if is_module and name in ("training", "_compiled_call_impl", *_MEMBERS):
                continue  # the copy's own
            if before.get(name, _MISSING) is not value:
                new = self._convert(value)
                if new is not value:
                    copied.nested.add(name)
                    copied.seen[name] = _MISSING  # not the value: a tensor may hold a whole graph
                _set(made, name, new)
                if not is_module:
                    copied.written[name] = new

    def _copy_members(self, copied: _Copied) -> None:
        """Copies the dicts of parameters, buffers, submodules and hooks."""
        origin, made = copied.origin, vars(copied.copy())
        made.setdefault("training", origin.training)
        copied.members = _members(origin)
        for name in _MEMBERS:
            own = vars(origin)[name]
            made[name] = type(own)((key, self._convert(each)) for key, each in list(own.items()))
        if self._shares_parameters:
            made["_parameters"] = origin._parameters
        copied.parameters = tuple(made["_parameters"].values())
        if isinstance(origin, LazyModuleMixin):
            self._initialize_origin_first(copied)

    def _initialize_origin_first(self, copied: _Copied) -> None:
        """Replaces the hook with which a lazy module creates its parameters: the model's own module does that."""

        def initialize(_made: Any, args: Any, kwargs: Any) -> None:
            copied.origin._infer_parameters(copied.origin, args, kwargs)  # removes the hook there
            self._synchronize(copied)

        hooks = copied.copy()._forward_pre_hooks
        for key, hook in hooks.items():
            if getattr(hook, "__func__", None) is cast(Any, LazyModuleMixin)._infer_parameters:
                hooks[key] = initialize

    def _convert(self, value: Any) -> Any:
        return _replace(value, self._leaf, _DEPTH)

    def _leaf(self, value: Any, depth: int) -> Any:
        if isinstance(value, Tensor):
            return self._without_gradient(value, depth)
        if isinstance(value, nn.Module):
            return self._copy(unwrap(value))
        if id(value) in self._copies:
            return self._copy(value)
        parts = list(islice(_attributes(value).values(), _HEAD))
        converted = [_replace(part, self._leaf, depth - 1) for part in parts]
        return value if all(map(is_, converted, parts)) else self._copy(value)  # which finds what was converted

    def _without_gradient(self, tensor: Tensor, depth: int) -> Tensor:
        """The same memory as a tensor that doesn't require gradients; one for each parameter, also a tied one."""
        if is_lazy(tensor) or not (tensor.requires_grad or type(tensor) is nn.Parameter):
            return tensor
        if tensor.grad_fn is not None:  # in a container it stays: a hook may collect tensors there, for the user
            return tensor.detach() if depth == _DEPTH else tensor
        made = self._tensors.get(tensor)
        if made is None or _has_moved(tensor, made):
            made = tensor.detach()
            if isinstance(tensor, nn.Parameter):
                made = nn.Parameter(made, requires_grad=False)
            vars(made).update(vars(tensor))
            self._tensors[tensor] = made
        return made

    def _write_back(self) -> None:
        """Sets what the call has set on copies of objects on the objects too: hooks record what they see in them."""
        objects = [copied for copied in self._copies.values() if copied.written]
        if not objects:
            return
        origins = {id(made): copied.origin for copied in self._copies.values() if (made := copied.copy()) is not None}
        for copied in objects:
            for name, value in _attributes(copied.copy()).items():
                if copied.written.get(name, _MISSING) is not value:
                    _set(copied.origin, name, _replace(value, lambda part, _: origins.get(id(part), part), _DEPTH))
                    copied.written[name] = value


class _Call:
    """What calling a view runs.

    It stands in the private attribute in which `nn.Module.compile` keeps the compiled call, and which `__call__` runs
    if it is set. A copy of a view, and one that was pickled, is an ordinary module in eval mode.
    """

    __slots__ = ("_root", "_view")

    def __init__(self, view: _View, root: nn.Module) -> None:
        self._view, self._root = view, weakref.ref(root)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        root = cast(nn.Module, self._root())  # the caller holds it
        if torch.compiler.is_compiling():
            return root._call_impl(*args, **kwargs)
        return self._view.run(root, args, kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        return None

    def __reduce__(self) -> Any:
        return type(None), ()


def unwrap(module: nn.Module) -> nn.Module:
    """The user's module inside `torch.compile`, DDP and activation checkpointing."""
    while True:
        if isinstance(module, nn.parallel.DistributedDataParallel | nn.DataParallel):
            module = module.module
        elif (name := WRAPPERS.get(type(module).__name__)) is not None:
            module = getattr(module, name)
        else:
            return module


def _members(module: nn.Module) -> tuple[Any, ...]:
    """What a module registers, in dicts that are changed in place."""
    attributes = vars(module)
    return tuple([each for name in _MEMBERS for each in list(attributes[name].values())])


def _has_moved(tensor: Any, made: Any) -> bool:
    """Whether a parameter is in other memory than the view's, after `model.to(...)` say."""
    return tensor is not made and type(tensor) is nn.Parameter and tensor.data_ptr() != made.data_ptr()


def _attributes(thing: Any) -> dict[str, Any]:
    """The attributes of an instance, those in slots included."""
    found = dict(getattr(thing, "__dict__", {}))
    for name in _slots(type(thing)):
        value = getattr(thing, name, _MISSING)
        if value is not _MISSING:
            found[name] = value
    return found


@lru_cache(maxsize=1024)
def _slots(kind: type) -> tuple[str, ...]:
    members = [name for base in kind.__mro__ for name, each in vars(base).items() if type(each) is MemberDescriptorType]
    return tuple(name for name in members if name != "__dict__")


def _set(thing: Any, name: str, value: Any) -> None:
    if name in _slots(type(thing)):
        object.__setattr__(thing, name, value)
    else:
        vars(thing)[name] = value


def _replace(value: Any, leaf: Leaf, depth: int) -> Any:
    """The value with `leaf` applied to every module, tensor and object in it; the very same value if none changes."""
    kind = type(value)
    if kind in _PLAIN or (kind in _BUILT_IN and not value):
        return value
    if kind not in _PROXIES and isinstance(value, Tensor | nn.Module):
        return leaf(value, depth)
    if not depth:
        return value

    def swap(part: Any) -> Any:
        return _replace(part, leaf, depth - 1)

    if isinstance(value, _CONTAINERS):
        return _replace_in_container(value, swap)
    if kind is MethodType:
        owner = swap(value.__self__)
        return value if owner is value.__self__ else MethodType(value.__func__, owner)
    if kind is FunctionType:
        return _replace_in_function(value, swap)
    if kind is partial:
        parts = swap(value.func), swap(value.args), swap(value.keywords)
        if all(map(is_, parts, (value.func, value.args, value.keywords))):
            return value
        made = partial(parts[0], *parts[1], **parts[2])
        vars(made).update(vars(value))
        return made
    if kind is weakref.ref or kind in _PROXIES:
        return _replace_in_reference(value, leaf, depth)
    return leaf(value, depth) if _is_object(kind) else value


def _replace_in_container(value: Any, swap: Callable[[Any], Any]) -> Any:
    base = _container_base(type(value))  # whose methods are used: a subclass may do more in its own
    extra = getattr(value, "__dict__", {})
    keys = _swap_all(dict.keys(value), swap) if base is dict else None
    parts = _swap_all(dict.values(value) if base is dict else base.__iter__(value), swap)
    attributes = _swap_all(extra.values(), swap)
    if keys is None and parts is None and attributes is None:
        return value
    made = copy.copy(value)  # with its attributes, maxlen or default_factory
    if base is dict:
        made.clear()
        made.update(zip(keys or dict.keys(value), parts or dict.values(value), strict=True))
    elif parts is not None and base in (tuple, frozenset):
        made = base.__new__(type(value), parts)
    elif parts is not None:
        made.clear()
        if base is set:
            made.update(parts)
        else:
            made.extend(parts)
    if extra:
        vars(made).update(zip(extra, attributes or extra.values(), strict=True))
    return made


@lru_cache(maxsize=1024)
def _container_base(kind: type) -> Any:
    return next(base for base in _CONTAINERS if issubclass(kind, base))


def _swap_all(parts: Iterable[Any], swap: Callable[[Any], Any]) -> list[Any] | None:
    """The parts with their modules replaced; None if there are none among the first ones."""
    rest = iter(parts)
    head = list(islice(rest, _HEAD))
    swapped = [swap(part) for part in head]
    return None if all(map(is_, swapped, head)) else swapped + [swap(part) for part in rest]


def _replace_in_function(function: Any, swap: Callable[[Any], Any]) -> Any:
    """A function whose closure and default arguments hold other modules."""
    compiled = vars(function).get("_torchdynamo_orig_callable")  # by torch.compile, for the model's own module
    if compiled is not None:
        eager = swap(compiled)
        return function if eager is compiled else eager
    old = function.__closure__ or ()
    cells = tuple([_replace_in_cell(cell, swap) for cell in old])
    defaults, by_name = swap(function.__defaults__), swap(function.__kwdefaults__)
    if all(map(is_, (*cells, defaults, by_name), (*old, function.__defaults__, function.__kwdefaults__))):
        return function
    made = FunctionType(function.__code__, function.__globals__, function.__name__, defaults, cells or None)
    made.__kwdefaults__ = by_name
    vars(made).update(vars(function))
    return made


def _replace_in_cell(cell: CellType, swap: Callable[[Any], Any]) -> CellType:
    try:
        content = cell.cell_contents
    except ValueError:  # not assigned yet
        return cell
    new = swap(content)
    return cell if new is content else CellType(new)  # a cell without modules stays shared, so that `nonlocal` works


def _replace_in_reference(value: Any, leaf: Leaf, depth: int) -> Any:
    """A weak reference or proxy to a module; references to anything else are returned unchanged."""
    try:
        module = value() if type(value) is weakref.ref else value.__init__.__self__
    except ReferenceError:  # it is gone
        return value
    other = leaf(module, depth) if isinstance(module, nn.Module) else module
    if other is module:
        return value
    return weakref.ref(other) if type(value) is weakref.ref else weakref.proxy(other)


def _new(kind: type) -> Any:
    """An instance without attributes; `__init__`, and a `__new__` of the user's own, do not run."""
    return (SimpleNamespace if issubclass(kind, SimpleNamespace) else object).__new__(kind)


@lru_cache(maxsize=1024)
def _is_object(kind: type) -> bool:
    """Whether instances are ordinary objects that can be copied attribute by attribute.

    torch's own are left alone: the state of FSDP and the graphs of `torch.fx` must stay the ones they are.
    """
    if kind.__module__.partition(".")[0] == "torch" or issubclass(kind, type | ModuleType):
        return False
    try:
        _new(kind)
    except TypeError:  # has a state that only C code sees
        return False
    return bool(kind.__dictoffset__ or _slots(kind))
