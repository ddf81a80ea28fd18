import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from stoker import InvalidArgument, WrongType
from stoker.callbacks import CutMix, Hooks, MixUp, mixed_loss
from stoker.callbacks._mix import boxes
from tests.callbacks.fits import context


def mixed(callback, batch, *, seed=0, model=None):
    ctx = context(model=model)
    ctx.batch = batch
    torch.manual_seed(seed)
    Hooks([callback]).fire("on_train_batch_begin", ctx)
    return ctx


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 9), st.sampled_from([0.05, 0.4, 1.0, 8.0]), st.integers(0, 1000))
def test_inputs_and_class_targets_are_mixed_with_the_same_weights(rows, alpha, seed):
    """Samples are rows of the identity, so that a mixed row shows who is in it, and how much."""
    x, y = torch.eye(rows), torch.arange(rows)
    ctx = mixed(MixUp(alpha), (x, y), seed=seed)
    blended, targets = ctx.batch
    other, weight = ctx.loss_mix
    assert torch.equal(targets, y) and torch.equal(other.sort().values, y)
    assert weight.shape == (rows,) and bool(((weight >= 0.5) & (weight <= 1)).all())
    expected = torch.zeros(rows, rows)
    for row in range(rows):
        expected[row, row] += weight[row]
        expected[row, other[row]] += 1 - weight[row]
    torch.testing.assert_close(blended, expected)


def test_every_pair_has_its_own_weight_and_alpha_spreads_them():
    batch = (torch.randn(2000, 2), torch.randint(3, (2000,)))
    _, weight = mixed(MixUp(1.0), batch).loss_mix
    assert weight.unique().numel() > 1900
    assert weight.mean().item() == pytest.approx(0.75, abs=0.02)  # the larger part of a uniform number
    assert mixed(MixUp(0.05), batch).loss_mix[1].mean() > 0.95 > 0.6 > mixed(MixUp(50.0), batch).loss_mix[1].mean()


@pytest.mark.parametrize("callback", [MixUp(), CutMix()])
@pytest.mark.parametrize("shape", [(6,), (6, 1), (6, 3)])
def test_floating_targets_are_blended(callback, shape):
    x, y = torch.randn(6, 4, 4), torch.randn(shape)
    by_class = mixed(callback, (x, torch.arange(6)))
    other, weight = by_class.loss_mix
    ctx = mixed(callback, (x, y))
    weight = weight.reshape(-1, *(1 for _ in shape[1:]))
    assert ctx.loss_mix is None and torch.equal(ctx.batch[0], by_class.batch[0])
    torch.testing.assert_close(ctx.batch[1], weight * y + (1 - weight) * y[other])


def test_one_hot_targets_and_class_numbers_give_one_loss():
    torch.manual_seed(0)
    x, y, model = torch.randn(16, 5), torch.randint(3, (16,)), nn.Linear(5, 3)
    loss = nn.CrossEntropyLoss()
    classes = mixed(MixUp(), (x, y))
    one_hot = mixed(MixUp(), (x, nn.functional.one_hot(y).float()))
    through_pairs = mixed_loss(loss, model(classes.batch[0]), classes.batch[1], *classes.loss_mix)
    torch.testing.assert_close(through_pairs, loss(model(one_hot.batch[0]), one_hot.batch[1]))


def test_a_mapping_with_several_inputs_targets_and_a_weight():
    class Two(nn.Module):
        def forward(self, image, extra):
            return image

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


def test_the_users_tensors_are_not_changed():
    for callback in (MixUp(), CutMix()):
        x, y = torch.randn(4, 1, 6, 6), torch.randn(4)
        before = x.clone(), y.clone()
        mixed(callback, (x, y))
        assert torch.equal(x, before[0]) and torch.equal(y, before[1])


def test_the_random_numbers_are_torchs_and_so_the_runs():
    batch = (torch.randn(8, 1, 5, 5), torch.arange(8))
    for callback in (MixUp(), CutMix()):
        one, same, next_seed = (mixed(callback, batch, seed=seed) for seed in (1, 1, 2))
        assert torch.equal(one.batch[0], same.batch[0]) and torch.equal(one.loss_mix[1], same.loss_mix[1])
        assert not torch.equal(one.batch[0], next_seed.batch[0])


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 5), st.integers(1, 9), st.integers(1, 9), st.integers(0, 1000), st.sampled_from([0.3, 1.0]))
def test_cutmix_weighs_by_the_pixels(rows, height, width, seed, alpha):
    """Image i is all i: the share of pixels that are i is the weight, and the others are all of the partner."""
    images = torch.arange(rows).reshape(-1, 1, 1, 1).expand(-1, 2, height, width)  # integers can be pasted
    ctx = mixed(CutMix(alpha), (images, torch.arange(rows)), seed=seed)
    other, weight = ctx.loss_mix
    for row in range(rows):
        pixels = ctx.batch[0][row]
        assert set(pixels.unique().tolist()) <= {row, int(other[row])}
        assert torch.equal(pixels[0], pixels[1]), "one box for all channels"
        if other[row] != row:
            assert (pixels == row).float().mean().item() == pytest.approx(weight[row].item(), abs=1e-6)


def test_boxes_are_rectangles_of_about_their_area():
    torch.manual_seed(0)
    weight = torch.full((3000,), 0.75)
    box = boxes(weight, height=40, width=20)
    rows, columns = box.any(2), box.any(1)
    assert torch.equal(box, rows[:, :, None] & columns[:, None, :])
    assert rows.sum(1).max() <= 21 and columns.sum(1).max() <= 11  # half of each side, and a pixel
    inside = (rows.sum(1) >= 20) & (columns.sum(1) >= 10)
    assert box[inside].float().mean().item() == pytest.approx(0.25, abs=0.02)
    assert box.float().mean(0).min() > 0.05, "every place can be covered"
    assert not boxes(torch.ones(3), height=4, width=4).any()


def test_images_without_channels_can_be_cut():
    ctx = mixed(CutMix(), (torch.randn(8, 28, 28), torch.arange(8)))
    assert ctx.batch[0].shape == (8, 28, 28)


def test_what_cannot_be_mixed_is_refused():
    with pytest.raises(WrongType, match=r"MixUp blends floating-point inputs, and one of this batch is torch\.uint8"):
        mixed(MixUp(), (torch.ones(2, 3, dtype=torch.uint8), torch.arange(2)))
    with pytest.raises(
        InvalidArgument, match=r"CutMix needs images of \[samples, \.\.\., height, width\]; got \[2, 3\]"
    ):
        mixed(CutMix(), (torch.ones(2, 3), torch.arange(2)))
    with pytest.raises(WrongType, match="CutMix cuts one image; this batch has several inputs"):
        mixed(CutMix(), (torch.ones(2, 3, 3), torch.ones(2, 3, 3), torch.arange(2)))
    for kind in (MixUp, CutMix):
        for alpha in (0, -1.0, "a", True):
            with pytest.raises(InvalidArgument, match="alpha is a number above 0"):
                kind(alpha=alpha)


def test_class_targets_need_a_loss_that_is_asked():
    class Own(nn.Module):
        def train_step(self, batch): ...

    with pytest.raises(
        InvalidArgument, match=r"MixUp can't mix class targets for a model with its own train_step.*mixed_loss"
    ):
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
