"""Copies of a state, taken between two updates, for a thread that writes them while the training continues."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from stoker.checkpoint._encoding import MAX_DEPTH
from stoker.distributed import from_local, is_dtensor, to_local
from stoker.weights import check_tensor

Path: TypeAlias = tuple[Any, ...]  # the keys and indices that lead to a tensor


class CopiedState(NamedTuple):
    """A state to write, and for each of its GPUs the event after which the copies are complete."""

    state: Mapping[str, Any]
    events: Mapping[torch.device, torch.cuda.Event] = {}

    @contextmanager
    def wait(self) -> Iterator[Mapping[str, Any]]:
        """Yields the state on the thread that writes it, when the copies are complete; the training does not wait."""
        with ExitStack() as streams:
            for device, event in self.events.items():
                event.synchronize()  # sync: this thread with the copies; it releases the GIL meanwhile
                # High priority: torch reuses a few streams, and a CUDA graph may be captured on one of the others.
                streams.enter_context(torch.cuda.stream(torch.cuda.Stream(device, priority=-1)))
            yield self.state


class _Buffer(NamedTuple):
    """Memory for the copy of one tensor."""

    device: torch.device  # of the tensor
    copy: Tensor

    def fits(self, tensor: Tensor) -> bool:
        return self.device == tensor.device and self.copy.shape == tensor.shape and self.copy.dtype == tensor.dtype


class StateCopier:
    """Copies states into memory that is allocated once and reused.

    A tensor on the CPU is copied there. A tensor on a GPU is copied on that GPU if it has enough free memory, else to
    pinned memory; in both cases the copy is queued on the stream between two updates, and nothing waits for it here.
    """

    def __init__(self) -> None:
        self._buffers: dict[Path, _Buffer] = {}

    def copy(self, state: Mapping[str, Any]) -> CopiedState:
        """Copies everything in a state that can change; overwrites the copy that the previous call returned."""
        found: dict[Path, Tensor] = {}

        def collect(path: Path, tensor: Tensor) -> Tensor:
            check_tensor(".".join(map(str, path)), to_local(tensor))
            found[path] = to_local(tensor).detach()
            return tensor

        with torch.inference_mode(False), torch.no_grad():  # inference tensors could not be overwritten later
            map_tensors(state, collect)
            kept = {path: each for path, each in self._buffers.items() if path in found and each.fits(found[path])}
            self._buffers = kept | _allocate({path: each for path, each in found.items() if path not in kept})
            for path, tensor in found.items():
                self._buffers[path].copy.copy_(tensor, non_blocking=True)
            events: dict[torch.device, torch.cuda.Event] = {}
            for gpu in {each.device for each in found.values() if each.is_cuda}:
                events[gpu] = torch.cuda.Event()
                events[gpu].record(torch.cuda.current_stream(gpu))
            return CopiedState(
                map_tensors(state, lambda path, tensor: from_local(self._buffers[path].copy, tensor)), events
            )

    def clear(self) -> None:
        """Frees the memory."""
        self._buffers = {}


def sharded_only(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same state with `None` for every whole tensor: what ranks other than 0 have to write."""
    return map_tensors(state, lambda _, tensor: tensor if is_dtensor(tensor) else None)


def map_tensors(tree: Any, function: Callable[[Path, Tensor], Tensor | None], path: Path = ()) -> Any:
    """The same tree in new containers, with `function(path, tensor)` in place of each tensor.

    Unlike `stoker._tree` it supports deques, copies bytearrays, and leaves to the store what that refuses.
    """
    if isinstance(tree, Tensor):
        return function(path, tree)
    if len(path) > MAX_DEPTH or hasattr(tree, "_fields"):  # the store raises for these
        return tree
    if isinstance(tree, bytearray):
        return bytes(tree)
    if isinstance(tree, Mapping):
        return {key: map_tensors(value, function, (*path, key)) for key, value in tree.items()}
    if not isinstance(tree, list | tuple | deque):
        return tree
    items = [map_tensors(value, function, (*path, place)) for place, value in enumerate(tree)]
    if isinstance(tree, deque):
        return deque(items, tree.maxlen)
    return items if isinstance(tree, list) else tuple(items)


def _allocate(tensors: Mapping[Path, Tensor]) -> dict[Path, _Buffer]:
    made: dict[Path, _Buffer] = {}
    for device in {each.device for each in tensors.values()}:
        own = {path: each for path, each in tensors.items() if each.device == device}
        copies = _allocate_for_gpu(own, device) if device.type == "cuda" else [_empty(each) for each in own.values()]
        made |= {path: _Buffer(device, copy) for path, copy in zip(own, copies, strict=True)}
    return made


def _allocate_for_gpu(tensors: Mapping[Path, Tensor], device: torch.device) -> list[Tensor]:
    """On the GPU if it has twice the memory that is needed, because the training needs some too; else pinned."""
    needed = sum(each.nbytes for each in tensors.values())
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if torch.cuda.mem_get_info(device)[0] + unused >= 2 * needed:
        try:
            return [_empty(each, device=device) for each in tensors.values()]
        except torch.OutOfMemoryError:  # the free memory is fragmented
            pass
    return [_empty(each, pin_memory=True) for each in tensors.values()]


def _empty(like: Tensor, device: torch.device | str = "cpu", *, pin_memory: bool = False) -> Tensor:
    return torch.empty(like.shape, dtype=like.dtype, device=device, pin_memory=pin_memory)
