"""What a test asks of the simulated device, and sets.

It can be imported on the device only: in a program that the runner has started.
"""

import torch

from simulated_cuda._backend import backend

NO_LIMIT = 2**63


def take_races() -> list[str]:
    """Returns the races that were found since the last call, and forgets them."""
    return backend.take_races()


def live_graphs() -> int:
    """The number of CUDA graphs that exist."""
    return backend.live_graphs()


def operations_of(graph: torch.cuda.CUDAGraph) -> list[str]:
    """The names of the operations that a graph has recorded."""
    return backend.operations_of(graph.id)


def synchronizations() -> int:
    """How often the host has waited for the device so far."""
    return backend.synchronizations()


def operation_counts() -> dict[str, int]:
    """How often each operation was called so far; one that was recorded is counted as `captured <name>`."""
    return backend.operation_counts()


def set_memory_limit(size: int | None) -> None:
    """Sets how many bytes tensors may take together; `None` for as many as the device has."""
    backend.set_allocated_limit(NO_LIMIT if size is None else size)
