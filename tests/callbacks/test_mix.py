"""MixUp, CutMix and the loss with two targets."""

import functools
from collections import namedtuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import stoker
from stoker import InvalidArgument, WrongType
from stoker.callbacks import CutMix, Hooks, MixUp, mixed_loss
from stoker.steps import Supervised
from tests.callbacks.fits import context

Sample = namedtuple("Sample", ["image", "label"])
CLASSES = 4


def mixed(callback, batch, *, seed=0, model=None):
    model = nn.Linear(3, 1) if model is None else model
    ctx = context(model=model, supervised=None if hasattr(model, "train_step") else Supervised(model, F.cross_entropy))
    ctx.batch = batch
    torch.manual_seed(seed)
    Hooks([callback]).fire("on_train_batch_begin", ctx)
    return ctx


class Two(nn.Module):
    def forward(self, image, extra):
        return image


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 9), st.sampled_from([0.05, 0.4, 1.0, 8.0]), st.integers(0, 1000))
def test_inputs_and_class_targets_are_mixed_with_the_same_weights(rows, alpha, seed):
    """Samples are rows of the identity, so that a mixed row shows which samples it contains, and their weights."""
    x, y = torch.eye(rows), torch.arange(rows)
    ctx = mixed(MixUp(alpha), (x, y), seed=seed)
    inputs, targets = ctx.batch
    other, weight = ctx.loss_mix
    assert torch.equal(targets, y) and torch.equal(other.sort().values, y)
    assert weight.shape == (rows,) and bool(((weight >= 0.5) & (weight <= 1)).all())
    expected = torch.zeros(rows, rows)
    for row in range(rows):
        expected[row, row] += weight[row]
        expected[row, other[row]] += 1 - weight[row]
    torch.testing.assert_close(inputs, expected)


def test_every_pair_has_its_own_weight_and_alpha_is_their_spread():
    batch = (torch.randn(2000, 2), torch.randint(3, (2000,)))
    _, weight = mixed(MixUp(1.0), batch).loss_mix
    assert weight.unique().numel() > 1900
    assert weight.mean().item() == pytest.approx(0.75, abs=0.02)  # the larger part of a uniform number
    assert mixed(MixUp(0.05), batch).loss_mix[1].mean() > 0.95 > 0.6 > mixed(MixUp(50.0), batch).loss_mix[1].mean()


@pytest.mark.parametrize("callback", [MixUp(), CutMix()])
@pytest.mark.parametrize("shape", [(6,), (6, 1), (6, 3)])
def test_floating_point_targets_are_averaged(callback, shape):
    x, y = torch.randn(6, 4, 4), torch.randn(shape)
    by_class = mixed(callback, (x, torch.arange(6)))
    other, weight = by_class.loss_mix
    ctx = mixed(callback, (x, y))
    weight = weight.reshape(-1, *(1 for _ in shape[1:]))
    assert ctx.loss_mix is None and torch.equal(ctx.batch[0], by_class.batch[0])
    torch.testing.assert_close(ctx.batch[1], weight * y + (1 - weight) * y[other])


def test_a_mapping_may_have_several_inputs_and_targets_and_a_weight():
    rows = torch.arange(4.0)
    batch = {
        "image": torch.eye(4),
        "extra": torch.eye(4),
        "kind": torch.arange(4),
        "size": rows,
        "weight": torch.ones(4),
    }
    ctx = mixed(MixUp(), batch, model=Two())
    other, weight = ctx.loss_mix
    assert list(ctx.batch) == list(batch) and torch.equal(ctx.batch["image"], ctx.batch["extra"])
    assert torch.equal(ctx.batch["size"], rows) and torch.equal(ctx.batch["kind"], torch.arange(4))
    assert set(other) == {"kind", "size"} and torch.equal(other["kind"].float(), other["size"])
    torch.testing.assert_close(ctx.batch["image"].diagonal(), weight.where(other["kind"] != rows, torch.tensor(1.0)))
    torch.testing.assert_close(ctx.batch["weight"], torch.ones(4))


