"""The gradients of a whole batch from every process's share of it."""

import math
import struct
import warnings
import zlib
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from stoker._select import named_parameters, select_names
from stoker.distributed import RequestFlag, World, from_local, group_into_buckets, is_dtensor, to_local
from stoker.errors import InvalidArgument
from stoker.gradients._accumulator import Accumulator, widen
from stoker.gradients._backward import Differentiator, match_layout
from stoker.gradients._gradients import Gradients, as_scalar

T = TypeVar("T")
Weight = float | Tensor

_CHECKED = 256  # objectives that are compared between processes; afterwards they are trusted, as each comparison waits


class GradientReducer:
    """Differentiates in many processes: each gives the loss of its share, all get the gradients of the whole batch.

    >>> from stoker.distributed import World
    >>> model = nn.Linear(2, 1)
    >>> reducer = GradientReducer(model, World(), mode="values", reduce="mean")
    >>> loss = reducer.forward(lambda: model(torch.ones(4, 2)).mean())
    >>> reducer.backward(loss, weight=4)["weight"], reducer.weight
    (tensor([[1., 1.]]), 4.0)

    The weight is what a loss is a mean over (samples, tokens). Shares are weighted by it; a share of weight 0 counts
    for nothing, even if its gradients are NaN (except under FSDP, where they must be finite). For losses that are sums
    (`reduce="sum"`) the shares are added. If any share's loss is not finite, all processes get NaN, so that they
    refuse the same update. All processes must make the same calls in the same order.

    - `mode="ddp"` reduces gradients during the backward pass. Losses for a part of the model, models with sparse
      gradients (which become dense), and models on the CPU that fit into one bucket are reduced afterwards.
    - `mode="values"` reduces them after the backward pass: on the CPU in one message with the weight of the share,
      which parameters were reached, and `request_flag`, if there is one.
    - `mode="fsdp"` leaves it to a model that is sharded.
    """

    def __init__(
        self,
        model: nn.Module,
        world: World,
        *,
        mode: Literal["ddp", "values", "fsdp"],
        reduce: Literal["mean", "sum"],
        bucket_mb: float = 25,
    ) -> None:
        if mode not in ("ddp", "values", "fsdp"):
            raise InvalidArgument(f'mode must be "ddp", "values" or "fsdp", got {mode!r}')
        if reduce not in ("mean", "sum"):
            raise InvalidArgument(f'reduce must be "mean" or "sum", got {reduce!r}')
        has_sparse = any(getattr(module, "sparse", False) is True for module in model.modules())
        self._model, self._world, self._bucket_mb = model, world, bucket_mb
        self.reduction = reduce
        self._parameters = named_parameters(model)
        self._is_on_cpu = all(parameter.device.type == "cpu" for parameter in self._parameters.values())
        # DDP would send one bucket too, at the end of the backward pass, and three small messages beside it.
        is_small = self._is_on_cpu and sum(each.nbytes for each in self._parameters.values()) <= bucket_mb * 2**20
        self._mode = "values" if mode == "ddp" and (world.size == 1 or has_sparse or is_small) else mode
        self._differentiators: dict[str | None, Differentiator] = {}
        self._objectives: _ObjectiveCheck | None = None  # from the first loss for a part of the model on
        self._ddp: _OverlappedReduction | None = None
        self._messages: dict[tuple[str | None, bool], Message] = {}  # the last ones, by part
        self.request_flag: RequestFlag | None = None  # what else to send
        self.weight: Weight = 0.0  # of the last batch or window that was reduced, over all processes

    def forward(self, call: Callable[[], T]) -> T:
        """Runs a forward pass in training; every process starts from rank 0's buffers (running statistics)."""
        self.start_batch()
        return call()

    def start_batch(self) -> None:
        """Comes before a forward pass: compares objectives, and broadcasts rank 0's buffers."""
        if self._objectives is not None:
            self._objectives.check(None)
        self.broadcast_buffers()

    def broadcast_buffers(self) -> None:
        """Writes rank 0's buffers over those of all processes."""
        buffers = [to_local(buffer) for buffer in self._model.buffers()]
        if buffers:
            self._world.broadcast(buffers)

    @property
    def overlaps(self) -> bool:
        """Whether gradients are reduced by DDP during the backward pass."""
        return self._mode == "ddp"

    def reduce_after_backward(self) -> None:
        """Never reduces during the backward pass from now on, because a compiled step computes gradients."""
        if self._mode == "ddp":
            self._mode = "values"

    def backward(self, loss: Tensor, weight: Weight, *, part: str | None = None) -> Gradients:
        """The gradients of the whole batch, for all parameters or for a part of them. Frees the loss's graph.

        Afterwards `self.weight` is the weight of all shares. It and the gradients are the same in every process, and
        decide about an update; the loss is this process's own.
        """
        if part is not None:
            self._objectives = self._objectives or _ObjectiveCheck(self._world)
            self._objectives.check(part)
        if self._mode == "values" or (self._mode == "ddp" and part is not None):
            return self._sum(self.local(loss, part=part), loss, weight, part)
        share = self._share(weight, loss)
        if self._mode == "fsdp":
            gradient = share.apply_(torch.full_like(loss.detach(), self._world.size))  # FSDP averages over processes
            return self._differentiator(part)(loss, gradient=gradient)
        if self._ddp is None or not self._ddp.is_current():
            self._ddp = _OverlappedReduction(self._model, self._world, self._bucket_mb)
        return self._ddp.backward(loss, share)

    def local(self, loss: Tensor, *, part: str | None = None) -> Gradients:
        """The gradients of this process's share alone."""
        return self._differentiator(part)(loss)

    def _differentiator(self, part: str | None) -> Differentiator:
        if part not in self._differentiators:
            # Between forward and backward a sharded model holds other parameters than its own.
            self._differentiators[part] = Differentiator(
                self._model, part, parameters=self._parameters, has_reducing_hooks=self._mode == "fsdp"
            )
        return self._differentiators[part]

    def reduce(self, grads: Gradients, loss: Tensor, weight: Weight) -> Gradients:
        """Like `backward`, from the gradients of this process's share, which it consumes."""
        return self._sum(grads, loss, weight, None)

    def _sum(self, grads: Gradients, loss: Tensor, weight: Weight, part: str | None) -> Gradients:
        tensors = grads.use("the sum over processes")
        if self._is_on_cpu:
            own = {name: to_local(grad.to_dense() if grad.is_sparse else grad) for name, grad in tensors.items()}
            factor, is_finite = float(weight), math.isfinite(loss.item())
            return self._sum_in_one_message(own, factor, part, is_finite=is_finite, are_sums=False)
        share = self._share(weight, loss)
        own = {name: share.apply_(_dense_copy(grad)) for name, grad in tensors.items()}
        return Gradients._of(self._sum_by_name(own, part=part), self._parameters, self._model)

    def reduce_window(self, window: Accumulator) -> tuple[Gradients, Weight]:
        """The mean (or sum) of what is in the accumulators of all processes, and its weight; empties the accumulator.

        A process with an empty accumulator takes part as well. Under FSDP it holds reduced gradients already.
        """
        if self._mode == "fsdp":
            self.weight = window.weight
            return window.take(), self.weight
        weight, sums = window.take_sums()
        if self._is_on_cpu:
            own = {name: to_local(added.to_dense() if added.is_sparse else added) for name, added in sums.items()}
            grads = self._sum_in_one_message(own, float(weight), None, is_finite=True, are_sums=True)
            return grads, self.weight
        total = self._world.sum(_as_tensor(weight, next(iter(self._parameters.values())).device))
        # If everything has weight 0 the sums are zeros, and stay so.
        divisor = torch.where(total == 0, 1, total) if self.reduction == "mean" else None
        tensors = {
            name: (added if divisor is None else added / divisor.to(added.device)).to(self._parameters[name].dtype)
            for name, added in self._sum_by_name(sums, are_sums=True).items()
        }
        self.weight = _as_number(total)
        return Gradients._of(tensors, self._parameters, self._model), self.weight

    def release(self) -> None:
        """Frees what DDP holds, its process group included, until the next batch."""
        self._ddp = None

    def _share(self, weight: Weight, loss: Tensor) -> "Share":
        """This process's share by weight; NaN if it counts and its loss is not finite, so that all refuse the update.

        Sets `self.weight`.
        """
        own = _as_tensor(weight, loss.device)
        total = self._world.sum(own)
        factor = own / total if self.reduction == "mean" else torch.ones_like(own)
        factor = torch.where(loss.detach().reshape(()).isfinite(), factor, torch.nan)
        self.weight = _as_number(total)
        return Share(factor, own == 0 if isinstance(weight, Tensor) else weight == 0)

    def _sum_in_one_message(
        self, own: Mapping[str, Tensor], weight: float, part: str | None, *, is_finite: bool, are_sums: bool
    ) -> Gradients:
        """The mean (or sum) of every process's tensors on the CPU, with everything else that processes have to know.

        `are_sums`: they come from an accumulator, which has multiplied them by their weights, in 32 bits. Every
        process sends a tensor for each parameter that is trained, zeros if it has none, so that all messages are alike.
        Sets `self.weight`.
        """
        if part is not None and not _are_equal(self._world.sum(torch.tensor(_checksums(part))).tolist(), self._world):
            _raise_different(part, self._world)
        message = self._message(own, part, is_wide=are_sums)
        is_mean, flag = self.reduction == "mean", self.request_flag
        header = Header(weight, message.checksum, is_finite, flag is not None and flag.own)
        # For a share that counts for nothing zeros are sent: NaN times zero would be NaN.
        tensors = own if are_sums or weight else {}
        factor = 1 if are_sums or not is_mean else weight
        arrived = message.exchange(header, tensors, factor=factor, reached=own)
        headers = arrived.headers
        _check_layouts(headers)
        if flag is not None:
            flag.receive(any(each.has_request for each in headers))
        self.weight = total = sum(each.weight for each in headers)
        # If everything has weight 0 the sums are zeros, and stay so. NaN: all processes refuse the update.
        is_bad = any(each.weight and not each.is_finite for each in headers)
        found = message.read(arrived, divisor=math.nan if is_bad else total if total and is_mean else 1)
        return Gradients._of(found, self._parameters, self._model)

    def _message(self, own: Mapping[str, Tensor], part: str | None, *, is_wide: bool) -> "Message":
        """A message for the parameters that are trained, of a part of the model if there is one."""
        chosen = None if part is None else select_names(part, self._parameters, self._model)
        names = [
            name
            for name, parameter in self._parameters.items()
            if name in own or (parameter.requires_grad and (chosen is None or name in chosen))
        ]
        last = self._messages.get((part, is_wide))
        if last is None or last.names != names:
            parameters = [self._parameters[name] for name in names]
            last = Message(names, parameters, self._world, self._bucket_mb, is_wide=is_wide)
            self._messages[part, is_wide] = last
        return last

    def _sum_by_name(
        self, tensors: Mapping[str, Tensor], *, are_sums: bool = False, part: str | None = None
    ) -> dict[str, Tensor]:
        """The sum of every process's tensors; what only some processes have counts as zero in the others.

        `are_sums`: they come from an accumulator, which sums 16-bit gradients in 32 bits. `part` is the part of the
        model that they are the gradients of; all processes must have the same.
        """
        flags = torch.tensor([*_checksums(part), *(name in tensors for name in self._parameters)])
        added = self._world.sum(flags).tolist()
        if not _are_equal(added[:2], self._world):
            _raise_different(part, self._world)
        names = [name for name, count in zip(self._parameters, added[2:], strict=True) if count]

        def own(name: str) -> Tensor:
            if name in tensors:
                return tensors[name]
            zeros = torch.zeros_like(self._parameters[name], requires_grad=False)
            return widen(zeros) if are_sums else zeros

        totals = self._world.sum_all([to_local(own(name)) for name in names], bucket_mb=self._bucket_mb)
        return {name: _place(total, self._parameters[name]) for name, total in zip(names, totals, strict=True)}


