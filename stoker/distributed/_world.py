"""The processes that train together, as a value: collectives that are identities where there is only one."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, TypeVar
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor

from stoker.distributed._wire import packed, unpacked
from stoker.errors import InvalidArgument

T = TypeVar("T")

TIMEOUT = 600.0  # seconds that a rank waits for the others in a collective

# The tensors of the last messages. A thread of gloo's lets go of a message a moment after it has arrived; were it the
# last to hold a tensor, it would need Python for that, which may be at its end by then, and the process would abort.
_latest: deque[Any] = deque(maxlen=8)


class Group:
    """A process group of torch's, held in one place for all who use it.

    Its threads end when the last reference is gone. Were that after Python's own end, they could abort the process.
    """

    __slots__ = ("__weakref__", "torch")

    def __init__(self, group: Any) -> None:
        self.torch: Any = group  # None when this process has left it
        _groups.add(self)


_groups: WeakSet[Group] = WeakSet()


def wait_for(seconds: float) -> None:
    """How long a rank waits for the others in all groups that were made here."""
    for group in list(_groups):
        if group.torch is not None:
            dist.distributed_c10d._set_pg_timeout(timedelta(seconds=seconds), group.torch)


def let_go() -> None:
    """Ends all groups that were made here, whoever still holds a world."""
    for group in list(_groups):
        group.torch = None


@dataclass(frozen=True, slots=True)
class World:
    """The processes that train together, and which of them this is.

    >>> alone = World()
    >>> alone.is_first, alone.gathered({"epoch": 1}), float(alone.sum(torch.tensor(2.0)))
    (True, [{'epoch': 1}], 2.0)

    Every method is a collective: all ranks call it, in the same order.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    group: Any = None  # torch's process group for tensors on a device; None: its default one
    control: Group | None = None  # gloo's, for what is on the CPU: counts, texts, agreements
    timeout: float = field(default=TIMEOUT, compare=False)  # seconds that a rank waits for the others

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which writes and shows."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of every rank's tensor, as a new one on its device."""
        return self.summed([tensor])[0]

    def summed(self, tensors: Sequence[Tensor], *, bucket_mb: float = 25) -> list[Tensor]:
        """The sum over ranks of each tensor, as new ones.

        They travel in flat buckets of one dtype, so that a thousand small ones cost about as much as a large one. The
        results are views of the buckets.
        """
        if self.size == 1:
            return [tensor.detach().clone() for tensor in tensors]
        results: list[Tensor] = [torch.empty(0)] * len(tensors)
        sent = []
        for places in _buckets([(each.device, each.dtype) for each in tensors], tensors, bucket_mb):
            flat = kept(torch.cat([tensors[place].detach().reshape(-1) for place in places]))
            sent.append((places, flat, dist.all_reduce(flat, group=self._group(flat), async_op=True)))
        for places, flat, work in sent:
            work.wait()
            for place, part in zip(places, flat.split([tensors[each].numel() for each in places]), strict=True):
                results[place] = part.view(tensors[place].shape)
        return results

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Writes rank 0's values into everybody's tensors, in few messages."""
        if self.size == 1:
            return
        with torch.no_grad():
            written = [_once(each) for each in tensors]
            for places in _buckets([each.device for each in written], written, 25):
                flat = kept(torch.cat([_bytes(written[place]) for place in places]))
                dist.broadcast(flat, group=self._group(flat), group_src=0)
                if self.is_first:
                    continue
                offset = 0  # bytes
                for place in places:
                    target = written[place]
                    part = flat[offset : offset + target.nbytes].clone()  # a view of another dtype must be aligned
                    target.copy_(part.view(target.dtype).view(target.shape))
                    offset += target.nbytes

    def gathered(self, value: Any) -> list[Any]:
        """Every rank's value, in rank order, on every rank.

        A value is numbers, texts, bytes and tensors, and lists, tuples and mappings of them. From other processes,
        tensors come on the CPU.
        """
        if self.size == 1:
            return [value]
        data = packed(value)
        lengths = self._rows(torch.tensor([len(data)]))
        longest = max(int(length) for length in lengths)
        rows = self._rows(torch.frombuffer(bytearray(data.ljust(longest, b"\0")), dtype=torch.uint8))
        return [unpacked(row[: int(length)].numpy().tobytes()) for row, length in zip(rows, lengths, strict=True)]

    def told(self, value: Any) -> Any:
        """Rank 0's value, on every rank; what the others give does not matter."""
        if self.size == 1:
            return value
        data = packed(value) if self.is_first else b""
        length = kept(torch.tensor([len(data)]))
        dist.broadcast(length, group=self.texts(), group_src=0)
        content = kept(torch.frombuffer(bytearray(data.ljust(int(length), b"\0")), dtype=torch.uint8))
        dist.broadcast(content, group=self.texts(), group_src=0)
        return unpacked(content.numpy().tobytes())

    def all(self, flag: bool) -> bool:
        """Whether it is so on every rank."""
        return not self.any(not flag)

    def any(self, flag: bool) -> bool:
        """Whether it is so on any rank."""
        if self.size == 1:
            return bool(flag)
        found = kept(torch.tensor([int(flag)]))
        dist.all_reduce(found, op=dist.ReduceOp.MAX, group=self.texts())
        return bool(found)

    def barrier(self) -> None:
        """Waits until every rank is here."""
        self.any(False)

    def apart(self) -> "World":
        """The same ranks with a group of their own, for a thread whose messages don't mix with others."""
        if self.size == 1:
            return self
        made = dist.new_group(backend="gloo", timeout=timedelta(seconds=self.timeout))
        return replace(self, control=Group(made))

    def _rows(self, row: Tensor) -> list[Tensor]:
        """Every rank's tensor of the same shape."""
        rows, row = kept([torch.empty_like(row) for _ in range(self.size)]), kept(row)
        dist.all_gather(rows, row, group=self.texts())
        return rows

    def _group(self, tensor: Tensor) -> Any:
        return self.texts() if tensor.device.type == "cpu" else self.group

    def texts(self) -> Any:
        """Torch's group for what is on the CPU."""
        if self.control is None or self.control.torch is None:
            raise InvalidArgument(
                f"rank {self.rank} of {self.size} has not met the others yet: ask stoker.distributed.joined() for the "
                "world, or do it in or after a fit"
            )
        return self.control.torch


def kept(tensors: T) -> T:
    """The tensors of a message, which are not let go of before some later ones."""
    _latest.append(tensors)
    return tensors


def _bytes(tensor: Tensor) -> Tensor:
    whole = tensor.detach().contiguous()
    return whole.as_strided((whole.numel(),), (1,)).view(torch.uint8)  # of one element, the stride may be anything


def _once(tensor: Tensor) -> Tensor:
    """A view with each place in memory once: what was expanded can't be written as it is."""
    if 0 not in tensor.stride():
        return tensor
    return tensor[tuple(slice(None) if stride else slice(1) for stride in tensor.stride())]


def _buckets(kinds: Sequence[Any], tensors: Sequence[Tensor], megabytes: float) -> Iterator[list[int]]:
    """The places of tensors that travel together: of one kind, in their order, not more than so large."""
    filling: dict[Any, tuple[list[int], int]] = {}
    for place, (kind, tensor) in enumerate(zip(kinds, tensors, strict=True)):
        places, held = filling.get(kind, ([], 0))
        if places and held + tensor.nbytes > megabytes * 2**20:
            yield places
            places, held = [], 0
        filling[kind] = ([*places, place], held + tensor.nbytes)
    yield from (places for places, _ in filling.values())
