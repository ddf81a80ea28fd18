"""Training on mixtures of two samples: MixUp blends them, CutMix pastes a box of one into the other.

The random numbers are torch's own, of the batch's device, so they belong to the run's randomness.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from stoker.callbacks._callback import Callback
from stoker.callbacks._context import Context
from stoker.callbacks._pairs import Pairing, Taken, each_tensor, replaced, take_apart, tensors_in
from stoker.errors import InvalidArgument, WrongType


class MixUp(Callback):
    """Trains on blends of two samples, inputs and targets alike, each pair with a weight of its own.

    >>> MixUp(alpha=0.2)
    MixUp(alpha=0.2)

    The weights are drawn from Beta(alpha, alpha), and the sample itself has the larger part. Floating-point targets
    (numbers, probabilities) are blended; others (class numbers) are compared with both, through `ctx.loss_mix` and
    `mixed_loss`. Metrics see the batch's own targets. Validation is not touched.
    """

    def __init__(self, alpha: float = 0.4) -> None:
        self.alpha = _checked(alpha)

    def on_train_batch_begin(self, ctx: Context) -> None:
        """Replaces the batch by mixtures."""
        taken = take_apart(ctx, who="MixUp")
        pairing = draw(taken, self.alpha)
        inputs = each_tensor(lambda x: _blended(x, pairing), taken.inputs)
        finish(ctx, taken, inputs, pairing, who="MixUp")


class CutMix(Callback):
    """Trains on images with a box pasted in from another one; targets weigh as the areas do.

    >>> CutMix()
    CutMix(alpha=1.0)

    Images are [samples, ..., height, width]. The area is drawn from Beta(alpha, alpha), and every pair has a box of
    its own; where the box goes over the edge, the weight is that of the part inside. Targets go as in `MixUp`.
    """

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = _checked(alpha)

    def on_train_batch_begin(self, ctx: Context) -> None:
        """Replaces the batch by mixtures."""
        taken = take_apart(ctx, who="CutMix")
        if len(taken.inputs) != 1 or not isinstance(image := next(iter(taken.inputs.values())), Tensor):
            raise WrongType("CutMix cuts one image; this batch has several inputs, or one that is no tensor")
        if image.ndim < 3:
            raise InvalidArgument(f"CutMix needs images of [samples, ..., height, width]; got {list(image.shape)}")
        pairing = draw(taken, self.alpha)
        box = boxes(pairing.weight, height=image.shape[-2], width=image.shape[-1])
        pairing = Pairing(pairing.order, 1 - box.float().mean((1, 2)))
        shaped = box.reshape(len(box), *(1 for _ in image.shape[1:-2]), *box.shape[1:])
        pasted = torch.where(shaped, image[pairing.order], image)
        finish(ctx, taken, {next(iter(taken.inputs)): pasted}, pairing, who="CutMix")


def draw(taken: Taken, alpha: float) -> Pairing:
    """Who is mixed with whom, and how much of each sample is its own: at least half."""
    concentration = torch.full((taken.samples,), alpha, device=taken.device)
    # validate_args would look at the values, and so wait for the device
    weight = torch.distributions.Beta(concentration, concentration, validate_args=False).sample()
    return Pairing(torch.randperm(taken.samples, device=taken.device), torch.maximum(weight, 1 - weight))


def boxes(weight: Tensor, *, height: int, width: int) -> Tensor:
    """For each weight a box of about 1 - weight of the area, anywhere: True inside, [B, height, width]."""
    side = (1 - weight).sqrt()
    inside: list[Tensor] = []
    for size in (height, width):
        centre = torch.rand_like(weight) * size
        place = torch.arange(size, device=weight.device) + 0.5
        inside.append((place - centre[:, None]).abs() < side[:, None] * size / 2)
    return inside[0][:, :, None] & inside[1][:, None, :]


def finish(ctx: Context, taken: Taken, inputs: Mapping[Any, Any], pairing: Pairing, *, who: str) -> None:
    """Puts the mixed inputs into the batch, and the targets into the batch or into `ctx.loss_mix`."""
    changes = dict(inputs)
    if taken.weight is not None:  # a sample's weight goes with its target, not with its looks
        key, own = taken.weight
        changes[key], pairing = pairing.weighed(own)
    if all(tensor.is_floating_point() for tensor in tensors_in(taken.targets)):
        changes.update(each_tensor(pairing.blend, taken.targets))
    else:
        if callable(getattr(ctx.model, "train_step", None)):
            raise InvalidArgument(
                f"{who} can't mix class targets for a model with its own train_step, which decides the loss itself; "
                "give float targets (one-hot), or mix in train_step and use stoker.callbacks.mixed_loss there"
            )
        other = each_tensor(lambda y: y[pairing.order], taken.targets)
        ctx.loss_mix = (next(iter(other.values())) if len(other) == 1 else other, pairing.weight)
    ctx.batch = replaced(ctx.batch, changes)


def _blended(x: Tensor, pairing: Pairing) -> Tensor:
    if not x.is_floating_point():
        raise WrongType(
            f"MixUp blends floating-point inputs, and one of this batch is {x.dtype}; convert it before "
            "(images: x.float() / 255), or leave MixUp out"
        )
    return pairing.blend(x)


def _checked(alpha: float) -> float:
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not alpha > 0:
        raise InvalidArgument(f"alpha is a number above 0 (larger mixes more evenly); got {alpha!r}")
    return float(alpha)
