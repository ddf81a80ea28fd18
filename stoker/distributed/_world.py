"""The processes that train together, as a value with collectives. With one process the collectives are identities."""

import functools
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, TypeVar
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor

from stoker.distributed._messages import pack, unpack
from stoker.errors import InvalidArgument

T = TypeVar("T")

TIMEOUT = 600.0  # seconds that a rank waits for the others in a collective
# From so many ranks on, they agree in a tree of 2 · log₂(size) messages instead of gloo's ring of 2 · (size - 1). For
# fewer the ring is faster: it passes a message on without returning to Python.
MANY_RANKS = 64
_SHORT = 1016  # bytes of a value that are gathered together with its length
_FEW_RANKS, _SMALL = 4, 2**16  # so many ranks send so many bytes to each other directly

# The tensors of the last messages. A thread of gloo's drops its reference to a message a moment after it has arrived.
# If that were the last reference, freeing the tensor would need the interpreter, which may be shutting down by then,
# and the process would abort.
_recent: deque[Any] = deque(maxlen=8)


class Group:
    """A process group of torch's, with one place from which it can be dropped for all who use it.

    Its threads end with the last reference to it. After the interpreter's shutdown that could abort the process.
    """

    __slots__ = ("__weakref__", "torch")

    def __init__(self, group: Any) -> None:
        self.torch: Any = group  # None after this process has left it
        _groups.add(self)


_groups: WeakSet[Group] = WeakSet()


def set_timeout(seconds: float) -> None:
    """Sets how long a rank waits for the others, in all groups that were made here."""
    for group in list(_groups):
        if group.torch is not None:
            dist.distributed_c10d._set_pg_timeout(timedelta(seconds=seconds), group.torch)


def drop_groups() -> None:
    """Drops all groups that were made here, for all worlds that hold them."""
    for group in list(_groups):
        group.torch = None


