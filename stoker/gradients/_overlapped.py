"""Gradients that are added up during the backward pass, by torch's DDP."""

import warnings
from typing import Literal

import torch
from torch import Tensor, nn

from stoker._select import named_parameters
from stoker.distributed import World
from stoker.gradients._backward import Differentiator
from stoker.gradients._flat_sum import Weight, as_tensor, different_reductions
from stoker.gradients._gradients import Gradients


class Share:
    """The factor of this process's gradients before they are added up: its weight over that of all processes.

    The factor is NaN if the share counts and its loss is not finite, so that all processes refuse the update. On the
    CPU the backward pass starts from it (`gradient`), which saves a pass over all gradients, unless the loss has 16
    bits. Otherwise `apply_` multiplies the gradients.
    """

    def __init__(self, weight: Weight, loss: Tensor, reduction: Literal["mean", "sum"], world: World) -> None:
        own = as_tensor(weight, loss.device)
        total, of_sums = world.sum(torch.stack([own, own * (reduction == "sum")])).unbind()
        factor = own / total if reduction == "mean" else torch.ones_like(own)
        is_same = (of_sums == 0) | (of_sums == total)  # all ranks add up, or none does
        self.factor = torch.where(loss.detach().reshape(()).isfinite() & is_same, factor, torch.nan)
        self._is_zero = own == 0  # NaN times zero would be NaN
        self.total: Weight = total  # of all processes: a number on the CPU
        self.gradient: Tensor | None = None
        if loss.device.type == "cpu":
            if not is_same:
                raise different_reductions()
            self.total, self._is_zero = total.item(), bool(self._is_zero)
            if not self._is_zero and self.factor.isfinite() and loss.dtype in (torch.float32, torch.float64):
                self.gradient = self.factor.to(loss.dtype)

    def apply_(self, tensor: Tensor) -> Tensor:
        """Multiplies a gradient in place."""
        if self._is_zero is True:
            return tensor.zero_()
        tensor.mul_(self.factor.to(tensor.device))
        if isinstance(self._is_zero, Tensor):
            tensor.masked_fill_(self._is_zero.to(tensor.device), 0)
        return tensor


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
    flat = bucket.buffer() if state.share.gradient is not None else state.share.apply_(bucket.buffer())
    work = torch.distributed.all_reduce(flat, group=state.group, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])  # pyright: ignore[reportOptionalMemberAccess]


class OverlappedReduction:
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
        return self._differentiate(reduced, gradient=share.gradient)