_HEADER = struct.Struct("<dI??")


class Header(NamedTuple):
    """What each process sends ahead of its gradients on the CPU, in the same message.

    Every process has its own place in it, where the others add zeros. A byte is a number of the gradients' type: any
    type holds 0 to 255 exactly.
    """

    weight: float  # of this process's share
    layout: int  # a checksum of the names of the parameters in the message
    is_finite: bool  # the loss
    has_request: bool  # see `RequestFlag`

    def encode(self, world: World, reached: list[bool], dtype: torch.dtype) -> Tensor:
        """The header as a tensor, and behind it whether each parameter has a gradient."""
        before, after = bytes(_HEADER.size * world.rank), bytes(_HEADER.size * (world.size - world.rank - 1))
        return torch.tensor([*before, *_HEADER.pack(*self), *after, *reached], dtype=dtype)

    @staticmethod
    def decode_all(summed: Tensor, world: World) -> tuple[list["Header"], list[bool]]:
        """The headers of all processes, and whether any of them has a gradient for each parameter."""
        values, length = summed.tolist(), _HEADER.size * world.size
        headers = _HEADER.iter_unpack(bytes(map(int, values[:length])))
        return [Header(*each) for each in headers], [value > 0 for value in values[length:]]


class Arrived(NamedTuple):
    """What a message has brought from all processes."""

    headers: list[Header]
    reached: list[bool]  # for each parameter, whether any process has a gradient
    buckets: list[Tensor]  # the sums


