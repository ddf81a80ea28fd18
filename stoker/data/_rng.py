"""Random numbers of a loader: orders and draws are pure functions of (seed, epoch, number of the sample)."""

import _random
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import c_char
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from stoker.errors import WrongType

# What a key is used for, so that two uses never share a stream of random numbers.
ORDER, SAMPLE, BATCH, STREAM, SPLIT, DRAW, MIX, PART, BUCKET = range(1, 10)

_MASK = 2**64 - 1
T = TypeVar("T")


def random_key(purpose: int, *numbers: int) -> int:
    """Mixes its arguments to a 64-bit number that is the same on every machine.

    A key may take the place of the purpose: `random_key(random_key(p, a), b)` is `random_key(p, a, b)`.
    """
    state = purpose
    for number in numbers:  # the finaliser of splitmix64, once per number: all 64 bits depend on all earlier numbers
        state = (state + 0x9E3779B97F4A7C15 ^ number) & _MASK
        state = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ state >> 27) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


def permutation(size: int, seed: int, *, epoch: int = 0, purpose: int = ORDER) -> Tensor:
    """Returns the numbers below `size` in an order that (seed, epoch) determines: int64, on the CPU."""
    generator = torch.Generator("cpu").manual_seed(random_key(purpose, seed, epoch))
    return torch.randperm(size, generator=generator, device="cpu")


_PART = 2**16  # numbers that are computed at once
_ROUNDS, _WORD, _HALF = 8, np.uint64(64), np.uint64(32)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)  # the constants of splitmix64


