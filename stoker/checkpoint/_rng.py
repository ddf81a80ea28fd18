"""The state of the global random generators: Python's, numpy's, torch's, and that of every GPU."""

import random
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor

from stoker._tree import map_leaves, map_tensors
from stoker.errors import StateMismatch


class RandomSnapshot(NamedTuple):
    """The states of the generators; `None` for one that was not read."""

    torch: Tensor
    cuda: list[Tensor]
    python: Any  # of random.getstate
    numpy: Any  # of numpy.random.get_state(legacy=False)


def random_state() -> dict[str, Any]:
    """The states of all global generators as tensors and plain values; those of GPUs too, if CUDA is initialised.

    >>> state = random_state()
    >>> first = random.random(), torch.rand(()).item()
    >>> set_random_state(state)
    >>> first == (random.random(), torch.rand(()).item())
    True
    """
    return _to_state(
        RandomSnapshot(torch.default_generator.get_state(), _cuda_states(), random.getstate(), _numpy_state())
    )


def set_random_state(state: Mapping[str, Any]) -> None:
    """Sets all global generators; raises `StateMismatch` and changes nothing if a part of the state is not valid."""
    problems: list[str] = []
    setters: list[Callable[[], None]] = []
    preparers = {"torch": _prepare_torch, "cuda": _prepare_cuda, "python": _prepare_python, "numpy": _prepare_numpy}
    for name, prepare in preparers.items():
        try:
            setters.append(prepare(state[name]))
        except KeyError as error:
            problems.append(f"{name}: {error} is missing in the state")
        except (TypeError, ValueError, IndexError, RuntimeError, AttributeError, OverflowError) as error:
            problems.append(f"{name}: {error}")
    if problems:
        raise StateMismatch("\n  ".join(["the state of the random generators cannot be set here", *problems]))
    for setter in setters:
        setter()


class RandomWatch:
    """Takes snapshots of the generators that are cheap enough for every update (1 µs on the CPU).

    >>> watch = RandomWatch()
    >>> snapshot = watch.snapshot()
    >>> first = torch.rand(()).item()
    >>> set_random_state(watch.state_at(snapshot))
    >>> first == torch.rand(()).item()
    True

    Reading Python's and numpy's generators takes forty times as long, and most trainings never use them. So they are
    checked only now and then (after 1, 2, 4, 8 … snapshots, and by `state_at`), and are part of every snapshot from
    the first check that finds them changed.
    """

    __slots__ = ("_count", "_numpy", "_numpy_used", "_python", "_python_used")

    def __init__(self) -> None:
        self._python, self._numpy = random.getstate(), _numpy_state()
        self._python_used = self._numpy_used = False
        self._count = 0

    def snapshot(self) -> RandomSnapshot:
        """The current states of the generators."""
        self._count += 1
        if self._count & (self._count - 1) == 0:  # a power of two
            self._check_used()
        python = random.getstate() if self._python_used else None
        array = _numpy_state() if self._numpy_used else None
        return RandomSnapshot(torch.default_generator.get_state(), _cuda_states(), python, array)

    def state_at(self, snapshot: RandomSnapshot) -> dict[str, Any] | None:
        """The state at a snapshot, as `random_state` returns it.

        `None` if it is not known, because Python's or numpy's generator was used but is not part of the snapshot.
        """
        self._check_used()
        if (snapshot.python is None and self._python_used) or (snapshot.numpy is None and self._numpy_used):
            return None
        return _to_state(snapshot._replace(python=snapshot.python or self._python, numpy=snapshot.numpy or self._numpy))

    def _check_used(self) -> None:
        self._python_used = self._python_used or random.getstate() != self._python
        self._numpy_used = self._numpy_used or not _equal(_numpy_state(), self._numpy)


def _numpy_state() -> dict[str, Any]:
    return dict(numpy.random.get_state(legacy=False))


def _cuda_states() -> list[Tensor]:
    return torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_equal(a[name], b[name]) for name in a)
    return numpy.array_equal(a, b) if isinstance(a, numpy.ndarray) else bool(a == b)


def _to_state(snapshot: RandomSnapshot) -> dict[str, Any]:
    version, words, gauss = snapshot.python
    return {
        "python": {
            "version": version,
            "words": torch.from_numpy(numpy.array(words, dtype=numpy.uint32)),
            "gauss": gauss,
        },
        "numpy": map_leaves(_to_tensor, snapshot.numpy),
        "torch": snapshot.torch,
        "cuda": snapshot.cuda,
    }


def _to_tensor(leaf: Any) -> Any:
    return torch.from_numpy(leaf) if isinstance(leaf, numpy.ndarray) else leaf


# Each function checks one part of a state on a new generator, and returns a function that sets the global one.


def _prepare_torch(state: Any) -> Callable[[], None]:
    torch.Generator().set_state(state)
    return lambda: torch.set_rng_state(state)


def _prepare_cuda(states: Any) -> Callable[[], None]:
    count = torch.cuda.device_count() if states else 0
    if len(states) > count:
        raise ValueError(
            f"the state has generators of {len(states)} GPUs, but there are {count}; make as many visible, or continue "
            'without their random numbers: state["cuda"] = []'
        )
    for number, each in enumerate(states):
        torch.Generator(f"cuda:{number}").set_state(each)

    def setter() -> None:
        for number, each in enumerate(states):
            torch.cuda.set_rng_state(each, number)

    return setter


def _prepare_python(state: Any) -> Callable[[], None]:
    given = state["version"], tuple(state["words"].tolist()), state["gauss"]
    random.Random().setstate(given)
    return lambda: random.setstate(given)


def _prepare_numpy(state: Any) -> Callable[[], None]:
    module: Any = numpy.random  # the type stub has no get_bit_generator
    kind = type(module.get_bit_generator())
    if state["bit_generator"] != kind.__name__:
        raise ValueError(
            f"numpy's global generator was a {state['bit_generator']} and is a {kind.__name__} here; call "
            "numpy.random.set_bit_generator first"
        )
    given = map_tensors(lambda tensor: tensor.cpu().numpy(), state)
    numpy.random.RandomState(kind()).set_state(given)
    return lambda: numpy.random.set_state(given)
