"""How much this process's part of a batch counts in the whole. Nothing here waits for the device."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from stoker.distributed import World
from stoker.gradients._clip import single

_WIDE = torch.float64  # counts of tokens stay exact


class Share(NamedTuple):
    """What to multiply this process's gradients with before they are added to those of the others."""

    factor: Tensor  # 0-d, beside the loss
    is_none: bool | Tensor  # whether the part counts for nothing: NaN times zero would be NaN
    whole: float | Tensor  # the weight of all parts: a number on the CPU, else a 0-d tensor on the device

    def within(self, tensor: Tensor) -> Tensor:
        """The share of a gradient, in the gradient's own memory."""
        if self.is_none is True:
            return tensor.zero_()
        tensor.mul_(self.factor.to(tensor.device))
        if isinstance(self.is_none, Tensor):
            tensor.masked_fill_(self.is_none.to(tensor.device), 0)
        return tensor


def share_of(
    weight: float | Tensor,
    world: World,
    reduce: Literal["mean", "sum"],
    loss: Tensor,
) -> Share:
    """This process's share by weight; NaN where its loss counts and is not finite, so that all refuse the update."""
    own = weight_on(weight, loss.device)
    whole = world.sum(own)
    factor = own / whole if reduce == "mean" else torch.ones_like(own)
    factor = torch.where(loss.detach().reshape(()).isfinite(), factor, torch.nan)
    is_none = own == 0 if isinstance(weight, Tensor) else weight == 0
    return Share(factor, is_none, readable(whole))


def weight_on(weight: float | Tensor, device: torch.device) -> Tensor:
    """A weight as a tensor of its own beside the gradients."""
    if isinstance(weight, Tensor):
        return single(weight.detach(), "a weight").to(device, _WIDE, copy=True)
    return torch.full((), weight, dtype=_WIDE, device=device)  # filled there: a copy from the host would be waited for


def readable(weight: Tensor) -> float | Tensor:
    """As a number where that waits for nothing."""
    return weight.item() if weight.device.type == "cpu" else weight