class Message:
    """What processes send each other for an update on the CPU: headers, and a place for each trained parameter.

    `is_wide`: 16-bit gradients are sums in 32 bits. float16 is always sent so: it can't hold products with a weight.
    """

    def __init__(
        self, names: list[str], parameters: list[nn.Parameter], world: World, bucket_mb: float, *, is_wide: bool
    ) -> None:
        self.names, self.checksum = names, zlib.crc32(repr(names).encode())
        self._parameters, self._world = parameters, world
        zeros = [torch.zeros((), dtype=each.dtype) for each in parameters]
        zeros = [widen(each) if is_wide or each.dtype == torch.float16 else each for each in zeros]
        # Of the shape and type that is sent, without memory
        self._zeros = [zero.expand(to_local(each).shape) for zero, each in zip(zeros, parameters, strict=True)]
        self._shapes = [each.shape for each in self._zeros]
        self._sizes = [each.numel() for each in self._zeros]
        buckets = group_into_buckets([each.dtype for each in self._zeros], self._zeros, bucket_mb)
        # The headers come first, together with real numbers if there are any.
        self._buckets = sorted(buckets, key=lambda indices: self._zeros[indices[0]].is_complex())
        if not self._buckets or self._zeros[self._buckets[0][0]].is_complex():
            self._buckets.insert(0, [])
        self._header_type = self._zeros[self._buckets[0][0]].dtype if self._buckets[0] else torch.float32
        self._is_plain = [
            type(each) is nn.Parameter and each.is_contiguous() and each.dtype == sent.dtype
            for each, sent in zip(parameters, self._zeros, strict=True)
        ]

    @torch.no_grad()
    def exchange(
        self, header: Header, tensors: Mapping[str, Tensor], *, factor: float, reached: Collection[str]
    ) -> Arrived:
        """Sends tensors times a factor, zeros for missing ones, and which parameters this process has gradients of."""
        first = header.encode(self._world, [name in reached for name in self.names], self._header_type)
        sent: list[Tensor] = []
        waits: list[Callable[[], Any]] = []
        for number, indices in enumerate(self._buckets):
            start = 0 if number else len(first)
            parts = [tensors.get(self.names[index], self._zeros[index]).reshape(-1) for index in indices]
            parts = [part.to(self._zeros[index].dtype) for index, part in zip(indices, parts, strict=True)]
            sent.append(torch.cat(parts if number else [first, *parts]))
            if factor != 1:
                sent[-1][start:].mul_(factor)
            waits.append(self._world.start_sum(sent[-1]))
        for wait in waits:
            wait()
        headers, reached_anywhere = Header.decode_all(sent[0][: len(first)], self._world)
        return Arrived(headers, reached_anywhere, [sent[0][len(first) :], *sent[1:]])

    def read(self, arrived: Arrived, *, divisor: float) -> dict[str, Tensor]:
        """The sums, divided, for parameters that any process has a gradient of."""
        sums: dict[int, Tensor] = {}
        for indices, flat in zip(self._buckets, arrived.buckets, strict=True):
            if divisor != 1:
                flat.div_(divisor)
            parts = flat.split([self._sizes[index] for index in indices])
            sums |= {index: part.view(self._shapes[index]) for index, part in zip(indices, parts, strict=True)}
        for index, parameter in enumerate(self._parameters):
            if not self._is_plain[index]:
                sums[index] = _place(sums[index].to(parameter.dtype), parameter)
        return {name: sums[index] for index, name in enumerate(self.names) if arrived.reached[index]}


