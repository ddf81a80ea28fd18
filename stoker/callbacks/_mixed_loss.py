"""The loss of samples that have two targets each: every pair weighs what it should."""

from typing import Any

from torch import Tensor

from stoker.errors import InvalidArgument
from stoker.steps import LossFunction, per_sample


def mixed_loss(
    loss_fn: LossFunction,
    pred: Any,
    targets: Any,
    other: Any,
    weight: Tensor,
    *,
    sample_weight: Tensor | None = None,
) -> Tensor:
    """The loss where sample i counts `weight[i]` with its own target, and `1 - weight[i]` with the other one.

    >>> import torch
    >>> from torch import nn
    >>> pred, targets, other = torch.zeros(2, 1), torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [4.0]])
    >>> mixed_loss(nn.MSELoss(), pred, targets, other, torch.tensor([1.0, 0.5]))  # (1 + (4 + 16) / 2) / 2
    tensor(5.5000)

    It is the loss's own mean over twice as many samples, so class weights and `ignore_index` count in what it divides
    by. The loss must be able to leave out its reduction: a module with a `reduction`, or a function that takes
    `reduction=`. Where samples have a weight of their own, both of a sample's pairs are multiplied with it.
    """
    own_values, own_shares = per_sample(loss_fn, pred, targets)
    other_values, other_shares = per_sample(loss_fn, pred, other)
    # [B] everywhere: a weight of shape [B, 1] would broadcast to all pairs of samples, and average the weights away
    for name, given in (("weight", weight), ("sample_weight", sample_weight)):
        if given is not None and given.shape != own_values.shape:
            raise InvalidArgument(
                f"the {name} of a mixed loss has one number for each of the {len(own_values)} samples; "
                f"got shape {list(given.shape)}"
            )
    own, rest = weight, 1 - weight
    if sample_weight is not None:
        own, rest = own * sample_weight, rest * sample_weight
    return (own_values * own + other_values * rest).sum() / (own_shares * own + other_shares * rest).sum()