@pytest.mark.parametrize("kind", [MixUp, CutMix])
def test_columns_that_the_learner_names_are_mixed_as_those_of_a_plain_batch(kind):
    class Pooled(nn.Linear):
        def forward(self, x):
            return super().forward(x.mean((1, 2))[:, None].expand(-1, 3))

    def fit(batch, **columns):
        torch.manual_seed(0)
        learner = stoker.Learner(Pooled(3, CLASSES), loss=nn.CrossEntropyLoss(), lr=0.5, seed=0, **columns)
        return learner.fit(batch, epochs=2, batch_size=8, callbacks=[kind()], show=False).model.weight

    x, y, weight = torch.randn(16, 5, 5), torch.randint(CLASSES, (16,)), torch.rand(16)
    plain = fit({"x": x, "label": y, "weight": weight})
    named = {"label": y, "rows": torch.arange(16), "image": x, "importance": weight}
    assert torch.equal(fit(named, inputs="image", target="label", weight="importance"), plain)
    assert torch.equal(fit((y, weight, x), inputs=-1, target=0, weight=1), plain)
    assert torch.equal(fit((y, x), target=0), fit((x, y)))


def test_a_sample_with_weight_zero_contributes_no_target():
    """Of each sample the mixed batch has the average weight; in the loss each target counts as its sample does."""
    sample_weight = torch.tensor([1.0, 0.0, 2.0, 1.0, 0.0, 0.0])
    batch = {"input": torch.eye(6), "label": torch.arange(6), "weight": sample_weight}
    ctx = mixed(MixUp(1.0), batch, model=nn.Linear(6, 6))
    other, share = ctx.loss_mix
    own = mixed(MixUp(1.0), (torch.eye(6), torch.arange(6))).loss_mix[1]  # the same random numbers
    total = own * sample_weight + (1 - own) * sample_weight[other]
    torch.testing.assert_close(ctx.batch["weight"], total)
    counted = total > 0
    torch.testing.assert_close((share * total)[counted], (own * sample_weight)[counted])
    assert bool((share[~counted] == 1).all()) and bool(((share == 0) == ((sample_weight == 0) & counted)).all())


@pytest.mark.parametrize("make", [lambda *parts: parts, lambda *parts: list(parts), Sample])
def test_the_batch_keeps_its_type(make):
    batch = make(torch.eye(4), torch.randn(4))
    assert type(mixed(MixUp(), batch).batch) is type(batch)


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 5), st.integers(1, 9), st.integers(1, 9), st.integers(0, 1000), st.sampled_from([0.3, 1.0]))
def test_cutmix_weighs_by_pixels(rows, height, width, seed, alpha):
    """All pixels of image i are i, so the share of pixels that are i is its weight; the others are its partner's."""
    images = torch.arange(rows).reshape(-1, 1, 1, 1).expand(-1, 2, height, width)  # integers can be pasted
    ctx = mixed(CutMix(alpha), (images, torch.arange(rows)), seed=seed)
    other, weight = ctx.loss_mix
    for row in range(rows):
        pixels = ctx.batch[0][row]
        assert set(pixels.unique().tolist()) <= {row, int(other[row])}
        assert torch.equal(pixels[0], pixels[1]), "one box for all channels"
        if other[row] != row:
            assert (pixels == row).float().mean().item() == pytest.approx(weight[row].item(), abs=1e-6)


def test_cutmix_pastes_rectangles_of_the_image_shape_anywhere():
    images = torch.arange(3000).reshape(-1, 1, 1).expand(-1, 40, 20)  # no channels
    ctx = mixed(CutMix(), (images, torch.arange(3000)))
    box = ctx.batch[0] != images
    rows, columns = box.any(2), box.any(1)
    assert torch.equal(box, rows[:, :, None] & columns[:, None, :])
    # The sample keeps at least half: a box is at most sqrt(1/2) of each side, and has the proportions of the image.
    assert rows.sum(1).max() <= 29 and columns.sum(1).max() <= 15
    assert box.float().mean(0).min() > 0.05, "every pixel can be covered"
    _, weight = ctx.loss_mix
    assert weight.mean().item() == pytest.approx(0.75, abs=0.07)  # boxes that extend over an edge are smaller