@dataclass(frozen=True, eq=False, repr=False)
class LazyPermutation:
    """The numbers below `size` in an order that `key` determines; any part of it is computed without the rest.

    >>> order = LazyPermutation(10**12, 0)
    >>> bool((order[500:600] == order[400:700][100:200]).all())
    True
    >>> sorted(LazyPermutation(5, 0)[:].tolist())
    [0, 1, 2, 3, 4]

    The bits of a place are split in two halves, and each is scrambled in turn by a function of the other, which can be
    undone (a Feistel network): so that no two places get the same number. A number that is not below `size`
    is scrambled again. It takes about 70 µs for a few numbers, and 20 ns each for many.
    """

    size: int
    key: int

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, places: slice) -> Tensor:
        """Returns the numbers at these places: int64, on the CPU."""
        start, stop, step = places.indices(self.size)
        assert step == 1
        found = np.empty(max(stop - start, 0), np.int64)
        for first in range(start, stop, _PART):  # in parts that stay in the cache
            last = min(first + _PART, stop)
            found[first - start : last - start] = self._numbers_at(np.arange(first, last, dtype=np.uint64))
        return torch.from_numpy(found)

    def _numbers_at(self, places: Any) -> Any:
        numbers = self._scramble(places)
        while len(outside := np.flatnonzero(numbers >= self.size)):
            numbers[outside] = self._scramble(numbers[outside])
        return numbers

    def _scramble(self, numbers: Any) -> Any:
        """A permutation of the numbers below the next power of two, at least 4."""
        bits = max((self.size - 1).bit_length(), 2)
        low, high = np.uint64(bits // 2), np.uint64(bits - bits // 2)
        left, right = numbers >> low, numbers & np.uint64(2 ** int(low) - 1)
        for number in range(0, _ROUNDS, 2):
            left ^= _hash(right, self.key, number) >> (_WORD - high)
            right ^= _hash(left, self.key, number + 1) >> (_WORD - low)
        return left << low | right


def _hash(numbers: Any, key: int, place: int) -> Any:
    """Mixes 64-bit numbers; all bits of a number determine the highest bits of the result."""
    mixed = (numbers + np.uint64(random_key(key, place))) * _FIRST
    mixed ^= mixed >> _HALF
    mixed *= _SECOND
    return mixed


# --- the global generators that user code draws from: torch's for the CPU, numpy's and Python's


class TorchGenerator:
    """torch's generator for the CPU; `torch.manual_seed` would also seed CUDA, which belongs to training."""

    seed = staticmethod(torch.default_generator.manual_seed)

    def read(self) -> bytes:
        """Returns the state, as a value that compares."""
        state = torch.default_generator.get_state()
        return _TorchMemory.from_address(state.data_ptr()).raw

    def restore(self, state: Any) -> None:
        torch.default_generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


_TorchMemory = c_char * torch.default_generator.get_state().nbytes
_BYTES = 4 * 624  # of a Mersenne Twister: 624 words; its position in them is 4 bytes more
_Memory = c_char * (_BYTES + 4)


class NumpyGenerator:
    """numpy's global generator. Its words are read from memory: `np.random.get_state` takes about 80 µs."""

    def __init__(self) -> None:
        self._known: tuple[bytes, int, float] | None = None  # the latest state without a cached normal number
        self._generator: Any = None
        self._memory = _Memory()

    def seed(self, number: int) -> None:
        np.random.seed(number & 0xFFFFFFFF)

    def read(self) -> tuple[bytes, int, float]:
        """Returns the state, as a value that compares: words and position, and a normal number that is cached."""
        generator: Any = np.random.get_bit_generator()  # pyright: ignore[reportAttributeAccessIssue]
        if generator is not self._generator:
            if not isinstance(generator, np.random.MT19937):
                raise WrongType(
                    f"numpy's global generator is a {type(generator).__name__}, which can't be seeded for every "
                    "sample; undo np.random.set_bit_generator, or pass it a np.random.MT19937"
                )
            self._generator, self._memory = generator, _Memory.from_address(generator.ctypes.state_address)
        words = self._memory.raw
        # Normal numbers are drawn in pairs, of which the second is cached. While words and position are those of a
        # state without a cached number, nothing was drawn.
        if self._known is None or self._known[0] != words:
            state: Any = np.random.get_state()
            self._known = words, state[3], state[4]
        known = self._known
        if known[1]:
            self._known = None  # using the cached number changes neither words nor position
        return known

    def restore(self, state: Any) -> None:
        words, position = np.frombuffer(state[0][:_BYTES], np.uint32), int.from_bytes(state[0][_BYTES:], sys.byteorder)
        np.random.set_state(("MT19937", words, position, *state[1:]))
        self._known = None


class PythonGenerator:
    """Python's global generator. CPython's is read from memory, if it is as expected: `getstate` takes about 15 µs."""

    def __init__(self) -> None:
        self._generator: Any = random.getrandbits.__self__  # pyright: ignore[reportFunctionMemberAccess]
        self._memory: Any = None
        kind = _random.Random
        if sys.implementation.name == "cpython" and kind.__basicsize__ >= object.__basicsize__ + _BYTES + 4:
            self._memory = _Memory.from_address(id(self._generator) + object.__basicsize__)  # position, then words
            if self._as_state(self.read()) != random.getstate():
                self._memory = None

    def seed(self, number: int) -> None:
        random.seed(number)

    def read(self) -> tuple[Any, ...]:
        """Returns the state, as a value that compares."""
        if self._memory is None:
            return random.getstate()
        return self._memory.raw, self._generator.gauss_next

    def restore(self, state: Any) -> None:
        random.setstate(state if self._memory is None else self._as_state(state))

    def _as_state(self, state: tuple[Any, ...]) -> tuple[Any, ...]:
        position, *words = np.frombuffer(state[0], np.uint32).tolist()
        return 3, (*words, position), state[1]


GENERATORS = (TorchGenerator(), NumpyGenerator(), PythonGenerator())
Generator = TorchGenerator | NumpyGenerator | PythonGenerator


def seed_generators(number: int) -> None:
    """Seeds the global generators."""
    for generator in GENERATORS:
        generator.seed(number)


@contextmanager
def preserve_generators() -> Iterator[None]:
    """Restores the three global generators on exit, whatever was drawn or seeded inside."""
    states = [generator.read() for generator in GENERATORS]
    try:
        yield
    finally:
        _restore_changed(GENERATORS, states)


def _restore_changed(generators: Sequence[Generator], states: list[Any]) -> list[Generator]:
    """Restores the states that have changed, and returns whose."""
    changed = []
    for generator, state in zip(generators, states, strict=True):
        if generator.read() != state:
            generator.restore(state)
            changed.append(generator)
    return changed


class Draws:
    """Notes which global generators some functions draw from, so that only those are seeded for every sample.

    Seeding all three takes as long as reading several small samples. For the first batch, all are seeded. Later the
    states of those that it did not draw from are compared: if one of them has changed, the batch is built again.
    """

    def __init__(self) -> None:
        self._drawn: list[Generator] = []
        self._others: list[Generator] | None = None  # those that were not drawn from; None before the first batch
        self._seeded: list[Any] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return Draws, ()  # in another process the functions may draw from others

    def run(self, build: Callable[[Callable[[int], object] | None], T], *, preserve: bool) -> T:
        """Returns `build(seed)`. `seed` is a function that seeds for a sample, or None if nothing has to be seeded.

        With `preserve`, the states of the generators are restored. `build` may be called twice.
        """
        while True:
            if self._others is None:
                drawn, others, seed = list(GENERATORS), [], self._seed_and_note
            else:
                drawn, others, seed = self._drawn, self._others, self._choose_seed()
            watched = [each.read() for each in others]
            preserved = [each.read() for each in drawn] if preserve and drawn else ()
            built: Any = None
            failure: Exception | None = None
            try:
                built = build(seed)
            except Exception as error:
                failure = error
            finally:
                unexpected = _restore_changed(others, watched)
                if unexpected or self._others is None:
                    self._note()
                    self._drawn = self._drawn + unexpected
                    self._others = [each for each in GENERATORS if each not in self._drawn]
                for generator, state in zip(drawn, preserved, strict=False):
                    generator.restore(state)
            if not unexpected:
                if failure is not None:
                    raise failure
                return built

    def _choose_seed(self) -> Callable[[int], object] | None:
        if len(self._drawn) < 2:  # the usual cases, without a loop
            return self._drawn[0].seed if self._drawn else None
        return self._seed

    def _seed(self, number: int) -> None:
        for generator in self._drawn:
            generator.seed(number)

    def _seed_and_note(self, number: int) -> None:
        self._note()
        seed_generators(number)
        self._seeded = [generator.read() for generator in GENERATORS]

    def _note(self) -> None:
        states = zip(GENERATORS, self._seeded, strict=False)
        self._drawn += [each for each, state in states if each not in self._drawn and each.read() != state]
        self._seeded = []
