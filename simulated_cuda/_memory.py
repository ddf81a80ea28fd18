"""What `torch.cuda` says about memory, and pinned memory."""

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor

from simulated_cuda._backend import backend

_SMALL_POOL, _LARGE_POOL = "small", "large"
Device = Any


def memory_allocated(device: Device = None) -> int:
    return backend.memory()["allocated"]


def max_memory_allocated(device: Device = None) -> int:
    return backend.memory()["peak_allocated"]


def memory_reserved(device: Device = None) -> int:
    return backend.memory()["reserved"]


def max_memory_reserved(device: Device = None) -> int:
    return backend.memory()["peak_reserved"]


def reset_peak_memory_stats(device: Device = None) -> None:
    backend.reset_peaks()


def mem_get_info(device: Device = None) -> tuple[int, int]:
    return backend.TOTAL_MEMORY - memory_reserved(), backend.TOTAL_MEMORY


def set_per_process_memory_fraction(fraction: float, device: Device = None) -> None:
    backend.set_reserved_limit(int(fraction * backend.TOTAL_MEMORY))


def memory_stats(device: Device = None) -> dict[str, int]:
    """The numbers of `torch.cuda.memory_stats` that are known here."""
    found = backend.memory()
    stats = {"num_ooms": found["out_of_memory_errors"], "num_alloc_retries": found["retries"]}
    for name in ("allocated", "reserved"):
        stats[f"{name}_bytes.all.current"] = found[name]
        stats[f"{name}_bytes.all.peak"] = found[f"peak_{name}"]
    return stats


def memory_snapshot(*_: Any, **__: Any) -> list[dict[str, Any]]:
    """The segments, as `torch.cuda.memory_snapshot` gives them. The address of a free block is 0."""
    return [_describe_segment(*segment) for segment in backend.segments()]


def _describe_segment(
    pool: int, stream: int, is_small: bool, size: int, pieces: list[tuple[int, int, bool]]
) -> dict[str, Any]:
    # A piece in use without an address is waiting for the streams that use it.
    blocks = [
        {
            "address": address,
            "size": each,
            "requested_size": each,
            "state": "active_allocated" if address else "active_awaiting_free" if is_used else "inactive",
        }
        for address, each, is_used in pieces
    ]
    return {
        "device": 0,
        "address": next((block["address"] for block in blocks if block["address"]), 0),
        "total_size": size,
        "allocated_size": sum(block["size"] for block in blocks if block["address"]),
        "active_size": sum(block["size"] for block in blocks if block["state"] != "inactive"),
        "stream": stream,
        "segment_type": _SMALL_POOL if is_small else _LARGE_POOL,
        "segment_pool_id": (0, pool),
        "blocks": blocks,
    }


def pin_memory(tensor: Tensor, *_: Any, **__: Any) -> Tensor:
    return backend.pinned_copy(tensor.detach())


def with_pinned_memory(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function of torch that makes tensors, with `pin_memory=True`, which a CPU build refuses."""

    @functools.wraps(function)
    def make(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Tensor:
        made = function(*args, **kwargs)
        return backend.pinned_copy(made) if pin_memory else made

    return make
