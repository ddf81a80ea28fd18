"""One loss of several in a step, with the part of the model that it is for."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Objective:
    """A loss for a part of the model: a `train_step` that yields objectives has each one differentiated and stepped.

    >>> import torch
    >>> Objective("critic", torch.tensor(0.3)).name
    'critic'

    `name` chooses the part as everywhere (a name with all below it, or a glob), and is what the loss is called in the
    history. The step goes on after the part was stepped, so that a later objective sees the new weights.
    """

    name: str
    loss: Tensor