def _check_layouts(headers: list[Header]) -> None:
    """Raises if processes have sent the gradients of different parameters: their sums mean nothing."""
    for rank, each in enumerate(headers):
        if each.layout != headers[0].layout:
            raise InvalidArgument(
                f"rank {rank} trains other parameters than rank 0: freeze and unfreeze the same ones on every rank, "
                "after the same batch"
            )


class Share(NamedTuple):
    """What to multiply this process's gradients with before they are added to those of the others."""

    factor: Tensor  # 0-d, on the device of the loss
    is_zero: bool | Tensor  # whether the share counts for nothing: NaN times zero would be NaN

    def apply_(self, tensor: Tensor) -> Tensor:
        """Multiplies a gradient in place."""
        if self.is_zero is True:
            return tensor.zero_()
        tensor.mul_(self.factor.to(tensor.device))
        if isinstance(self.is_zero, Tensor):
            tensor.masked_fill_(self.is_zero.to(tensor.device), 0)
        return tensor


def _as_tensor(weight: Weight, device: torch.device) -> Tensor:
    """A weight as a new float64 tensor, in which counts of tokens are exact."""
    if isinstance(weight, Tensor):
        return as_scalar(weight.detach(), "a weight").to(device, torch.float64, copy=True)
    return torch.full((), weight, dtype=torch.float64, device=device)  # a copy from the host would synchronise