def test_what_cannot_be_mixed_is_rejected():
    classes = torch.arange(2)
    with pytest.raises(WrongType, match=r"MixUp averages floating-point inputs, but an input .* is torch\.uint8"):
        mixed(MixUp(), (torch.ones(2, 3, dtype=torch.uint8), classes))
    with pytest.raises(InvalidArgument, match=r"takes images of \[samples, \.\.\., height, width\]; got \[2, 3\]"):
        mixed(CutMix(), (torch.ones(2, 3), classes))
    with pytest.raises(WrongType, match="CutMix takes one image tensor; this batch has several inputs"):
        mixed(CutMix(), (torch.ones(2, 3, 3), torch.ones(2, 3, 3), classes))
    with pytest.raises(WrongType, match="MixUp mixes tensors, but this batch contains str"):
        mixed(MixUp(), (torch.ones(2, 3), ["a", "b"]))
    with pytest.raises(InvalidArgument, match=r"a row for each sample in every tensor .*; got shapes \[2, 3\], \[4\]"):
        mixed(MixUp(), (torch.ones(2, 3), torch.ones(4)))
    with pytest.raises(InvalidArgument, match="a row for each sample"):
        mixed(MixUp(), (torch.tensor(1.0), torch.tensor(1.0)))
    for kind in (MixUp, CutMix):
        for alpha in (0, -1.0, "a", True):
            with pytest.raises(InvalidArgument, match="alpha must be a number above 0"):
                kind(alpha=alpha)


@pytest.mark.parametrize("batch", [torch.ones(4, 2), (torch.ones(4, 2),), "text"])
def test_a_batch_without_a_target_is_rejected(batch):
    with pytest.raises(InvalidArgument, match=r"MixUp needs batches of \(inputs…, target\)"):
        mixed(MixUp(), batch)


def test_class_indices_need_a_loss_that_stoker_computes():
    class Own(nn.Module):
        def train_step(self, batch): ...

    with pytest.raises(InvalidArgument, match=r"cannot mix class indices if a step or the model .*mixed_loss"):
        mixed(MixUp(), (torch.ones(2, 3), torch.arange(2)), model=Own())
    assert mixed(MixUp(), (torch.ones(2, 3), torch.ones(2)), model=Own()).loss_mix is None


