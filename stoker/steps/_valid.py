"""`valid(model)`: a copy of the model in eval mode that shares its tensors.

Switching the model itself with `.eval()` would change it for a training in another thread, and `.train()` afterwards
forgets which parts were in eval mode before. So `valid` copies the structure: every module of the view is an instance
of the same class with its own attributes, and `.eval()` is called on the copy. What is copied and what is shared:

- Modules are copied, and so is everything that holds modules: containers, objects, bound methods, closures, hooks.
  In the copies they hold the view's modules.
- Parameters are the same memory as tensors that don't require gradients. Buffers are the same tensors.
- Everything else (numbers, vocabularies, locks, …) is the same object.

A view remembers what it was copied from. If that has changed when it is called, it copies the model again.
`clone_model` copies in the same way, with tensors of its own.
"""

import copy
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterable
from functools import lru_cache, partial
from itertools import chain, islice
from operator import is_
from types import CellType, FunctionType, MemberDescriptorType, MethodType, ModuleType, SimpleNamespace
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, jit, nn
from torch.nn.parameter import is_lazy

from stoker._select import WRAPPERS
from stoker._tree import tensors_in
from stoker.distributed import is_sharded, reshard
from stoker.errors import InvalidArgument, WrongType

M = TypeVar("M", bound=nn.Module)

