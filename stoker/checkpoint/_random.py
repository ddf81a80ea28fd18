"""The global random generators as a value: Python's, numpy's, torch's, and that of every GPU."""

import random
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor

from stoker.errors import StateMismatch


class Mark(NamedTuple):
    """Where the generators stood; None for one that was not looked at."""

    torch: Tensor
    cuda: list[Tensor]
    python: Any  # as random.getstate gives it
    numpy: Any  # as numpy.random.get_state(legacy=False) gives it


def random_state() -> dict[str, Any]:
    """Where all global generators stand, as tensors and plain values: those of GPUs too, once CUDA is in use.

    >>> state = random_state()
    >>> first = random.random(), torch.rand(()).item()
    >>> set_random_state(state)
    >>> first == (random.random(), torch.rand(()).item())
    True
    """
    return _as_tree(Mark(torch.default_generator.get_state(), _gpus(), random.getstate(), _numpys()))


def set_random_state(state: Mapping[str, Any]) -> None:
    """All global generators as they stood; nothing is changed where a part of the state doesn't fit."""
    wrong: list[str] = []
    setters: list[Callable[[], None]] = []
    for name, prepare in (("torch", _cpu), ("cuda", _cuda), ("python", _python), ("numpy", _arrays)):
        try:
            setters.append(prepare(state[name]))
        except KeyError as error:
            wrong.append(f"{name}: {error} is missing in the state")
        except (TypeError, ValueError, IndexError, RuntimeError, AttributeError, OverflowError) as error:
            wrong.append(f"{name}: {error}")
    if wrong:
        raise StateMismatch("\n  ".join(["this state of the random generators can't be set here", *wrong]))
    for setter in setters:
        setter()


class RandomWatch:
    """Marks where the generators stand, cheaply enough to do it after every update (1 µs on the CPU).

    >>> watch = RandomWatch()
    >>> mark = watch.mark()
    >>> first = torch.rand(()).item()
    >>> set_random_state(watch.state_at(mark))
    >>> first == torch.rand(()).item()
    True

    Python's and numpy's generators cost forty times as much to look at, and most trainings never draw from them. So
    they are looked at now and then (after 1, 2, 4, 8 … marks, and by `state_at`), and belong to every mark from the
    first time on that one has moved since the watch was made.
    """

    __slots__ = ("_marks", "_numpy", "_numpy_moves", "_python", "_python_moves")

    def __init__(self) -> None:
        self._python, self._numpy = random.getstate(), _numpys()
        self._python_moves = self._numpy_moves = False
        self._marks = 0

    def mark(self) -> Mark:
        """Where the generators stand now."""
        self._marks += 1
        if self._marks & (self._marks - 1) == 0:  # a power of two
            self._look()
        python = random.getstate() if self._python_moves else None
        return Mark(torch.default_generator.get_state(), _gpus(), python, _numpys() if self._numpy_moves else None)

    def state_at(self, mark: Mark) -> dict[str, Any] | None:
        """The state at a mark, as `random_state` gives it.

        None where it can't be told: Python's or numpy's generator was not part of the mark, and has moved since.
        """
        self._look()
        if (mark.python is None and self._python_moves) or (mark.numpy is None and self._numpy_moves):
            return None
        return _as_tree(mark._replace(python=mark.python or self._python, numpy=mark.numpy or self._numpy))

    def _look(self) -> None:
        self._python_moves = self._python_moves or random.getstate() != self._python
        self._numpy_moves = self._numpy_moves or not _same(_numpys(), self._numpy)


def _numpys() -> dict[str, Any]:
    return dict(numpy.random.get_state(legacy=False))


def _gpus() -> list[Tensor]:
    return torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(a[name], b[name]) for name in a)
    return numpy.array_equal(a, b) if isinstance(a, numpy.ndarray) else bool(a == b)


def _as_tree(mark: Mark) -> dict[str, Any]:
    version, words, gauss = mark.python
    python = {
        "version": version,
        "words": torch.from_numpy(numpy.array(words, dtype=numpy.uint32)),
        "gauss": gauss,
    }
    return {"python": python, "numpy": _with_tensors(mark.numpy), "torch": mark.torch, "cuda": mark.cuda}


def _with_tensors(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _with_tensors(each) for name, each in value.items()}
    return torch.from_numpy(value) if isinstance(value, numpy.ndarray) else value


def _with_arrays(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _with_arrays(each) for name, each in value.items()}
    return value.cpu().numpy() if isinstance(value, Tensor) else value


# Each takes its part of a state and gives what sets it; a generator of its own has taken it before, as a check.


def _cpu(state: Any) -> Callable[[], None]:
    torch.Generator().set_state(state)
    return lambda: torch.set_rng_state(state)


def _cuda(states: Any) -> Callable[[], None]:
    here = torch.cuda.device_count() if states else 0
    if len(states) > here:
        raise ValueError(
            f"it has the generators of {len(states)} GPUs, and there are {here} here; make as many visible, or go on "
            'without their random numbers: state["cuda"] = []'
        )
    for number, each in enumerate(states):
        torch.Generator(f"cuda:{number}").set_state(each)

    def setter() -> None:
        for number, each in enumerate(states):
            torch.cuda.set_rng_state(each, number)

    return setter


def _python(state: Any) -> Callable[[], None]:
    given = state["version"], tuple(state["words"].tolist()), state["gauss"]
    random.Random().setstate(given)
    return lambda: random.setstate(given)


def _arrays(state: Any) -> Callable[[], None]:
    arrays: Any = numpy.random  # whose stub has no get_bit_generator
    own = type(arrays.get_bit_generator())
    if state["bit_generator"] != own.__name__:
        raise ValueError(
            f"numpy's global generator was a {state['bit_generator']} and is a {own.__name__} here; call "
            "numpy.random.set_bit_generator before"
        )
    given = _with_arrays(state)
    numpy.random.RandomState(own()).set_state(given)
    return lambda: numpy.random.set_state(given)