def _as_number(weight: Tensor) -> Weight:
    """A number if that needs no synchronisation, else the 0-d tensor."""
    return weight.item() if weight.device.type == "cpu" else weight


def _dense_copy(grad: Tensor) -> Tensor:
    return grad.detach().to_dense() if grad.is_sparse else to_local(grad).detach().clone()


def _place(total: Tensor, parameter: nn.Parameter) -> Tensor:
    """A sum with its parameter's strides, sharded like it."""
    return from_local(total, parameter) if is_dtensor(parameter) else match_layout(total, parameter)


# --- objectives: all processes must differentiate for the same part of the model


class _ObjectiveCheck:
    """Compares, during the first batches, which objective each process is at.

    It has its own process group, so that a process which has one objective fewer, and is at its next batch
    already, still answers this question, and all can raise. In the common group gloo would abort.
    """

    def __init__(self, world: World) -> None:
        self._world, self._count = _with_own_group(world), 0

    def check(self, part: str | None) -> None:
        """Raises if another process is at a different objective; None is the next batch."""
        if self._count < _CHECKED:
            self._count += 1
            if not _are_equal(self._world.sum(torch.tensor(_checksums(part))).tolist(), self._world):
                _raise_different(part, self._world)


@lru_cache(maxsize=1)  # a group has threads and connections
def _with_own_group(world: World) -> World:
    return world.with_own_group()


