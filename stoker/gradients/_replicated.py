"""Torch's DistributedDataParallel around a model that it never replaces: gradients are added up while they are made."""

import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from stoker._select import named_parameters
from stoker.distributed import World
from stoker.gradients._backward import harvested
from stoker.gradients._gradients import Gradients
from stoker.gradients._weigh import Share


class _Trained(nn.Module):
    """The parameters that DDP watches, without the modules around them: buffers are none of its business.

    All it is shown of a forward is the loss: enough to see which parameters that reaches.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        super().__init__()
        self.trained = nn.ParameterList(parameters)
        # No loss reaches this one. Where all are reached, DDP prints the advice not to look for others.
        self.spare = nn.Parameter(parameters[0].new_zeros(()))

    def forward(self, loss: Tensor) -> Tensor:
        return loss


class _Held:
    """The share that counts now, for a hook that DDP keeps: it must not hold DDP itself."""

    __slots__ = ("group", "share")

    def __init__(self, world: World) -> None:
        self.group = world.group
        self.share: Any = None  # a `Share` from the first backward pass on


def _summed(
    state: _Held,
    bucket: dist.GradBucket,  # pyright: ignore[reportPrivateImportUsage]  DDP checks that it says so
) -> torch.futures.Future[Tensor]:
    """A bucket's share, added to those of the others while the backward pass goes on; a future of the sum."""
    flat = state.share.within(bucket.buffer())
    work: Any = dist.all_reduce(flat, group=state.group, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


class Replicated:
    """Differentiates a loss, and adds the shares of all processes up bucket by bucket, beside the backward pass."""

    __slots__ = ("_ddp", "_held", "_model", "_parameters", "_trained")

    def __init__(self, model: nn.Module, world: World, bucket_mb: float) -> None:
        self._model, self._parameters, self._held = model, named_parameters(model), _Held(world)
        self._trained = [parameter for parameter in self._parameters.values() if parameter.requires_grad]
        self._ddp = nn.parallel.DistributedDataParallel(
            _Trained(self._trained),
            process_group=world.group,
            bucket_cap_mb=bucket_mb,
            # So its buckets stay as they are: every update adds up in the same order, also after a resume.
            find_unused_parameters=True,
            init_sync=False,
        )
        self._ddp.register_comm_hook(self._held, _summed)

    def fits(self) -> bool:
        """Whether the model still trains the parameters that this was made for."""
        trained = [parameter for parameter in self._parameters.values() if parameter.requires_grad]
        return len(trained) == len(self._trained) and all(map(operator.is_, trained, self._trained))

    def __call__(self, loss: Tensor, share: Share) -> Gradients:
        """The gradients of all processes' losses, by their shares."""
        self._held.share = share
        return harvested(self._ddp(loss), self._model, self._parameters)
