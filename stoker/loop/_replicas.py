"""Replicas that are to be the same: whether they still are, at the end of every epoch."""

import torch
from torch import Tensor

from stoker._select import named_parameters
from stoker.errors import StateMismatch
from stoker.loop._fit import Fit

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes


def check_replicas(fit: Fit) -> None:
    """Refuses to go on where a rank's weights are not those of rank 0; a sum of each parameter's bits is compared.

    The device is waited for, once. A model that sees to its ranks itself (in shards, say) is its own business.
    """
    if fit.split.size == 1 or fit.sharded:
        return
    parameters = named_parameters(fit.model)
    if not parameters:
        return
    own = torch.stack([bits_of(parameter) for parameter in parameters.values()]).tolist()
    first, *others = fit.split.all_gather(own)
    for rank, theirs in enumerate(others, start=1):
        apart = [name for name, one, other in zip(parameters, first, theirs, strict=True) if one != other]
        if apart:
            more = f" and {len(apart) - 1} more" if len(apart) > 1 else ""
            raise StateMismatch(
                f"rank {rank} has other weights than rank 0 at the end of epoch {fit.ctx.epoch}: {apart[0]}{more}. "
                "Every rank has to do the same to them: look for a hook that changes gradients, learning rate or "
                "weights by what one rank alone knows (its loss, its random numbers, its clock)"
            )


def bits_of(tensor: Tensor) -> Tensor:
    """The sum of a tensor's bits, taken as whole numbers: [] of int64, on its device.

    >>> bits_of(torch.tensor([0.0, 1.0])).item() == 0x3F800000
    True
    """
    plain = tensor.detach()
    plain = torch.view_as_real(plain.resolve_conj()) if plain.is_complex() else plain
    return plain.view(_INTEGERS[plain.element_size()]).sum(dtype=torch.int64)
