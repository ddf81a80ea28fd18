"""The generators that a torch DataLoader draws from beside the global ones: its own, its samplers', its dataset's."""

import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from stoker.errors import StateMismatch

Generator = Any  # of torch, numpy or Python


def _kinds() -> tuple[type, ...]:  # asked for when needed: numpy.random takes some milliseconds to import
    return torch.Generator, np.random.Generator, np.random.RandomState, random.Random


def generators_of(loader: DataLoader[Any]) -> dict[str, Generator]:
    """Every generator once, by where it is kept: `generator`, `sampler.generator`, `dataset.rng`."""
    return dict(_walk(loader, "", set()))


def generators_in(source: object) -> list[str]:
    """The names of the generators that a data set keeps."""
    return list(dict(_walk(source, "", set())))


def _walk(thing: object, prefix: str, seen: set[int]) -> Iterator[tuple[str, Generator]]:
    inside = vars(thing) if hasattr(thing, "__dict__") else {}
    for kinds in (_kinds(), (Sampler, Dataset)):  # its own before those of what it holds, which may be the same
        for name, value in inside.items():
            if not isinstance(value, kinds) or id(value) in seen:
                continue
            seen.add(id(value))
            if isinstance(value, _kinds()):
                yield f"{prefix}{name}", value
            else:
                yield from _walk(value, f"{prefix}{name}.", seen)


def states_of(generators: Mapping[str, Generator]) -> dict[str, Any]:
    """Where each stands, as tensors and plain values."""
    return {name: _state(generator) for name, generator in generators.items()}


def set_states(generators: Mapping[str, Generator], states: Mapping[str, Any]) -> None:
    """Each as it stood; nothing is changed where there are others than before."""
    if set(generators) != set(states):
        here, there = (", ".join(sorted(names)) or "none" for names in (generators, states))
        raise StateMismatch(f"the DataLoader draws from other generators: {there} in the state, {here} here")
    before = states_of(generators)
    for name, generator in generators.items():
        try:
            _set(generator, states[name])
        except (LookupError, TypeError, ValueError, RuntimeError, AttributeError, OverflowError) as error:
            for done in generators:
                _set(generators[done], before[done])
            raise StateMismatch(f"the DataLoader's generator {name!r} can't be set to its state: {error}") from error


def _state(generator: Generator) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        version, words, gauss = generator.getstate()
        return {"version": version, "words": torch.tensor(words), "gauss": gauss}
    if isinstance(generator, np.random.RandomState):
        return _with_tensors(generator.get_state(legacy=False))
    return _with_tensors(generator.bit_generator.state)


def _set(generator: Generator, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, random.Random):
        generator.setstate((state["version"], tuple(state["words"].tolist()), state["gauss"]))
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(_with_arrays(state))
    else:
        generator.bit_generator.state = _with_arrays(state)


def _with_tensors(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _with_tensors(each) for name, each in value.items()}
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def _with_arrays(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _with_arrays(each) for name, each in value.items()}
    return value.numpy() if isinstance(value, Tensor) else value
