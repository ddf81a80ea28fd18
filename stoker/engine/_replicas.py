"""Checks that the replicas of a model on several ranks are equal, and are trained alike."""

import torch
from torch import Tensor, nn

from stoker._select import named_parameters
from stoker.engine._ranks import Ranks
from stoker.errors import InvalidArgument, StateMismatch

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes


def check_trained(ranks: Ranks, model: nn.Module, epoch: int) -> None:
    """Raises if ranks do not train the same parameters: gloo would abort, as their gradients differ in size."""
    if ranks.data_world.size == 1 or ranks.model_is_distributed:
        return
    own = [name for name, parameter in named_parameters(model).items() if parameter.requires_grad]
    if ranks.data_world.all_equal(own):
        return
    first, *others = ranks.data_world.all_gather(own)
    rank, theirs = next((rank, each) for rank, each in enumerate(others, start=1) if each != first)
    raise InvalidArgument(
        f"rank {rank} trains other parameters than rank 0 in epoch {epoch}, for example "
        f"{min(set(first) ^ set(theirs))}: freeze and unfreeze the same ones on every rank"
    )


def check_replicas(ranks: Ranks, model: nn.Module, epoch: int) -> None:
    """Raises if a rank's weights differ from rank 0's. The sums of the parameters' bits are compared.

    Waits for the device, once. A model that reduces its gradients itself is not compared.
    """
    parameters = {} if ranks.data_world.size == 1 or ranks.model_is_distributed else named_parameters(model)
    if not parameters:
        return
    own = torch.stack([_sum_bits(parameter) for parameter in parameters.values()]).tolist()
    if ranks.data_world.all_equal(own):
        return
    first, *others = ranks.data_world.all_gather(own)
    for rank, theirs in enumerate(others, start=1):
        apart = [name for name, one, other in zip(parameters, first, theirs, strict=True) if one != other]
        if apart:
            more = f" and {len(apart) - 1} more" if len(apart) > 1 else ""
            raise StateMismatch(
                f"rank {rank} has other weights than rank 0 at the end of epoch {epoch}: {apart[0]}{more}. Every "
                "rank has to treat them alike: look for a hook that changes gradients, learning rate or weights "
                "depending on what only one rank knows (its loss, its random numbers, its clock)"
            )


def _sum_bits(tensor: Tensor) -> Tensor:
    """The sum of a tensor's bits, read as 64-bit integers: [] of int64, on its device.

    A sum of shorter integers in 64 bits takes a hundred times as long on a CPU.
    """
    plain = tensor.detach()
    flat = (torch.view_as_real(plain.resolve_conj()) if plain.is_complex() else plain).reshape(-1)
    count = 8 // flat.element_size()  # elements in an integer
    if flat.storage_offset() % count:
        flat = flat.clone()
    whole = flat.numel() // count * count
    rest = flat[whole:].view(_INTEGERS[flat.element_size()]).sum(dtype=torch.int64)
    return flat[:whole].view(torch.int64).sum() + rest
