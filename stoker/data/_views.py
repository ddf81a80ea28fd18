"""Small, lazy views of a source: some of it, in another order, or changed sample by sample."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stoker.data._columns import Columns
from stoker.data._order import SPLIT, permutation, seed_of
from stoker.data._source import Source, map_style
from stoker.data._view import Selected, View
from stoker.errors import BadData, InvalidArgument, WrongType


def take(source: Any, which: int | slice | Sequence[int] | Tensor | np.ndarray) -> Source[Any]:
    """The first `which` samples, or those that a slice, numbers or a boolean mask choose.

    >>> len(take(range(10), 3)), list(take(range(10), slice(None, None, 4))), list(take(range(10), [-1, 0]))
    (3, [0, 4, 8], [9, 0])
    """
    base = map_style(source, "take")
    if isinstance(which, bool) or not isinstance(which, (int, slice)):
        return Selected(base, _numbers(which, len(base)))
    if isinstance(which, int) and not 0 < which <= len(base):
        raise InvalidArgument(f"take needs a number from 1 to {len(base)}, the samples that there are; got {which}")
    span = range(len(base))[which if isinstance(which, slice) else slice(which)]
    if len(span) == 0:
        raise BadData(f"{which} chooses none of the {len(base)} samples")
    if isinstance(base, Columns) and span.step == 1:
        return base.narrow(span.start, span.stop)
    return Selected(base, torch.from_numpy(np.arange(span.start, span.stop, span.step)))


def _numbers(which: Any, size: int) -> Tensor:
    """Row numbers in range, out of numbers (negative ones count from the end) or a mask."""
    try:
        numbers = torch.as_tensor(which, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        raise WrongType(f"take needs a number, a slice, numbers or a mask; got {type(which).__name__}") from None
    if numbers.ndim != 1 or numbers.is_floating_point() or numbers.is_complex():
        if numbers.numel() == 0:
            raise BadData(f"an empty choice leaves none of the {size} samples")
        raise WrongType(f"take needs whole numbers or a mask in one dimension; got {numbers.dtype} of {numbers.ndim}")
    if numbers.dtype == torch.bool:
        if len(numbers) != size:
            raise InvalidArgument(f"a mask needs a value for each of the {size} samples; got {len(numbers)}")
        numbers = numbers.nonzero().flatten()
    if len(numbers) == 0:
        raise BadData(f"an empty choice leaves none of the {size} samples")
    low, high = int(numbers.min()), int(numbers.max())
    if low < -size or high >= size:
        raise InvalidArgument(f"there is no sample {high if high >= size else low}: there are {size}")
    return numbers.long().remainder(size)


def shuffled(source: Any, seed: int = 0) -> Source[Any]:
    """The same samples in one other order, which the seed fixes; a loader's `shuffle=` changes it in each epoch.

    >>> sorted(shuffled(range(5), 1)) == list(range(5)), list(shuffled(range(9), 1)) == list(shuffled(range(9), 1))
    (True, True)
    """
    base = map_style(source, "shuffled")
    return Selected(base, permutation(len(base), seed_of("seed", seed), purpose=SPLIT))


def mapped(source: Any, function: Callable[..., Any]) -> Source[Any]:
    """Each sample as `function` gives it back, made when it is asked for.

    >>> list(mapped([1, 2, 3], lambda number: number * 10)), list(mapped([(1, 2), (3, 4)], lambda a, b: a + b))
    ([10, 20, 30], [3, 7])

    The parts of a tuple are passed one by one, as to a loader's `transform=`.
    """
    if not callable(function):
        raise WrongType(f"mapped needs a function of a sample; got {type(function).__name__}")
    return Mapped(map_style(source, "mapped"), function)


def applied(function: Callable[..., Any], sample: Any) -> Any:
    """The one rule for calling a function of a sample: the parts of a tuple are its arguments."""
    return function(*sample) if isinstance(sample, tuple) else function(sample)


class Mapped(View[Any]):
    """Samples through a function."""

    def __init__(self, base: Any, function: Callable[..., Any]) -> None:
        self.base, self.function = base, function

    def __len__(self) -> int:
        return len(self.base)

    def sample(self, number: int) -> Any:
        return applied(self.function, self.base[number])