_DEPTH = 3  # containers and objects inside each other that are searched for modules
_HEAD = 64  # parts of a container that are searched: a vocabulary is not walked through
_PLAIN = frozenset({bool, float, str, bytes, type(None), type, torch.Size, torch.dtype, torch.device})
_WEAK = (weakref.ref, weakref.ProxyType, weakref.CallableProxyType)
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
    the view stay in the view, until the model changes. Buffers that it writes in place are the model's own, as after
    `model.eval()`.

    The parameters of the view don't require gradients, so it records no graph. An input that does require gradients
    gets them through the view; call it under `torch.no_grad()` to prevent that. A forward pass may differentiate with
    respect to its input.

    A view of a model that is compiled or wrapped for DDP is a view of the module inside: it runs eagerly and without
    collectives. Modules are found in attributes, containers, objects, functions and weak references, up to three
    inside each other; numbers that are the `id` of a module are replaced too. A module that code reaches through a
    global variable is the model's own, in training mode.
    """
    if not isinstance(model, nn.Module):
        given = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        raise WrongType(f"valid() takes an instance of torch.nn.Module; got {given}")
    if isinstance(vars(model).get("_compiled_call_impl"), _View):
        return model  # a view already
    origin = unwrap(model)
    root = _new(type(origin))
    _View(origin, root).copy_model(root)
    return cast(M, root)


def clone_model(model: M) -> M:
    """A copy of the model with tensors of its own.

    >>> def make() -> nn.Module:
    ...     model = nn.Sequential(nn.Linear(3, 2))
    ...     model.first = lambda: model[0]
    ...     return model
    >>> clone = clone_model(make())
    >>> clone.first() is clone[0]
    True

    Unlike `copy.deepcopy` it also copies closures, hooks and weak references that hold the model, so that the copy
    never uses the weights of the original. What can't be copied (a lock, an open file) is shared with the model.
    """
    if is_sharded(model):
        return copy.deepcopy(model)  # FSDP raises: it can't be copied
    return cast(M, _Copier(model, clones=True).copy_module(model))


class _View:
    """What calling a view runs.

    It is in the private attribute in which `nn.Module.compile` keeps the compiled call, and which `__call__` runs if
    it is set. A copy of a view, and one that was pickled, is an ordinary module in eval mode.
    """

    __slots__ = ("_copier", "_in_training", "_model", "_parameters", "_root", "_shares_parameters")

    def __init__(self, model: nn.Module, root: nn.Module) -> None:
        self._model = model
        self._root = weakref.ref(root)  # so that a view is freed as soon as it is dropped
        self._shares_parameters = is_sharded(model)  # FSDP2 exchanges the parameters of the model's own modules

    def copy_model(self, root: nn.Module) -> None:
        """Copies the model, as it is now, into the root of the view."""
        copier = _Copier(self._model, shares_parameters=self._shares_parameters)
        vars(root).clear()
        object.__setattr__(root, "__class__", type(self._model))
        copier.copy_module(self._model, root)
        vars(root)["_compiled_call_impl"] = self
        root.eval()
        registered = set(root.modules())
        for module in copier.copied_modules():
            if module not in registered:
                module.eval()  # held by a plain attribute, so that the root's eval() does not reach it
        copier.finish()
        self._copier = copier
        self._in_training = root.training  # a model may override eval()
        self._parameters = list(root.parameters())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        root = cast(nn.Module, self._root())  # the caller holds it
        if torch.compiler.is_compiling():
            return root._call_impl(*args, **kwargs)
        if root.training and not self._in_training:
            raise InvalidArgument(
                f"a view is always in eval mode, and this {type(root).__name__} was switched to training; "
                "train the model itself, not what valid() returned for it"
            )
        if not self._copier.is_current():
            if not self._shares_parameters:
                self._check_not_swapped(root)
            self.copy_model(root)
        # Where nothing requires gradients this changes no result but the last bits: some kernels ask for the grad mode.
        differentiates = not self._shares_parameters and any(
            tensor.requires_grad for tensor in tensors_in((args, kwargs))
        )
        try:
            with torch.set_grad_enabled(differentiates and torch.is_grad_enabled()):
                return root._call_impl(*args, **kwargs)
        finally:
            self._copier.write_back()
            if self._shares_parameters:
                reshard(self._model)  # otherwise the outermost module keeps its whole weights until the next backward

    def _check_not_swapped(self, root: nn.Module) -> None:
        parameters = list(root.parameters())
        if len(parameters) != len(self._parameters) or not all(map(is_, parameters, self._parameters)):
            raise InvalidArgument(
                "the parameters of this view were replaced (by torch.func.functional_call, say), and the model has "
                "changed since the view was made; make a new view with stoker.valid(model)"
            )

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        return None

    def __reduce__(self) -> Any:
        return type(None), ()


class _Copier:
    """Copies modules and what holds them, and remembers what they were copied from."""

    __slots__ = ("_clones", "_copies", "_ids", "_objects", "_origins", "_seen", "_shares_parameters", "_tensors")

    def __init__(self, model: nn.Module, *, shares_parameters: bool = False, clones: bool = False) -> None:
        self._shares_parameters = shares_parameters
        self._clones = clones  # tensors have their own memory
        self._ids = {id(module): module for module in model.modules()}
        self._copies: dict[int, Any] = {}  # by the id of the origin
        self._seen: list[list[Any]] = []  # [origin, its contents when it was copied]
        self._objects: list[tuple[list[Any], Any, dict[str, Any]]] = []  # entry of `_seen`, copy, the copy's attributes
        self._origins: dict[int, Any] = {}  # by the id of the copy, if there are objects
        self._tensors: list[tuple[Tensor, Tensor]] = []  # parameters and their copies

    def copied_modules(self) -> list[nn.Module]:
        return [copied for copied in self._copies.values() if isinstance(copied, nn.Module)]

    def finish(self) -> None:
        """Drops the references to copies, so that a view has no more cycles than its model."""
        if self._objects:
            self._origins = {id(self._copies[id(origin)]): origin for origin, _ in self._seen}
        self._copies.clear()

    def is_current(self) -> bool:
        """Whether nothing has changed since it was copied; a parameter may be in other memory after `model.to(…)`."""
        for tensor, made in self._tensors:
            if tensor.data_ptr() != made.data_ptr():
                return False
        return all(_is_same(seen, _contents(origin)) for origin, seen in self._seen)

    def write_back(self) -> None:
        """Sets what a call has set on copies of objects on the objects too: hooks record what they see in them."""
        for entry, made, given in self._objects:
            for name, value in _attributes(made).items():
                if given.get(name, _MISSING) is not value:
                    _set(entry[0], name, self._origins.get(id(value), value))
                    given[name] = value
            entry[1] = _remember(entry[0])

    def copy_module(self, origin: nn.Module, made: nn.Module | None = None) -> nn.Module:
        if id(origin) in self._copies:
            return self._copies[id(origin)]
        if isinstance(origin, jit.ScriptModule):
            if self._clones:
                return copy.deepcopy(origin)
            raise InvalidArgument(
                f"valid() can't copy a TorchScript module ({origin.original_name}), whose training flag is part of "
                "its code; use the module that it was scripted or traced from"
            )
        made = cast(nn.Module, _new(type(origin))) if made is None else made
        self._add(origin, made)  # first, because parts may refer back to it
        for name, value in list(_attributes(origin).items()):
            if name in _MEMBERS:
                vars(made)[name] = type(value)((key, self.copy(member)) for key, member in list(value.items()))
            elif name != "_compiled_call_impl":
                new = self.copy(value)
                _set(made, name, self._deepcopy(value) if self._clones and new is value else new)
        if self._shares_parameters:
            vars(made)["_parameters"] = origin._parameters
        return made

    def copy(self, value: Any, depth: int = _DEPTH) -> Any:
        """The value with copies of the modules in it; the very same value if it holds none."""
        kind = type(value)
        if kind in _PLAIN or (kind in _BUILT_IN and not value):
            return value
        if kind is int:
            return id(self.copy_module(self._ids[value])) if value in self._ids else value
        if kind in _WEAK:
            return self._copy_reference(value)
        if isinstance(value, Tensor):
            return self._copy_tensor(value, depth)
        if isinstance(value, nn.Module):
            return self.copy_module(unwrap(value))
        if id(value) in self._copies:
            return self._copies[id(value)]
        if not depth:
            return value
        if isinstance(value, _CONTAINERS):
            return self._copy_container(value, depth)
        if kind is MethodType:
            owner = self.copy(value.__self__, depth - 1)
            return value if owner is value.__self__ else MethodType(value.__func__, owner)
        if kind is FunctionType:
            return self._copy_function(value, depth)
        if kind is partial:
            given = [value.func, value.args, value.keywords]
            function, args, keywords = parts = [self.copy(part, depth - 1) for part in given]
            return value if all(map(is_, parts, given)) else partial(function, *args, **keywords)
        return self._copy_object(value, depth) if _is_object(kind) else value

    def _copy_tensor(self, tensor: Tensor, depth: int) -> Tensor:
        """The same memory as a tensor that doesn't require gradients; one for each parameter, also a tied one."""
        if is_lazy(tensor):
            raise InvalidArgument("a parameter has no shape yet (a lazy module): run one batch through the model first")
        if self._clones:
            return self._clone(tensor)
        if not (tensor.requires_grad or type(tensor) is nn.Parameter):
            return tensor
        if tensor.grad_fn is not None:  # in a container it stays: a hook may collect tensors there, for the user
            return tensor.detach() if depth == _DEPTH else tensor
        if id(tensor) not in self._copies:
            made = tensor.detach()
            if isinstance(tensor, nn.Parameter):
                made = nn.Parameter(made, requires_grad=False)
                self._tensors += [(tensor, made)] if type(tensor) is nn.Parameter else []
            vars(made).update(vars(tensor))
            self._copies[id(tensor)] = made
        return self._copies[id(tensor)]

    def _clone(self, tensor: Tensor) -> Tensor:
        made = self._copies.get(id(tensor))
        if made is None:
            made = tensor.detach().clone()
            if isinstance(tensor, nn.Parameter):
                made = nn.Parameter(made, requires_grad=tensor.requires_grad)
            vars(made).update(vars(tensor))
            self._copies[id(tensor)] = made
        return made

    def _deepcopy(self, value: Any) -> Any:
        """A copy of what holds no modules, as `copy.deepcopy` makes it."""
        try:
            return copy.deepcopy(value)
        except Exception:  # a lock, a file, an object whose own method fails
            return value

    def _copy_container(self, value: Any, depth: int) -> Any:
        base = _container_base(type(value))  # whose methods are used: a subclass may do more in its own
        extra = getattr(value, "__dict__", {})
        keys = self._copy_parts(dict.keys(value), depth) if base is dict else None
        parts = self._copy_parts(dict.values(value) if base is dict else base.__iter__(value), depth)
        attributes = self._copy_parts(extra.values(), depth)
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
            (made.update if base is set else made.extend)(parts)
        if extra:
            vars(made).update(zip(extra, attributes or extra.values(), strict=True))
        self._add(value, made)
        return made

    def _copy_parts(self, parts: Iterable[Any], depth: int) -> list[Any] | None:
        """The parts with their modules replaced; None if there are none among the first ones."""
        rest = iter(parts)
        head = list(islice(rest, _HEAD))
        copied = [self.copy(part, depth - 1) for part in head]
        return None if all(map(is_, copied, head)) else copied + [self.copy(part, depth - 1) for part in rest]

    def _copy_object(self, value: Any, depth: int) -> Any:
        attributes = _attributes(value)
        if self._copy_parts(attributes.values(), depth) is None or id(value) in self._copies:
            return self._copies.get(id(value), value)  # parts may have led back to it
        made = _new(type(value))
        entry = self._add(value, made)
        given = {name: self.copy(part, depth - 1) for name, part in attributes.items()}
        for name, part in given.items():
            _set(made, name, part)
        self._objects.append((entry, made, given))
        return made

    def _add(self, origin: Any, made: Any) -> list[Any]:
        entry = [origin, _remember(origin)]
        self._copies[id(origin)] = made
        self._seen.append(entry)
        return entry

    def _copy_function(self, function: Any, depth: int) -> Any:
        """A function whose closure and default arguments hold other modules."""
        compiled = vars(function).get("_torchdynamo_orig_callable")  # by torch.compile, for the model's own module
        if compiled is not None:
            eager = self.copy(compiled, depth - 1)
            return function if eager is compiled else eager
        closure = function.__closure__ or ()
        cells = tuple([self._copy_cell(cell, depth) for cell in closure])
        defaults = self.copy(function.__defaults__, depth - 1)
        by_name = self.copy(function.__kwdefaults__, depth - 1)
        if all(map(is_, (*cells, defaults, by_name), (*closure, function.__defaults__, function.__kwdefaults__))):
            return function
        made = FunctionType(function.__code__, function.__globals__, function.__name__, defaults, cells or None)
        made.__kwdefaults__ = by_name
        vars(made).update(vars(function))
        return made

    def _copy_cell(self, cell: CellType, depth: int) -> CellType:
        try:
            content = cell.cell_contents
        except ValueError:  # not assigned yet
            return cell
        new = self.copy(content, depth - 1)
        return (
            cell if new is content else CellType(new)
        )  # a cell without modules stays shared, so that `nonlocal` works

    def _copy_reference(self, value: Any) -> Any:
        """A weak reference or proxy to a module; references to anything else are returned unchanged."""
        is_reference = type(value) is weakref.ref
        try:
            module = value() if is_reference else value.__init__.__self__
        except ReferenceError:  # it is gone
            return value
        if not isinstance(module, nn.Module):
            return value
        made = self.copy(module)
        return weakref.ref(made) if is_reference else weakref.proxy(made)