def _checksums(part: str | None) -> list[int]:
    """A number for the part, and its square: added up over processes, they show whether all numbers are equal."""
    number = zlib.crc32(repr(part).encode()) >> 8  # 24 bits: the sum of many squares is exact
    return [number, number * number]


def _are_equal(sums: list[int], world: World) -> bool:
    """Whether the numbers that were added up are equal: then they have no variance."""
    return sums[0] * sums[0] == world.size * sums[1]


def _raise_different(part: str | None, world: World) -> None:
    parts = [f"an objective for {name!r}" if name else "no further objective" for name in world.all_gather(part)]
    for rank, other in enumerate(parts):
        if other != parts[0]:
            raise InvalidArgument(
                f"rank 0 has {parts[0]} and rank {rank} has {other}: every rank must yield the same objectives in the "
                "same order. If the samples decide which ones, yield all of them, and multiply unwanted losses by 0"
            )


# --- reduction during the backward pass


class _TrainedParameters(nn.Module):
    """What DDP wraps: the parameters without their modules, so that it leaves buffers and the forward alone.

    Its forward gets the loss, which is enough for DDP to find the parameters that the loss depends on.
    """

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__()
        self.trained = nn.ParameterList(parameters)

    def forward(self, loss: Tensor) -> Tensor:
        return loss


class _HookState:
    """What the communication hook needs. DDP keeps it, so it must not hold DDP."""

    def __init__(self, world: World) -> None:
        self.group = world.group
        self.share: Share | None = None  # from the first backward on


def _sum_bucket(
    state: _HookState,
    bucket: torch.distributed.GradBucket,  # pyright: ignore[reportPrivateImportUsage]  DDP checks this annotation
) -> torch.futures.Future[Tensor]:
    """DDP's communication hook: adds up this process's share of a bucket with those of the others."""
    assert state.share is not None
    flat = state.share.apply_(bucket.buffer())
    work = torch.distributed.all_reduce(flat, group=state.group, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])  # pyright: ignore[reportOptionalMemberAccess]


class _OverlappedReduction:
    """Adds up gradients bucket by bucket during the backward pass, with torch's DDP around the bare parameters."""

    def __init__(self, model: nn.Module, world: World, bucket_mb: float) -> None:
        parameters = named_parameters(model)
        self._differentiate = Differentiator(model, parameters=parameters, has_reducing_hooks=True)
        self._parameters = list(parameters.values())
        self._requires_grad = [parameter.requires_grad for parameter in self._parameters]
        self._state = _HookState(world)
        self._ddp = nn.parallel.DistributedDataParallel(
            _TrainedParameters([parameter for parameter in self._parameters if parameter.requires_grad]),
            process_group=world.group,
            bucket_cap_mb=bucket_mb,
            # Keeps the buckets as they are, so that every update adds up in the same order, also after a resume.
            find_unused_parameters=True,
            init_sync=False,
        )
        self._ddp.register_comm_hook(self._state, _sum_bucket)

    def is_current(self) -> bool:
        """Whether the same parameters require gradients as when this was made."""
        return self._requires_grad == [parameter.requires_grad for parameter in self._parameters]

    def backward(self, loss: Tensor, share: Share) -> Gradients:
        """The gradients of all processes' losses, each multiplied by its share."""
        self._state.share = share
        with warnings.catch_warnings():  # that a loss which depends on all parameters needs no search for others
            warnings.filterwarnings("ignore", message="find_unused_parameters=True was specified")
            reduced = self._ddp(loss)
        return self._differentiate(reduced)