@dataclass(frozen=True, slots=True)
class World:
    """The processes that train together, and which of them this is.

    >>> world = World()  # one process
    >>> world.is_first, world.all_gather({"epoch": 1}), float(world.sum(torch.tensor(2.0)))
    (True, [{'epoch': 1}], 2.0)

    Every method is a collective: all ranks call it, in the same order.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    group: Any = None  # torch's process group for tensors on a device; None: the default group
    control: Group | None = None  # a gloo group for what is on the CPU: counts, objects, agreements
    timeout: float = field(default=TIMEOUT, compare=False)  # seconds that a rank waits for the others

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which writes files and shows progress."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of every rank's tensor, as a new one on its device."""
        total = tensor.detach().clone(memory_format=torch.contiguous_format)
        self.start_sum(total)()
        return total

    def start_sum(self, flat: Tensor) -> Callable[[], Any]:
        """Starts to replace a tensor by the sum of every rank's; returns a function that waits until it is there."""
        if self.size == 1:
            return lambda: None
        if not self._sends_directly(flat):
            work: Any = dist.all_reduce(keep_alive(flat), group=self._group_for(flat), async_op=True)
            return work.wait
        wait = self._start_sending(flat)

        def add() -> None:
            first, *others = wait()
            for each in others:  # in the order of the ranks, so that all have the same bits
                first.add_(each)
            if first is not flat:
                flat.copy_(first)

        return add

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Writes rank 0's values into the tensors of all ranks, in few messages."""
        if self.size == 1:
            return
        with torch.no_grad():
            targets = [_without_repeats(tensor) for tensor in tensors]
            for indices in group_into_buckets([tensor.device for tensor in targets], targets, 25):
                flat = keep_alive(torch.cat([_as_bytes(targets[index]) for index in indices]))
                dist.broadcast(flat, group=self._group_for(flat), group_src=0)
                if self.is_first:
                    continue
                parts = flat.split([targets[index].nbytes for index in indices])
                for target, part in zip([targets[index] for index in indices], parts, strict=True):
                    aligned = part.clone()  # for a view of another dtype
                    target.copy_(aligned.view(target.dtype).view(target.shape))

    def all_gather(self, value: Any) -> list[Any]:
        """Every rank's value, in rank order, on every rank.

        A value consists of numbers, strings, bytes and tensors, in lists, tuples and mappings. Tensors arrive on the
        CPU.
        """
        if self.size == 1:
            return [value]
        data = pack(value)
        starts = self._all_gather_bytes(len(data).to_bytes(8, "little") + data[:_SHORT].ljust(_SHORT, b"\0"))
        lengths = [int.from_bytes(start[:8], "little") for start in starts]
        found, longest = [start[8:] for start in starts], max(lengths)
        if longest > _SHORT:
            rests = self._all_gather_bytes(data[_SHORT:].ljust(longest - _SHORT, b"\0"))
            found = [start + rest for start, rest in zip(found, rests, strict=True)]
        return [unpack(each[:length]) for each, length in zip(found, lengths, strict=True)]

    def all_equal(self, value: Any) -> bool:
        """Whether every rank has the same value, by its checksum; for what values, see `all_gather`."""
        if self.size == 1:
            return True
        number = zlib.crc32(pack(value))
        return self.combine([number], lambda one, other: one if one == other else []) != []

    def combine(self, value: T, merge: Callable[[T, T], T]) -> T:
        """Every rank's value, merged in rank order, on every rank; for what values, see `all_gather`.

        `merge` takes the value of some ranks and that of the ranks after them. Many ranks merge in a tree, so that each
        receives few values, and 2 · log₂(size) messages follow one another.
        """
        if self.size < MANY_RANKS:
            return functools.reduce(merge, self.all_gather(value))
        children, parent = _tree(self.rank, self.size)
        if children:
            value = unpack(pack(value))  # on the CPU, as those of the others
        for child in children:
            length = self._receive(torch.zeros(1, dtype=torch.int64), child)
            content = self._receive(torch.empty(int(length), dtype=torch.uint8), child)
            value = merge(value, unpack(content.numpy().tobytes()))
        if parent is not None:
            content = pack(value)
            self._send(torch.tensor([len(content)]), parent)
            self._send(torch.frombuffer(bytearray(content), dtype=torch.uint8), parent)
        return self.broadcast_object(value)

    def _send(self, tensor: Tensor, rank: int) -> None:
        dist.send(keep_alive(tensor), group=self.cpu_group(), group_dst=rank)

    def _receive(self, tensor: Tensor, rank: int) -> Tensor:
        dist.recv(keep_alive(tensor), group=self.cpu_group(), group_src=rank)
        return tensor

    def broadcast_object(self, value: Any) -> Any:
        """Rank 0's value, on every rank; the values of the others are ignored. For what values, see `all_gather`."""
        if self.size == 1:
            return value
        data = pack(value) if self.is_first else b""
        length = keep_alive(torch.tensor([len(data)]))
        dist.broadcast(length, group=self.cpu_group(), group_src=0)
        content = keep_alive(torch.frombuffer(bytearray(data.ljust(int(length), b"\0")), dtype=torch.uint8))
        dist.broadcast(content, group=self.cpu_group(), group_src=0)
        return unpack(content.numpy().tobytes())

    def all(self, flag: bool) -> bool:
        """Whether the flag is True on every rank."""
        return not self.any(not flag)

    def any(self, flag: bool) -> bool:
        """Whether the flag is True on any rank."""
        if self.size == 1:
            return bool(flag)
        found = keep_alive(torch.tensor([int(flag)]))
        if self.size < MANY_RANKS:
            return bool(self.sum(found))
        children, parent = _tree(self.rank, self.size)
        for child in children:
            found |= self._receive(torch.zeros(1, dtype=torch.int64), child)
        if parent is not None:
            self._send(found, parent)
        dist.broadcast(found, group=self.cpu_group(), group_src=0)
        return bool(found)

    def barrier(self) -> None:
        """Waits until every rank is here."""
        self.any(False)

    def with_own_group(self) -> "World":
        """The same ranks with a separate process group, for a thread whose messages must not mix with others."""
        if self.size == 1:
            return self
        made = dist.new_group(backend="gloo", timeout=timedelta(seconds=self.timeout))
        return replace(self, control=Group(made))

    def cpu_group(self) -> Any:
        """Torch's process group for what is on the CPU."""
        if self.control is None or self.control.torch is None:
            raise InvalidArgument(
                f"rank {self.rank} of {self.size} has not joined the others: use the world that "
                "stoker.distributed.join() returns, or call this during or after a fit"
            )
        return self.control.torch

    def _group_for(self, tensor: Tensor) -> Any:
        return self.cpu_group() if tensor.device.type == "cpu" else self.group

    def _sends_directly(self, tensor: Tensor) -> bool:
        """Whether few ranks send a small tensor to each other, without a collective.

        gloo runs collectives in a thread of its own. Waking it, and the caller afterwards, takes longer than the
        message: of two ranks an update of a small model takes 0.7 ms so, and 1.0 ms with `all_reduce`.
        """
        return self.size <= _FEW_RANKS and tensor.nbytes <= _SMALL and tensor.device.type == "cpu"

    def _start_sending(self, row: Tensor) -> Callable[[], list[Tensor]]:
        """Sends a small tensor to all ranks; returns a function that waits for theirs, in the order of the ranks."""
        rows = keep_alive([row if rank == self.rank else torch.empty_like(row) for rank in range(self.size)])
        group = self.cpu_group()
        others = [rank for rank in range(self.size) if rank != self.rank]
        works: list[Any] = [dist.irecv(rows[rank], group=group, group_src=rank) for rank in others]
        works += [dist.isend(row, group=group, group_dst=rank) for rank in others]

        def wait() -> list[Tensor]:
            for work in works:
                work.wait(timedelta(seconds=self.timeout))
            return rows

        return wait

    def _all_gather_bytes(self, data: bytes) -> list[bytes]:
        """Every rank's bytes; all have the same length."""
        row = keep_alive(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        if self._sends_directly(row):
            rows = self._start_sending(row)()
        else:
            rows = keep_alive([torch.empty_like(row) for _ in range(self.size)])
            dist.all_gather(rows, row, group=self.cpu_group())
        return [each.numpy().tobytes() for each in rows]


def _tree(rank: int, size: int) -> tuple[list[int], int | None]:
    """The ranks whose values a rank merges with its own, in this order, and the rank that gets the result.

    >>> [_tree(rank, 6) for rank in range(6)]
    [([1, 2, 4], None), ([], 0), ([3], 0), ([], 2), ([5], 0), ([], 4)]

    Each merges the values of neighbours, so that values stay in rank order.
    """
    children, distance = [], 1
    while distance < size and rank % (2 * distance) == 0:
        if rank + distance < size:
            children.append(rank + distance)
        distance *= 2
    return children, rank - distance if rank else None


def keep_alive(tensors: T) -> T:
    """The tensors of a message, kept until a few later messages were sent."""
    _recent.append(tensors)
    return tensors


def _as_bytes(tensor: Tensor) -> Tensor:
    whole = tensor.detach().contiguous()
    return whole.as_strided((whole.numel(),), (1,)).view(torch.uint8)  # the stride of one element may be anything


def _without_repeats(tensor: Tensor) -> Tensor:
    """A view in which every element has its own memory: an expanded tensor can't be written."""
    if 0 not in tensor.stride():
        return tensor
    return tensor[tuple(slice(None) if stride else slice(1) for stride in tensor.stride())]


def group_into_buckets(kinds: Sequence[Any], tensors: Sequence[Tensor], megabytes: float) -> Iterator[list[int]]:
    """The indices of tensors that are sent together: of one kind, in their order, up to a size."""
    open_buckets: dict[Any, tuple[list[int], int]] = {}
    for index, (kind, tensor) in enumerate(zip(kinds, tensors, strict=True)):
        indices, size = open_buckets.get(kind, ([], 0))
        if indices and size + tensor.nbytes > megabytes * 2**20:
            yield indices
            indices, size = [], 0
        open_buckets[kind] = ([*indices, index], size + tensor.nbytes)
    yield from (indices for indices, _ in open_buckets.values())
