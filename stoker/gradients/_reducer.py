"""The gradients of a whole batch from every process's share of it."""

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from stoker._select import named_parameters, select_names
from stoker.distributed import World, to_local
from stoker.errors import InvalidArgument
from stoker.gradients._accumulator import Accumulator
from stoker.gradients._backward import Differentiator
from stoker.gradients._flat_sum import FlatSum, Weight
from stoker.gradients._gradients import Gradients
from stoker.gradients._overlapped import OverlappedReduction, Share

T = TypeVar("T")
Reduction = Literal["mean", "sum"]


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

    - `mode="ddp"` reduces gradients during the backward pass, with torch's DDP. Objectives, models
      with sparse gradients (which become dense), and models that fit into one bucket are reduced as in "values".
    - `mode="values"` reduces them after the backward pass, flat (`FlatSum`).
    - `mode="fsdp"` leaves it to a model that reduces them itself: one that is sharded, or that the user has wrapped.
    """

    def __init__(
        self,
        model: nn.Module,
        world: World,
        *,
        mode: Literal["ddp", "values", "fsdp"],
        reduce: Reduction = "mean",
        bucket_mb: float = 25,
    ) -> None:
        if mode not in ("ddp", "values", "fsdp"):
            raise InvalidArgument(f'mode must be "ddp", "values" or "fsdp", got {mode!r}')
        if reduce not in ("mean", "sum"):
            raise InvalidArgument(f'reduce must be "mean" or "sum", got {reduce!r}')
        has_sparse = any(getattr(module, "sparse", False) is True for module in model.modules())
        self._model, self._world, self._bucket_mb = model, world, bucket_mb
        self._reduction: Reduction = reduce
        self._parameters = named_parameters(model)
        # For one bucket, DDP gains nothing: it would send it at the end of the backward pass too.
        is_small = sum(each.nbytes for each in self._parameters.values()) <= bucket_mb * 2**20
        self._mode = "values" if mode == "ddp" and (world.size == 1 or has_sparse or is_small) else mode
        self._differentiators: dict[str | None, Differentiator] = {}
        self._objectives: _ObjectiveCheck | None = None  # from the first objective on
        self._ddp: OverlappedReduction | None = None
        self._flat_sums: dict[str | None, FlatSum] = {}  # by objective
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
        """From now on reduces after the backward pass only: a compiled step calls no hooks of DDP."""
        if self._mode == "ddp":
            self._mode = "values"

    def backward(
        self, loss: Tensor, weight: Weight, *, objective: str | None = None, reduction: Reduction | None = None
    ) -> Gradients:
        """The gradients of the whole batch, for all parameters or for those of an objective. Frees the loss's graph.

        `reduction` says what this loss is, if it is not the `reduce` of all.
        Afterwards `self.weight` is the weight of all shares. It and the gradients are the same in every process, and
        decide about an update; the loss is this process's own.
        """
        if objective is not None:
            self._objectives = self._objectives or _ObjectiveCheck(self._world)
            self._objectives.check(objective)
        if self._mode == "values" or (self._mode == "ddp" and objective is not None):
            return self._sum(self.local(loss, objective=objective), loss, weight, objective, reduction)
        share = Share(weight, loss, reduction or self._reduction, self._world)
        if self._mode == "fsdp":
            gradient = share.apply_(torch.full_like(loss.detach(), self._world.size))  # FSDP averages over processes
            grads = self._differentiator(objective)(loss, gradient=gradient)
        else:
            if self._ddp is None or not self._ddp.is_current():
                self._ddp = OverlappedReduction(self._model, self._world, self._bucket_mb)
            grads = self._ddp.backward(loss, share)
        self.weight = share.total
        return grads

    def local(self, loss: Tensor, *, objective: str | None = None) -> Gradients:
        """The gradients of this process's share alone."""
        return self._differentiator(objective)(loss)

    def _differentiator(self, objective: str | None) -> Differentiator:
        if objective not in self._differentiators:
            # Between forward and backward a sharded model holds other parameters than its own.
            self._differentiators[objective] = Differentiator(
                self._model, objective, parameters=self._parameters, has_reducing_hooks=self._mode == "fsdp"
            )
        return self._differentiators[objective]

    def reduce(
        self, grads: Gradients, loss: Tensor, weight: Weight, *, reduction: Reduction | None = None
    ) -> Gradients:
        """Like `backward`, from the gradients of this process's share, which it consumes."""
        return self._sum(grads, loss, weight, None, reduction)

    def _sum(
        self, grads: Gradients, loss: Tensor, weight: Weight, objective: str | None, reduction: Reduction | None
    ) -> Gradients:
        reduction = reduction or self._reduction
        weight = _on_host(weight) if loss.device.type == "cpu" else weight
        factor: Weight = weight if reduction == "mean" else 1
        # NaN, if the loss is not finite: all processes refuse the update.
        if loss.device.type == "cpu":
            factor = factor if math.isfinite(loss.item()) else math.nan
        else:
            factor = torch.where(loss.detach().reshape(()).isfinite(), factor, torch.nan)
        return self._add_up(grads.use("the sum over processes"), weight, factor, objective, reduction)

    def reduce_window(self, window: Accumulator) -> tuple[Gradients, Weight]:
        """The mean (or sum) of what is in the accumulators of all processes, and its weight; empties the accumulator.

        A process with an empty accumulator takes part as well. Under FSDP it holds reduced gradients already.
        """
        if self._mode == "fsdp":
            self.weight = window.weight
            return window.take(), self.weight
        weight, sums = window.take_sums()  # they are multiplied by their weights
        return self._add_up(sums, _on_host(weight), 1, None, window.reduction), self.weight

    def release(self) -> None:
        """Frees what DDP holds, its process group included, until the next batch."""
        self._ddp = None

    def _add_up(
        self,
        tensors: Mapping[str, Tensor],
        weight: Weight,
        factor: Weight,
        objective: str | None,
        reduction: Reduction,
    ) -> Gradients:
        flat_sum = self._flat_sum(tensors, objective)
        found, self.weight = flat_sum.add_up(tensors, weight, factor, reduction)
        return Gradients._of(found, self._parameters, self._model)

    def _flat_sum(self, tensors: Mapping[str, Tensor], objective: str | None) -> FlatSum:
        """The sum for the parameters that are trained, of an objective if there is one.

        Processes compare these parameters when they change: gradients of different ones must not be added up.
        """
        chosen = None if objective is None else select_names(objective, self._parameters, self._model)
        names = [
            name
            for name, parameter in self._parameters.items()
            if name in tensors or (parameter.requires_grad and (chosen is None or name in chosen))
        ]
        last = self._flat_sums.get(objective)
        if last is None or last.names != names:
            if not self._world.all_equal(names):
                first, *others = self._world.all_gather(names)
                rank = next(rank for rank, each in enumerate(others, start=1) if each != first)
                raise InvalidArgument(
                    f"rank {rank} trains other parameters than rank 0: freeze and unfreeze the same ones on every "
                    "rank, after the same batch"
                )
            parameters = {name: self._parameters[name] for name in names}
            last = self._flat_sums[objective] = FlatSum(parameters, self._world, self._bucket_mb)
        return last