def unwrap(module: nn.Module) -> nn.Module:
    """The user's module inside `torch.compile`, DDP and activation checkpointing."""
    while True:
        if isinstance(module, nn.parallel.DistributedDataParallel | nn.DataParallel):
            module = module.module
        elif (name := WRAPPERS.get(type(module).__name__)) is not None:
            module = getattr(module, name)
        else:
            return module


def _contents(thing: Any) -> tuple[Any, ...]:
    """What a module, a container or an object consists of, to be compared by identity."""
    if isinstance(thing, nn.Module):
        attributes = _attributes(thing)
        members = chain.from_iterable([attributes[name].values() for name in _MEMBERS])
        return (type(thing), *attributes.values(), *members)
    if isinstance(thing, dict):
        return (*dict.keys(thing), *dict.values(thing))
    if isinstance(thing, _CONTAINERS):
        return tuple(_container_base(type(thing)).__iter__(thing))
    return tuple(_attributes(thing).values())


def _remember(thing: Any) -> tuple[Any, ...]:
    """The contents, with weak references to tensors that hold a graph."""
    return tuple(
        weakref.ref(part) if isinstance(part, Tensor) and part.grad_fn is not None else part
        for part in _contents(thing)
    )


def _is_same(seen: tuple[Any, ...], contents: tuple[Any, ...]) -> bool:
    if len(seen) != len(contents):
        return False
    if all(map(is_, seen, contents)):
        return True
    pairs = zip(seen, contents, strict=True)
    return all(old is new or (type(old) is weakref.ref and old() is new) for old, new in pairs)


def _attributes(thing: Any) -> dict[str, Any]:
    """The attributes of an instance, those in slots included."""
    state: Any = object.__getstate__(thing)
    if isinstance(state, tuple):
        attributes, slots = state
        return {**(attributes or {}), **slots}
    return state or {}


def _set(thing: Any, name: str, value: Any) -> None:
    if isinstance(getattr(type(thing), name, None), MemberDescriptorType):  # a slot
        object.__setattr__(thing, name, value)
    else:
        vars(thing)[name] = value


@lru_cache(maxsize=1024)
def _container_base(kind: type) -> Any:
    return next(base for base in _CONTAINERS if issubclass(kind, base))


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
    return True