@pytest.mark.cuda
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("callback", [MixUp(), CutMix()])
def test_on_a_gpu_nothing_waits_for_the_device(callback):
    batch = (torch.randn(8, 3, 6, 6, device="cuda"), torch.arange(8, device="cuda"))
    mixed(callback, batch)
    torch.cuda.set_sync_debug_mode("error")
    try:
        ctx = mixed(callback, batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert ctx.batch[0].is_cuda and ctx.loss_mix[1].is_cuda


def by_hand(values, divisors, targets, other, weight):
    """The mixed loss pair by pair: what a pair adds to the numerator and to the denominator."""
    total = divisor = 0.0
    for row, own in enumerate(weight.tolist()):
        for target, share in ((targets[row], own), (other[row], 1 - own)):
            total += share * values(row, target)
            divisor += share * divisors(row, target)
    return total / divisor


@st.composite
def cases(draw):
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    rows = draw(st.integers(1, 6))
    pred = torch.randn(rows, CLASSES, generator=generator, dtype=torch.float64)
    targets, other = torch.randint(CLASSES, (2, rows), generator=generator)
    weight = torch.rand(rows, generator=generator, dtype=torch.float64)
    return pred, targets, other, weight


@settings(deadline=None, max_examples=40)
@given(cases(), st.booleans(), st.sampled_from([0.0, 0.1]), st.sampled_from([-100, 0]))
def test_mixed_cross_entropy_equals_a_sum_over_pairs(case, weighted, smoothing, ignore):
    pred, targets, other, weight = case
    class_weight = torch.tensor([0.5, 1.0, 2.0, 3.0], dtype=torch.float64) if weighted else None
    targets[0] = 1  # so that the denominator is not 0
    weight[0] = weight[0].clamp(min=0.1)
    loss = nn.CrossEntropyLoss(weight=class_weight, label_smoothing=smoothing, ignore_index=ignore)
    logs = pred.log_softmax(1).tolist()
    factors = [1.0] * CLASSES if class_weight is None else class_weight.tolist()

    def value(row, target):
        target = int(target)
        if target == ignore:
            return 0.0
        smooth = sum(-factor * log for factor, log in zip(factors, logs[row], strict=True)) / CLASSES
        return (1 - smoothing) * -factors[target] * logs[row][target] + smoothing * smooth

    def divisor(row, target):
        return 0.0 if int(target) == ignore else factors[int(target)]

    expected = by_hand(value, divisor, targets, other, weight)
    assert mixed_loss(loss, pred, targets, other, weight).item() == pytest.approx(expected, rel=1e-9)


@settings(deadline=None, max_examples=20)
@given(cases())
def test_other_mixed_losses_equal_a_sum_over_pairs(case):
    pred, targets, other, weight = case
    a, b = F.one_hot(targets, CLASSES).double(), F.one_hot(other, CLASSES).double()
    for loss, value in (
        (nn.MSELoss(), lambda row, t: ((pred[row] - t) ** 2).mean().item()),
        (nn.L1Loss(), lambda row, t: (pred[row] - t).abs().mean().item()),
        (F.mse_loss, lambda row, t: ((pred[row] - t) ** 2).mean().item()),
        (functools.partial(F.huber_loss, delta=0.5), lambda row, t: F.huber_loss(pred[row], t, delta=0.5).item()),
        (nn.BCEWithLogitsLoss(), lambda row, t: F.binary_cross_entropy_with_logits(pred[row], t).item()),
        (nn.CrossEntropyLoss(), lambda row, t: F.cross_entropy(pred[row], t).item()),  # probabilities
    ):
        expected = by_hand(value, lambda row, t: 1.0, a, b, weight)
        assert mixed_loss(loss, pred, a, b, weight).item() == pytest.approx(expected, rel=1e-9)
    expected = by_hand(lambda row, t: F.cross_entropy(pred[row], t).item(), lambda row, t: 1.0, targets, other, weight)
    assert mixed_loss(F.cross_entropy, pred, targets, other, weight).item() == pytest.approx(expected, rel=1e-9)


def test_sample_weights_multiply_both_pairs():
    torch.manual_seed(0)
    pred, targets, other = torch.randn(5, CLASSES), torch.randint(4, (5,)), torch.randint(4, (5,))
    weight, sample_weight, loss = torch.rand(5), torch.tensor([1.0, 0.0, 2.0, 0.0, 1.0]), nn.CrossEntropyLoss()
    kept = [0, 2, 2, 4]  # weight 2 is the same sample twice
    torch.testing.assert_close(
        mixed_loss(loss, pred, targets, other, weight, sample_weight=sample_weight),
        mixed_loss(loss, pred[kept], targets[kept], other[kept], weight[kept]),
    )
    with pytest.raises(InvalidArgument, match=r"mixed_loss takes a sample_weight .* got shape \[4\]"):
        mixed_loss(loss, pred, targets, other, weight, sample_weight=torch.ones(4))


def test_a_loss_without_a_reduction_is_rejected():
    ones = torch.ones(2, 1)
    with pytest.raises(InvalidArgument, match="reduction"):
        mixed_loss(lambda p, t: (p - t).abs().mean(), ones, ones, ones, torch.ones(2))
