"""Other modules in the place of those that a value holds: in lists, bound methods, partials, closures."""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from types import CellType, FunctionType, MethodType
from typing import Any

from torch import Tensor, nn

_PLAIN = frozenset({bool, int, float, str, bytes, type(None), type, Tensor, nn.Parameter})
_HEAD = 64  # a container none of whose first parts holds a module counts as data: a vocabulary is not walked through
_DEPTH = 3  # containers in containers


def replaced(value: Any, change: Callable[[nn.Module], nn.Module], depth: int = _DEPTH) -> Any:
    """The value with every module in it changed; the very same value where there is none, or none changes.

    >>> wide, narrow = nn.Linear(2, 8), nn.Linear(2, 1)
    >>> replaced({"head": [wide, 7]}, lambda module: narrow)
    {'head': [Linear(in_features=2, out_features=1, bias=True), 7]}
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if isinstance(value, nn.Module):
        return change(value)
    walk = _WALKS.get(kind)
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
        if isinstance(value, nn.Module):
            return True
        if type(value) in _WALKS and value:  # most are plain, or empty
            replaced(value, note)
            if found:
                return True
    return False


Swap = Callable[[Any], Any]


def _parts(value: Any, swap: Swap) -> Any:
    if all(swap(part) is part for part in islice(value, _HEAD)):
        return value
    return type(value)(swap(part) for part in value)


def _mapping(value: Any, swap: Swap) -> Any:  # keys stay: a shadow is equal to its module, and so finds them
    if all(swap(part) is part for part in islice(value.values(), _HEAD)):
        return value
    return type(value)((key, swap(part)) for key, part in value.items())


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
    if value.__closure__ is None:
        return value
    cells = tuple(_cell(cell, swap) for cell in value.__closure__)
    if all(cell is old for cell, old in zip(cells, value.__closure__, strict=True)):
        return value
    made = FunctionType(value.__code__, value.__globals__, value.__name__, value.__defaults__, cells)
    made.__kwdefaults__ = value.__kwdefaults__
    made.__dict__.update(value.__dict__)
    return made


def _cell(cell: CellType, swap: Swap) -> CellType:
    try:
        held = cell.cell_contents
    except ValueError:  # not filled yet
        return cell
    seen = swap(held)
    return cell if seen is held else CellType(seen)  # a cell that holds no module stays shared, so `nonlocal` works


_WALKS: dict[type, Callable[[Any, Swap], Any]] = {
    list: _parts,
    tuple: _parts,
    set: _parts,
    frozenset: _parts,
    dict: _mapping,
    OrderedDict: _mapping,
    MethodType: _method,
    partial: _partial,
    FunctionType: _closure,
}
