"""MixUp and CutMix: training on pairs of samples that are mixed.

The random numbers come from torch's global generator of the batch's device, so the fit's seed determines them and
checkpoints save their state.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stoker._tree import map_tensors, named_leaves, tensors_in
from stoker.callbacks._callback import Callback
from stoker.callbacks._context import Context
from stoker.errors import InvalidArgument, WrongType
from stoker.steps import LossFunction, Supervised, per_sample


class MixUp(Callback):
    """Trains on weighted averages of two samples, inputs and targets alike; every pair has its own weight.

    >>> MixUp(alpha=0.2)
    MixUp(alpha=0.2)

    The weights are drawn from Beta(alpha, alpha); the larger part is the sample's own. Floating-point targets (values,
    probabilities) are averaged. For other targets (class indices) the loss is computed with both, through
    `ctx.loss_mix` and `mixed_loss`. Metrics are computed with the sample's own target. Validation is not affected.
    """

    def __init__(self, alpha: float = 0.4) -> None:
        self.alpha = _check_alpha(alpha)

    def on_train_batch_begin(self, ctx: Context) -> None:
        """Replaces the batch."""
        parts = _split_batch(ctx, owner="MixUp")
        pairs = _draw_pairs(parts, self.alpha)
        for x in tensors_in(parts.inputs):
            if not x.is_floating_point():
                raise WrongType(
                    f"MixUp averages floating-point inputs, but an input of this batch is {x.dtype}; convert it first "
                    "(images: x.float() / 255), or leave MixUp out"
                )
        _replace_batch(ctx, parts, map_tensors(pairs.average, parts.inputs), pairs, owner="MixUp")


class CutMix(Callback):
    """Trains on images into which a box of another image is pasted; targets are weighted by area.

    >>> CutMix()
    CutMix(alpha=1.0)

    Images are [samples, ..., height, width]. The area is drawn from Beta(alpha, alpha), and every pair has its own
    box. If a box extends over the edge, only the part inside counts. Targets are treated as in `MixUp`.
    """

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = _check_alpha(alpha)

    def on_train_batch_begin(self, ctx: Context) -> None:
        """Replaces the batch."""
        parts = _split_batch(ctx, owner="CutMix")
        key, *others = parts.inputs
        image = parts.inputs[key]
        if others or not isinstance(image, Tensor):
            raise WrongType("CutMix takes one image tensor; this batch has several inputs, or one that is not a tensor")
        if image.ndim < 3:
            raise InvalidArgument(f"CutMix takes images of [samples, ..., height, width]; got {list(image.shape)}")
        pairs = _draw_pairs(parts, self.alpha)
        box = _draw_boxes(pairs.weight, height=image.shape[-2], width=image.shape[-1])
        pairs = _Pairs(pairs.partner, 1 - box.float().mean((1, 2)))
        mask = box.reshape(len(box), *(1 for _ in image.shape[1:-2]), *box.shape[1:])
        _replace_batch(ctx, parts, {key: torch.where(mask, image[pairs.partner], image)}, pairs, owner="CutMix")


def mixed_loss(
    loss_fn: LossFunction,
    pred: Any,
    targets: Any,
    other: Any,
    weight: Tensor,
    *,
    sample_weight: Tensor | None = None,
) -> Tensor:
    """Computes the loss in which sample i has its target with `weight[i]`, and the other one with `1 - weight[i]`.

    >>> from torch import nn
    >>> pred, targets, other = torch.zeros(2, 1), torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [4.0]])
    >>> mixed_loss(nn.MSELoss(), pred, targets, other, torch.tensor([1.0, 0.5]))  # (1 + (4 + 16) / 2) / 2
    tensor(5.5000)

    It is the loss function's own mean over twice as many samples, so class weights and `ignore_index` count in its
    denominator. The loss function needs a reduction that can be switched off: a module with a `reduction`, or a
    function that takes `reduction=`. `sample_weight` multiplies both pairs of a sample.
    """
    own_values, own_counts = per_sample(loss_fn, pred, targets)
    other_values, other_counts = per_sample(loss_fn, pred, other)
    # [B] everywhere: a weight of shape [B, 1] would broadcast over all pairs of samples.
    for name, given in (("weight", weight), ("sample_weight", sample_weight)):
        if given is not None and given.shape != own_values.shape:
            raise InvalidArgument(
                f"mixed_loss takes a {name} with one number for each of the {len(own_values)} samples; "
                f"got shape {list(given.shape)}"
            )
    own, rest = weight, 1 - weight
    if sample_weight is not None:
        own, rest = own * sample_weight, rest * sample_weight
    return (own_values * own + other_values * rest).sum() / (own_counts * own + other_counts * rest).sum()


class _Parts(NamedTuple):
    """A batch by index or name: inputs, targets, and (key, tensor) of the sample weights."""

    inputs: dict[Any, Any]
    targets: dict[Any, Any]
    weight: tuple[Any, Tensor] | None
    samples: int
    device: torch.device


class _Pairs(NamedTuple):
    """Sample i is mixed with sample `partner[i]` and has the weight `weight[i]`; both are [B]."""

    partner: Tensor
    weight: Tensor

    def average(self, x: Tensor) -> Tensor:
        weight = self.weight.to(x.dtype).reshape(-1, *(1 for _ in x.shape[1:]))
        return x * weight + x[self.partner] * (1 - weight)


def _split_batch(ctx: Context, *, owner: str) -> _Parts:
    """Finds inputs, targets and sample weights as `Supervised` does."""
    batch, weight = ctx.batch, None
    if isinstance(batch, tuple | list) and len(batch) > 1:
        inputs, targets = dict(enumerate(batch[:-1])), {len(batch) - 1: batch[-1]}
    elif isinstance(batch, Mapping):
        parts = Supervised(ctx.model, None).parts(batch)
        inputs = dict(parts.kwargs)
        weight = None if parts.weight is None else ("weight", parts.weight)
        used = {*inputs, "weight"} if weight else set(inputs)
        targets = {name: value for name, value in batch.items() if name not in used}
    else:
        inputs, targets = {}, {}
    if not targets:
        raise InvalidArgument(
            f"{owner} needs batches of (inputs…, target), or mappings with a name that forward does not take as the "
            f"target; got {type(batch).__name__}"
        )
    tensors = [leaf for _, leaf in named_leaves((inputs, targets))]
    for leaf in tensors:
        if not isinstance(leaf, Tensor):
            raise WrongType(f"{owner} mixes tensors, but this batch contains {type(leaf).__name__}")
    if len({tensor.shape[:1] for tensor in tensors}) > 1 or not tensors[0].shape:
        shapes = ", ".join(str(list(tensor.shape)) for tensor in tensors)
        raise InvalidArgument(f"{owner} needs a row for each sample in every tensor of the batch; got shapes {shapes}")
    return _Parts(inputs, targets, weight, tensors[0].shape[0], tensors[0].device)


def _draw_pairs(parts: _Parts, alpha: float) -> _Pairs:
    concentration = torch.full((parts.samples,), alpha, device=parts.device)
    # validate_args would read the values, and so wait for the device.
    weight = torch.distributions.Beta(concentration, concentration, validate_args=False).sample()
    return _Pairs(torch.randperm(parts.samples, device=parts.device), torch.maximum(weight, 1 - weight))


def _draw_boxes(weight: Tensor, *, height: int, width: int) -> Tensor:
    """For each weight a box of about `1 - weight` of the area, with its centre anywhere: True inside, [B, H, W]."""
    side = (1 - weight).sqrt()
    inside: list[Tensor] = []
    for size in (height, width):
        centre = torch.rand_like(weight) * size
        position = torch.arange(size, device=weight.device) + 0.5
        inside.append((position - centre[:, None]).abs() < side[:, None] * size / 2)
    return inside[0][:, :, None] & inside[1][:, None, :]


def _replace_batch(ctx: Context, parts: _Parts, inputs: Mapping[Any, Any], pairs: _Pairs, *, owner: str) -> None:
    """Puts mixed inputs, and mixed targets or `ctx.loss_mix`, into `ctx`."""
    changes = dict(inputs)
    if parts.weight is not None:
        # A mixed sample has the average of both weights; in its loss each target counts as much as its sample does,
        # so the target of a sample with weight 0 (padding, say) has no influence.
        key, own = parts.weight
        changes[key] = total = pairs.average(own)
        share = torch.where(total > 0, pairs.weight * own / total, torch.ones_like(pairs.weight))
        pairs = _Pairs(pairs.partner, share)
    if all(tensor.is_floating_point() for tensor in tensors_in(parts.targets)):
        changes.update(map_tensors(pairs.average, parts.targets))
    else:
        if callable(getattr(ctx.model, "train_step", None)):
            raise InvalidArgument(
                f"{owner} cannot mix class indices for a model with its own train_step, which computes the loss; give "
                "float targets (one-hot), or mix in train_step and use stoker.callbacks.mixed_loss there"
            )
        other = map_tensors(lambda y: y[pairs.partner], parts.targets)
        ctx.loss_mix = (next(iter(other.values())) if len(other) == 1 else other, pairs.weight)
    if isinstance(ctx.batch, Mapping):
        ctx.batch = {**ctx.batch, **changes}
    else:
        elements = [changes.get(place, element) for place, element in enumerate(ctx.batch)]
        is_namedtuple = hasattr(ctx.batch, "_fields")
        ctx.batch = type(ctx.batch)(*elements) if is_namedtuple else type(ctx.batch)(elements)


def _check_alpha(alpha: float) -> float:
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not alpha > 0:
        raise InvalidArgument(f"alpha must be a number above 0 (larger values mix more evenly); got {alpha!r}")
    return float(alpha)
