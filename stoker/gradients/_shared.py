"""The gradients of a whole batch, out of every process's part of it."""

from collections.abc import Callable
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from stoker._select import named_parameters
from stoker.distributed import World, to_local
from stoker.errors import InvalidArgument
from stoker.gradients._accumulate import Accumulator
from stoker.gradients._backward import harvested
from stoker.gradients._differentiator import Differentiator
from stoker.gradients._gradients import Gradients
from stoker.gradients._parts import Parts
from stoker.gradients._replicated import Replicated
from stoker.gradients._summed import own_values, summed
from stoker.gradients._weigh import Share, readable, share_of, weight_on

T = TypeVar("T")
Mode = Literal["ddp", "values", "fsdp"]
Reduce = Literal["mean", "sum"]


class Shared:
    """Differentiates on many processes: each gives the loss of its part, all get the gradients of the whole batch.

    >>> from stoker.distributed import World
    >>> model = nn.Linear(2, 1)
    >>> shared = Shared(model, World(), mode="values", reduce="mean")
    >>> loss = shared.through(lambda: model(torch.ones(4, 2)).mean())
    >>> shared.backward(loss, weight=4)["weight"], shared.weight
    (tensor([[1., 1.]]), 4.0)

    Weights are what a loss is a mean over (samples, tokens): a part counts by its share of them, and one with weight 0
    counts for nothing, whatever its gradients are (under FSDP they have to be finite). Of a loss that is a sum
    (`reduce="sum"`) the parts are added. Where any part's loss is not finite, all processes get NaN: they refuse the
    same update. Every process has to make the same calls in the same order.

    The mode says how: `"ddp"` reduces while it differentiates, `"values"` afterwards, `"fsdp"` leaves it to a model
    that is sharded already. Losses for a part of the model, and models with sparse gradients (which become dense
    here), go by values in `"ddp"` too.
    """

    __slots__ = (
        "_bucket_mb",
        "_differentiators",
        "_mode",
        "_model",
        "_parameters",
        "_parts",
        "_reduce",
        "_replicated",
        "_world",
        "weight",
    )

    def __init__(self, model: nn.Module, world: World, *, mode: Mode, reduce: Reduce, bucket_mb: float = 25) -> None:
        if mode not in ("ddp", "values", "fsdp"):
            raise InvalidArgument(f'mode is "ddp", "values" or "fsdp", got {mode!r}')
        if reduce not in ("mean", "sum"):
            raise InvalidArgument(f'reduce is "mean" or "sum", got {reduce!r}')
        self._model, self._world, self._bucket_mb = model, world, bucket_mb
        self._reduce: Reduce = reduce
        self._mode: Mode = "values" if mode == "ddp" and (world.size == 1 or _has_sparse(model)) else mode
        self._parameters = named_parameters(model)
        self._differentiators: dict[str | None, Differentiator] = {}
        self._parts: Parts | None = None  # from the first loss for a part on
        self._replicated: Replicated | None = None
        self.weight: float | Tensor = 0.0  # of the last batch or window that was reduced, over all processes

    def through(self, call: Callable[[], T]) -> T:
        """A forward in training: every process starts from the first one's buffers (running statistics)."""
        if self._parts is not None:
            self._parts.at(None)
        self.level()
        return call()

    def level(self) -> None:
        """The first process's buffers on every one."""
        buffers = [to_local(buffer) for buffer in self._model.buffers()]
        if buffers:
            self._world.broadcast(buffers)

    def afterwards(self) -> None:
        """From here on gradients are added up when all of them are there: a program has computed them (`added`)."""
        if self._mode == "ddp":
            self._mode = "values"

    def backward(self, loss: Tensor, weight: float | Tensor, *, part: str | None = None) -> Gradients:
        """The gradients of the whole batch, of all parameters or of a part of them; uses up the loss's graph.

        `weight` of this object is afterwards that of all processes together. Whether to go on with an update is seen
        by the gradients and that weight, which are the same everywhere; the loss is this process's own.
        """
        if part is not None:
            self._parts = self._parts or Parts(self._world)
            self._parts.at(part)
        share = share_of(weight, self._world, self._reduce, loss)
        self.weight = share.whole
        if self._mode == "fsdp":
            # FSDP gives the mean over processes.
            gradient = share.within(torch.full_like(loss.detach(), self._world.size))
            return harvested(loss, self._model, self._parameters, wrt=part, gradient=gradient)
        if self._mode == "ddp" and part is None:
            if self._replicated is None or not self._replicated.fits():
                self._replicated = Replicated(self._model, self._world, self._bucket_mb)
            return self._replicated(loss, share)
        return self._summed(self.local(loss, part=part), share, part)

    def added(self, grads: Gradients, loss: Tensor, weight: float | Tensor) -> Gradients:
        """The gradients of the whole batch, where those of this process's part are known; uses them up.

        To the other processes it is what `backward` is.
        """
        share = share_of(weight, self._world, self._reduce, loss)
        self.weight = share.whole
        return self._summed(grads, share, None)

    def _summed(self, grads: Gradients, share: Share, part: str | None) -> Gradients:
        own = {name: share.within(own_values(tensor)) for name, tensor in grads.use("the sum over processes").items()}
        tensors = summed(own, self._parameters, self._world, bucket_mb=self._bucket_mb, part=part)
        return Gradients._of(tensors, self._parameters, self._model)

    def rest(self) -> None:
        """Lets go of what DDP holds, the process group among it, until the next batch."""
        self._replicated = None

    def local(self, loss: Tensor, *, part: str | None = None) -> Gradients:
        """The gradients of this process's part alone, as they are."""
        differentiate = self._differentiators.get(part)
        if differentiate is None:
            differentiate = self._differentiators[part] = Differentiator(self._model, part)
        return differentiate(loss)

    def closed(self, window: Accumulator) -> tuple[Gradients, float | Tensor]:
        """The mean (or sum) of what all processes' windows hold, and its weight; the window is empty afterwards.

        A process whose window is empty takes part as well. Under FSDP a window holds reduced gradients already.
        """
        if self._mode == "fsdp":
            self.weight = window.held[1]
            return window.take(), self.weight
        weight, sums = window.drained()
        whole = self._world.sum(weight_on(weight, self._device()))
        # Where nothing weighs anything the sums are zeros, and stay so.
        divisor = torch.where(whole == 0, 1, whole) if self._reduce == "mean" else None
        added = summed(sums, self._parameters, self._world, bucket_mb=self._bucket_mb, wide=True)
        tensors = {
            name: (total if divisor is None else total / divisor.to(total.device)).to(self._parameters[name].dtype)
            for name, total in added.items()
        }
        self.weight = readable(whole)
        return Gradients._of(tensors, self._parameters, self._model), self.weight

    def _device(self) -> torch.device:
        return next(iter(self._parameters.values())).device


def _has_sparse(model: nn.Module) -> bool:
    return any(getattr(module, "sparse", False) is True for module in model.modules())