def _on_host(weight: Weight) -> Weight:
    """A number, if that needs no synchronisation."""
    return weight.item() if isinstance(weight, Tensor) and weight.device.type == "cpu" else weight


# --- objectives: all processes must have the same


class _ObjectiveCheck:
    """Compares which objective each process is at.

    It has its own process group, so that a process which has one objective fewer, and is at its next batch
    already, still answers this question, and all can raise. In the common group gloo would abort.
    """

    def __init__(self, world: World) -> None:
        self._world = _with_own_group(world)

    def check(self, objective: str | None) -> None:
        """Raises if another process is at a different objective; None is the next batch."""
        if not self._world.all_equal(objective):
            _raise_different(objective, self._world)


@lru_cache(maxsize=1)  # a group has threads and connections
def _with_own_group(world: World) -> World:
    return world.with_own_group()


def _raise_different(objective: str | None, world: World) -> None:
    parts = [f"an objective for {name!r}" if name else "no further objective" for name in world.all_gather(objective)]
    for rank, other in enumerate(parts):
        if other != parts[0]:
            raise InvalidArgument(
                f"rank 0 has {parts[0]} and rank {rank} has {other}: every rank must yield the same objectives in the "
                "same order. If the samples decide which ones, yield all of them, and multiply unwanted losses by 0"
            )
