"""The generator of the device, as `torch.cuda` offers it."""

from typing import Any

import torch
from torch import Tensor

from simulated_cuda._backend import backend


def get_rng_state(device: Any = "cuda") -> Tensor:
    backend.raise_if_capturing("reading the state of the generator")
    return backend.generator_state()


def set_rng_state(state: Tensor, device: Any = "cuda") -> None:
    backend.set_generator_state(state)


def get_rng_state_all() -> list[Tensor]:
    return [get_rng_state()]


def set_rng_state_all(states: list[Tensor]) -> None:
    set_rng_state(states[0])


def manual_seed(seed: int) -> None:
    generator = torch.Generator()
    generator.manual_seed(int(seed))
    set_rng_state(generator.get_state())
