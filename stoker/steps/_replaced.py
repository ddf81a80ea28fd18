"""Other modules in the place of those that a value holds: in containers, functions, weak references, objects."""

import copy
import operator
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from itertools import chain, islice
from types import CellType, FunctionType, MethodType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from stoker.steps._objects import Seen, Swap, is_ordinary, seen

_PLAIN = frozenset({bool, int, float, str, bytes, type(None), type, Tensor, nn.Parameter, torch.Size})
_HEAD = 64  # a container none of whose first parts holds a module counts as data: a vocabulary is not walked through
_DEPTH = 3  # containers in containers


def replaced(value: Any, change: Callable[[nn.Module], nn.Module], depth: int = _DEPTH) -> Any:
    """The value with every module in it changed; the very same value where there is none, or none changes.

    >>> wide, narrow = nn.Linear(2, 8), nn.Linear(2, 1)
    >>> replaced({"head": [wide, 7]}, lambda module: narrow)
    {'head': [Linear(in_features=2, out_features=1, bias=True), 7]}

    A container comes back as a copy, an ordinary object as a second one with the same dict. Not looked into: objects
    with `__slots__` or of C code, torch's own, what a class or a function's globals hold, and all that lies deeper.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    walk = _WALKS.get(kind)
    if walk is None:
        if isinstance(value, nn.Module):
            return change(value)
        walk = _walk_for(kind)
    if walk is None or not depth:
        return value
    return walk(value, lambda part: replaced(part, change, depth - 1))


def holds_modules(values: Iterable[Any]) -> bool:
    """Whether `replaced` would find a module in one of the values.

    >>> holds_modules([1, [nn.ReLU()]]), holds_modules([nn.ReLU().forward]), holds_modules([1, [2]])
    (True, True, False)
    """
    found: list[nn.Module] = []

    def note(module: nn.Module) -> nn.Module:
        found.append(module)
        return module

    for value in values:
        if type(value) not in _BUILT_IN or value:  # most are plain, or empty
            replaced(value, note)
            if found:
                return True
    return False


def _parts(value: Any, swap: Swap) -> Any:
    if all(swap(part) is part for part in islice(value, _HEAD)):
        return value
    return type(value)(swap(part) for part in value)


def _mapping(value: Any, swap: Swap) -> Any:  # keys stay: a shadow is equal to its module, and so finds them
    if all(swap(part) is part for part in islice(value.values(), _HEAD)):
        return value
    return type(value)((key, swap(part)) for key, part in value.items())


def _subclass(value: Any, swap: Swap) -> Any:
    """A list, deque, tuple or dict of another class than these: a copy of that class, with its attributes."""
    kind = next(base for base in _OPEN if isinstance(value, base))
    own: dict[str, Any] = getattr(value, "__dict__", {})
    if all(swap(part) is part for part in chain(islice(_inside(value, kind), _HEAD), islice(own.values(), _HEAD))):
        return value
    if kind is tuple:
        made = tuple.__new__(type(value), map(swap, _inside(value, kind)))
    else:
        made = copy.copy(value)
        places = list(dict.keys(value)) if kind is dict else range(len(value))
        for place, part in zip(places, _inside(value, kind), strict=True):
            kind.__setitem__(made, place, swap(part))
    if own:
        vars(made).update({name: swap(part) for name, part in own.items()})
    return made


def _inside(value: Any, kind: Any) -> Iterator[Any]:
    """The parts as `kind` has them: a class of the user's own may do more when it is walked."""
    return iter(dict.values(value)) if kind is dict else kind.__iter__(value)


def _namespace(value: SimpleNamespace, swap: Swap) -> Any:
    if all(swap(part) is part for part in islice(vars(value).values(), _HEAD)):
        return value
    made = copy.copy(value)
    vars(made).update({name: swap(part) for name, part in vars(value).items()})
    return made


def _object(value: Any, swap: Swap) -> Any:
    return seen(value, swap, lambda written: replaced(written, _origin), _HEAD)


def _origin(module: Any) -> Any:
    return getattr(module, "_stoker_origin", module)


def _seen_object(value: Any, swap: Swap) -> Any:
    """Itself, or the object that it shows where nothing would be different in that."""
    return value._stoker_value if _object(value._stoker_value, swap) is value._stoker_value else value


def _reference(value: "weakref.ref[Any]", swap: Swap) -> Any:
    module = value()
    if not isinstance(module, nn.Module):  # what stands in for anything else would be gone at once
        return value
    other = swap(module)
    return value if other is module else weakref.ref(other)


def _proxy(value: Any, swap: Swap) -> Any:
    try:
        module = value.__init__.__self__
    except ReferenceError:  # it is gone
        return value
    other = swap(module) if isinstance(module, nn.Module) else module
    return value if other is module else other


def _method(value: MethodType, swap: Swap) -> Any:
    owner = swap(value.__self__)
    return value if owner is value.__self__ else MethodType(value.__func__, owner)


def _partial(value: "partial[Any]", swap: Swap) -> Any:
    function, args, keywords = swap(value.func), swap(value.args), swap(value.keywords)
    if function is value.func and args is value.args and keywords is value.keywords:
        return value
    made = partial(function, *args, **keywords)
    made.__dict__.update(value.__dict__)
    return made


def _closure(value: FunctionType, swap: Swap) -> Any:
    compiled = value.__dict__.get("_torchdynamo_orig_callable")
    if compiled is not None:  # by torch.compile, for the module that it was bound to; eagerly for the other
        seen = swap(compiled)
        return value if seen is compiled else seen
    old = value.__closure__ or ()
    cells = tuple([_cell(cell, swap) for cell in old])
    defaults, by_name = swap(value.__defaults__), swap(value.__kwdefaults__)
    same = all(map(operator.is_, cells, old))
    if same and defaults is value.__defaults__ and by_name is value.__kwdefaults__:
        return value
    made = FunctionType(value.__code__, value.__globals__, value.__name__, defaults, cells or None)
    made.__kwdefaults__ = by_name
    made.__dict__.update(value.__dict__)
    return made


def _cell(cell: CellType, swap: Swap) -> CellType:
    try:
        held = cell.cell_contents
    except ValueError:  # not filled yet
        return cell
    seen = swap(held)
    return cell if seen is held else CellType(seen)  # a cell that holds no module stays shared, so `nonlocal` works


_BUILT_IN: dict[type, Callable[[Any, Swap], Any]] = {
    list: _parts,
    tuple: _parts,
    set: _parts,
    frozenset: _parts,
    dict: _mapping,
    OrderedDict: _mapping,
}
_WALKS: dict[type, Callable[[Any, Swap], Any]] = {
    **_BUILT_IN,
    MethodType: _method,
    partial: _partial,
    FunctionType: _closure,
    weakref.ref: _reference,
    weakref.ProxyType: _proxy,
    weakref.CallableProxyType: _proxy,
}
_OPEN: tuple[Any, ...] = (list, deque, tuple, dict)  # a class of the user's own may be one of these


@lru_cache(maxsize=1024)
def _walk_for(kind: type) -> Callable[[Any, Swap], Any] | None:
    """How to look into what is of no class in `_WALKS`."""
    if issubclass(kind, Seen):
        return _seen_object
    if issubclass(kind, _OPEN):
        return _subclass
    if issubclass(kind, SimpleNamespace):
        return _namespace
    return _object if is_ordinary(kind) else None
