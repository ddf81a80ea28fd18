"""Copies of a state, taken between two updates, that later updates can't reach while a thread writes them."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from stoker.checkpoint._tree import MOST_DEPTH
from stoker.distributed import from_local as with_local
from stoker.distributed import is_dtensor as is_sharded
from stoker.distributed import to_local as local_of
from stoker.weights import check_tensor

Path: TypeAlias = tuple[Any, ...]  # the keys and places that lead to a tensor


class Copied(NamedTuple):
    """A state to write, and for each GPU that it comes from the event after which its copies are there."""

    state: Mapping[str, Any]
    events: Mapping[torch.device, torch.cuda.Event] = {}

    @contextmanager
    def arrived(self) -> Iterator[Mapping[str, Any]]:
        """The state, for the thread that writes it: it waits for the copies, and the training's stream for nothing."""
        with ExitStack() as streams:
            for device, event in self.events.items():
                event.synchronize()  # sync: this thread with the copies; it lets go of the interpreter meanwhile
                # Of high priority: torch hands out few streams again and again, and a graph may be captured on another.
                streams.enter_context(torch.cuda.stream(torch.cuda.Stream(device, priority=-1)))
            yield self.state


class _Kept(NamedTuple):
    source: torch.device
    copy: Tensor

    def fits(self, tensor: Tensor) -> bool:
        return self.source == tensor.device and self.copy.shape == tensor.shape and self.copy.dtype == tensor.dtype


class Copies:
    """The memory that states are copied into; it is kept, and used again for the next one.

    A tensor on the CPU is copied in memory. One on a GPU is copied on that GPU where there is room, else into pinned
    memory; either way the copy stands in the stream between two updates, and nobody waits for it here.
    """

    def __init__(self) -> None:
        self._kept: dict[Path, _Kept] = {}

    def take(self, state: Mapping[str, Any]) -> Copied:
        """A copy of everything in a state that can change; what the last call gave is overwritten."""
        with torch.inference_mode(False), torch.no_grad():  # a copy made in inference mode couldn't be used again
            found = _tensors_of(state)
            self._kept = {path: each for path, each in self._kept.items() if path in found and each.fits(found[path])}
            self._kept |= _made_for({path: each for path, each in found.items() if path not in self._kept})
            for path, tensor in found.items():
                self._kept[path].copy.copy_(tensor, non_blocking=True)
            gpus = {each.device for each in found.values() if each.is_cuda}
            events = {gpu: _event(gpu) for gpu in gpus}
            return Copied(_replaced(state, lambda path, tensor: _as_was(self._kept[path].copy, tensor)), events)

    def clear(self) -> None:
        """Gives the memory back."""
        self._kept = {}


def sharded_only(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same tree with None for every tensor that is whole: what a rank other than the first has to write."""
    return _replaced(state, lambda _, tensor: tensor if is_sharded(tensor) else None)


def _as_was(copy: Tensor, tensor: Tensor) -> Tensor:
    """The copy of a tensor's own part, sharded as that is."""
    return with_local(copy, tensor) if is_sharded(tensor) else copy


def _event(gpu: torch.device) -> torch.cuda.Event:
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(gpu))
    return event


def _tensors_of(state: Mapping[str, Any]) -> dict[Path, Tensor]:
    found: dict[Path, Tensor] = {}

    def keep(path: Path, tensor: Tensor) -> Tensor:
        check_tensor(".".join(map(str, path)), local_of(tensor))
        found[path] = local_of(tensor).detach()
        return tensor

    _replaced(state, keep)
    return found


def _replaced(tree: Any, by: Callable[[Path, Tensor], Tensor | None], path: Path = ()) -> Any:
    """The same tree in new containers, with each tensor replaced by what is given for its path."""
    if isinstance(tree, Tensor):
        return by(path, tree)
    if len(path) > MOST_DEPTH or hasattr(tree, "_fields"):  # refused by the store, in its words
        return tree
    if isinstance(tree, bytearray):
        return bytes(tree)
    if isinstance(tree, Mapping):
        return {key: _replaced(value, by, (*path, key)) for key, value in tree.items()}
    if not isinstance(tree, list | tuple | deque):
        return tree
    items = [_replaced(value, by, (*path, place)) for place, value in enumerate(tree)]
    if isinstance(tree, deque):
        return deque(items, tree.maxlen)
    return items if isinstance(tree, list) else tuple(items)


def _made_for(tensors: Mapping[Path, Tensor]) -> dict[Path, _Kept]:
    """Memory for copies of these tensors, on each one's device or beside it."""
    made: dict[Path, _Kept] = {}
    for device in {each.device for each in tensors.values()}:
        here = {path: each for path, each in tensors.items() if each.device == device}
        copies = _on_gpu(here, device) if device.type == "cuda" else [_empty(each) for each in here.values()]
        made |= {path: _Kept(device, copy) for path, copy in zip(here, copies, strict=True)}
    return made


def _on_gpu(tensors: Mapping[Path, Tensor], device: torch.device) -> list[Tensor]:
    """On the GPU itself if it has twice the room that is needed, because training needs some too; else pinned."""
    needed = sum(each.nbytes for each in tensors.values())
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if torch.cuda.mem_get_info(device)[0] + unused >= 2 * needed:
        try:
            return [_empty(each, device=device) for each in tensors.values()]
        except torch.OutOfMemoryError:  # room in pieces that are too small
            pass
    return [_empty(each, pin_memory=True) for each in tensors.values()]


def _empty(like: Tensor, device: torch.device | str = "cpu", *, pin_memory: bool = False) -> Tensor:
    return torch.empty(like.shape, dtype=like.dtype, device=device, pin_memory=pin_memory)
