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
from stoker.steps import LossFunction, Parts, Supervised, mixed_mean


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
        columns = _split_batch(ctx, owner="MixUp")
        pairs = _draw_pairs(columns.inputs, self.alpha)
        for x in tensors_in(columns.inputs):
            if not x.is_floating_point():
                raise WrongType(
                    f"MixUp averages floating-point inputs, but an input of this batch is {x.dtype}; convert it first "
                    "(images: x.float() / 255), or leave MixUp out"
                )
        _replace_batch(ctx, columns, map_tensors(pairs.average, columns.inputs), pairs, owner="MixUp")


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
        columns = _split_batch(ctx, owner="CutMix")
        key, *others = columns.inputs
        image = columns.inputs[key]
        if others or not isinstance(image, Tensor):
            raise WrongType("CutMix takes one image tensor; this batch has several inputs, or one that is not a tensor")
        if image.ndim < 3:
            raise InvalidArgument(f"CutMix takes images of [samples, ..., height, width]; got {list(image.shape)}")
        pairs = _draw_pairs(columns.inputs, self.alpha)
        box = _draw_boxes(pairs.weight, height=image.shape[-2], width=image.shape[-1])
        pairs = _Pairs(pairs.partner, 1 - box.float().mean((1, 2)))
        mask = box.reshape(len(box), *(1 for _ in image.shape[1:-2]), *box.shape[1:])
        _replace_batch(ctx, columns, {key: torch.where(mask, image[pairs.partner], image)}, pairs, owner="CutMix")


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
    return mixed_mean(loss_fn, pred, targets, other, weight, sample_weight)[0]


class _Columns(NamedTuple):
    """The columns of a batch by name or place: inputs, targets, and the sample weights, if there are any."""

    inputs: dict[Any, Any]
    targets: dict[Any, Any]
    weight: dict[Any, Tensor]


class _Pairs(NamedTuple):
    """Sample i is mixed with sample `partner[i]` and has the weight `weight[i]`; both are [B]."""

    partner: Tensor
    weight: Tensor

    def average(self, x: Tensor) -> Tensor:
        weight = self.weight.to(x.dtype).reshape(-1, *(1 for _ in x.shape[1:]))
        return x * weight + x[self.partner] * (1 - weight)


def _split_batch(ctx: Context, *, owner: str) -> _Columns:
    """Finds inputs, targets and sample weights as the fit does."""
    batch = ctx.batch
    # A batch of the names of its columns: where the fit looks for a column, it finds the name.
    names: Any = {name: name for name in batch} if isinstance(batch, Mapping) else None
    if isinstance(batch, tuple | list):
        names = tuple(range(len(batch)))
    supervised = ctx._supervised or Supervised(ctx.model, None)
    parts = Parts((), {}, None) if names is None else supervised.parts(names)
    if parts.targets is None:
        raise InvalidArgument(
            f"{owner} needs batches of (inputs…, target), or mappings with a name that forward does not take as the "
            f"target; got {type(batch).__name__}"
        )
    targets = parts.targets.values() if isinstance(parts.targets, dict) else [parts.targets]
    columns = _Columns(
        {name: batch[name] for name in (*parts.args, *parts.kwargs.values())},
        {name: batch[name] for name in targets},
        {} if parts.weight is None else {parts.weight: batch[parts.weight]},
    )
    leaves = [leaf for _, leaf in named_leaves((columns.inputs, columns.targets))]
    for leaf in leaves:
        if not isinstance(leaf, Tensor):
            raise WrongType(f"{owner} mixes tensors, but this batch contains {type(leaf).__name__}")
    if len({leaf.shape[:1] for leaf in leaves}) > 1 or not leaves[0].shape:
        shapes = ", ".join(str(list(leaf.shape)) for leaf in leaves)
        raise InvalidArgument(f"{owner} needs a row for each sample in every tensor of the batch; got shapes {shapes}")
    return columns


def _draw_pairs(inputs: Mapping[Any, Any], alpha: float) -> _Pairs:
    first = next(iter(tensors_in(inputs)))
    concentration = torch.full((len(first),), alpha, device=first.device)
    # validate_args would read the values, and so wait for the device.
    weight = torch.distributions.Beta(concentration, concentration, validate_args=False).sample()
    return _Pairs(torch.randperm(len(first), device=first.device), torch.maximum(weight, 1 - weight))


def _draw_boxes(weight: Tensor, *, height: int, width: int) -> Tensor:
    """For each weight a box of about `1 - weight` of the area, with its centre anywhere: True inside, [B, H, W]."""
    side = (1 - weight).sqrt()
    inside: list[Tensor] = []
    for size in (height, width):
        centre = torch.rand_like(weight) * size
        position = torch.arange(size, device=weight.device) + 0.5
        inside.append((position - centre[:, None]).abs() < side[:, None] * size / 2)
    return inside[0][:, :, None] & inside[1][:, None, :]


def _replace_batch(ctx: Context, columns: _Columns, inputs: Mapping[Any, Any], pairs: _Pairs, *, owner: str) -> None:
    """Puts mixed inputs, and mixed targets or `ctx.loss_mix`, into `ctx`."""
    changes = dict(inputs)
    for key, weight in columns.weight.items():
        # A mixed sample has the average of both weights; in its loss each target counts as much as its sample does,
        # so the target of a sample with weight 0 (padding, say) has no influence.
        changes[key] = total = pairs.average(weight)
        share = torch.where(total > 0, pairs.weight * weight / total, torch.ones_like(pairs.weight))
        pairs = _Pairs(pairs.partner, share)
    if all(tensor.is_floating_point() for tensor in tensors_in(columns.targets)):
        changes.update(map_tensors(pairs.average, columns.targets))
    else:
        if ctx._supervised is None:
            raise InvalidArgument(
                f"{owner} cannot mix class indices if a step or the model computes the loss; give float targets "
                "(one-hot), or mix in the step and use stoker.callbacks.mixed_loss there"
            )
        other = map_tensors(lambda y: y[pairs.partner], columns.targets)
        ctx.loss_mix = (next(iter(other.values())) if len(other) == 1 else other, pairs.weight)
    if isinstance(ctx.batch, Mapping):
        ctx.batch = {**ctx.batch, **changes}
    else:
        elements = [changes.get(index, element) for index, element in enumerate(ctx.batch)]
        is_namedtuple = hasattr(ctx.batch, "_fields")
        ctx.batch = type(ctx.batch)(*elements) if is_namedtuple else type(ctx.batch)(elements)


def _check_alpha(alpha: float) -> float:
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not alpha > 0:
        raise InvalidArgument(f"alpha must be a number above 0 (larger values mix more evenly); got {alpha!r}")
    return float(alpha)
