"""Many samples to one batch: what the samples have in common is the structure of the batch."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from numbers import Number
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stoker.data._tree import is_namedtuple
from stoker.errors import BadData

Stack = Callable[[list[Tensor]], Tensor]


def collate(samples: Sequence[Any], path: str = "", stack: Stack = torch.stack) -> Any:
    """Stacks samples: tuples to a tuple, mappings to a dict, tensors, arrays and numbers to a tensor.

    >>> collate([(1, 0.5, "a"), (2, 0.25, "b")])
    (tensor([1, 2]), tensor([0.5000, 0.2500]), ['a', 'b'])

    Python's floats get torch's default dtype; arrays and tensors keep theirs. A list of numbers is a row of a tensor.
    `stack` is for who wants the tensors in a memory of his own.
    """
    first = samples[0]
    if isinstance(first, (str, bytes)):
        _same_kind(samples, (str, bytes), path)
        return list(samples)
    if isinstance(first, Tensor):
        _same_kind(samples, Tensor, path)
        return _stacked(samples, path, stack)
    if isinstance(first, (np.ndarray, np.generic)):
        _same_kind(samples, (np.ndarray, np.generic), path)
        return _stacked([_from_array(each, path) for each in samples], path, stack)
    if isinstance(first, Number):
        _same_kind(samples, Number, path)
        return _numbers(samples, path)
    if isinstance(first, Mapping):
        return _mapping(samples, path, stack)
    if dataclasses.is_dataclass(first) and not isinstance(first, type):
        _same_kind(samples, type(first), path)
        names = [field.name for field in dataclasses.fields(first) if field.init]
        parts = {name: collate([getattr(s, name) for s in samples], f"{path}.{name}", stack) for name in names}
        return type(first)(**parts)
    if isinstance(first, (tuple, list)):
        return _sequence(samples, path, stack)
    raise BadData(
        f"a {type(first).__name__}{_at(path)} can't be stacked into a batch; give tensors, arrays, numbers or strings "
        "(transform= can make them), or pass batcher= to say how samples become a batch"
    )


def _sequence(samples: Sequence[Any], path: str, stack: Stack) -> Any:
    first = samples[0]
    _same_kind(samples, type(first), path)
    if isinstance(first, list) and _is_row(first):
        return _stacked([_numbers(each, path) for each in samples], path, stack)
    lengths = {len(each) for each in samples}
    if len(lengths) > 1:
        raise BadData(f"samples have {_listed(lengths)} parts{_at(path)}; {_ADVICE}")
    parts = [collate(together, f"{path}[{place}]", stack) for place, together in enumerate(zip(*samples, strict=True))]
    return type(first)(*parts) if is_namedtuple(first) else type(first)(parts)


def _mapping(samples: Sequence[Any], path: str, stack: Stack) -> dict[Any, Any]:
    _same_kind(samples, Mapping, path)
    names = list(samples[0])
    for each in samples:
        if set(each) != set(names):
            odd = sorted(map(repr, set(each) ^ set(names)))
            raise BadData(f"some samples have {', '.join(odd)}{_at(path)} and some have not; {_ADVICE}")
    return {name: collate([each[name] for each in samples], f"{path}[{name!r}]", stack) for name in names}


def _is_row(value: Any) -> bool:
    """Numbers in a list, or in lists in it: a row, where other lists are parts."""
    return isinstance(value, list) and all(isinstance(each, Number) or _is_row(each) for each in value)


def _numbers(values: Any, path: str) -> Tensor:
    try:
        return torch.tensor(values, device="cpu")
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise BadData(f"numbers{_at(path)} can't be made a tensor ({error}); {_ADVICE}") from None


def _from_array(value: Any, path: str) -> Tensor:
    try:
        return torch.from_numpy(np.array(value))  # a copy: an array may be read-only, and stacking alone costs no less
    except TypeError:
        raise BadData(f"an array of dtype {value.dtype}{_at(path)} can't be made a tensor; {_ADVICE}") from None


def _stacked(tensors: Sequence[Tensor], path: str, stack: Stack) -> Tensor:
    shapes, dtypes = {tuple(each.shape) for each in tensors}, {each.dtype for each in tensors}
    if len(shapes) > 1:
        listed = _listed(str(list(shape)) for shape in sorted(shapes, key=lambda shape: (len(shape), shape)))
        columns = "; if these were meant as columns, put them in a tuple, as in (x, y)" if not path else ""
        raise BadData(
            f"samples have shapes {listed}{_at(path)}, and only equal ones can be stacked; {_ADVICE}{columns}"
        )
    if len(dtypes) > 1:
        listed = _listed(sorted(str(dtype) for dtype in dtypes))
        raise BadData(
            f"samples have dtypes {listed}{_at(path)}, so the batch's would depend on who is in it; {_ADVICE}"
        )
    return stack(list(tensors))


def _same_kind(samples: Sequence[Any], kind: Any, path: str) -> None:
    for each in samples:
        if not isinstance(each, kind):
            names = f"{type(samples[0]).__name__} and {type(each).__name__}"
            raise BadData(f"samples have both {names}{_at(path)}, which don't stack; {_ADVICE}")


_ADVICE = "pass batcher= to say how samples become a batch (with padding, say)"


def _at(path: str) -> str:
    return f" at {path}" if path else ""


def _listed(values: Any) -> str:
    """The first few of them, in words."""
    words = [str(value) for value in values]
    return " and ".join(words[:3]) + (" and others" if len(words) > 3 else "")
