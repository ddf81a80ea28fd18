"""A loss sample by sample: it is the loss's own mean, taken apart."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from stoker import InvalidArgument
from stoker.steps import per_sample, weighted_mean
from stoker.steps._losses import is_sum
from stoker.steps._losses import mean_divisor as counted_by

CLASS_WEIGHTS = torch.tensor([1.0, 5.0, 0.25])


def classes(seed, *shape, ignored=True):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(shape[0], 3, *shape[1:], generator=generator, dtype=torch.float64)
    targets = torch.randint(0, 3, shape, generator=generator)
    if ignored:
        targets[torch.rand(shape, generator=generator) < 0.3] = -100
        targets[0] = 0  # something has to count
    return logits, targets


def weights(seed, count):
    return torch.rand(count, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64) + 0.1


LOSSES = {
    "cross entropy": nn.CrossEntropyLoss(),
    "class weights": nn.CrossEntropyLoss(weight=CLASS_WEIGHTS.double()),
    "label smoothing": nn.CrossEntropyLoss(label_smoothing=0.1),
    "function": F.cross_entropy,
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("shape", [(7,), (5, 4)], ids=["samples", "tokens"])
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000))
def test_the_parts_give_the_losss_own_mean(name, shape, seed):
    loss, (logits, targets) = LOSSES[name], classes(seed, *shape)
    values, shares = per_sample(loss, logits, targets)
    assert values.shape == shares.shape == (shape[0],)
    torch.testing.assert_close(values.sum() / shares.sum(), loss(logits, targets))
    torch.testing.assert_close(counted_by(loss, logits, targets, None), shares.sum())
    torch.testing.assert_close(
        weighted_mean(loss, logits, targets, torch.ones(shape[0]).double()), loss(logits, targets)
    )


@pytest.mark.parametrize("name", LOSSES)
def test_a_whole_weight_is_the_sample_so_many_times(name):
    loss, (logits, targets) = LOSSES[name], classes(3, 6)
    times = torch.tensor([2, 0, 1, 3, 0, 1])
    repeated = loss(logits.repeat_interleave(times, 0), targets.repeat_interleave(times, 0))
    torch.testing.assert_close(weighted_mean(loss, logits, targets, times.double()), repeated)


@pytest.mark.parametrize("name", LOSSES)
def test_what_a_weighted_loss_is_a_mean_over_puts_its_parts_together(name):
    """Two halves, each by its count, are the whole: that is what accumulation and the epoch's number rest on."""
    loss, (logits, targets), weight = LOSSES[name], classes(8, 10), weights(8, 10)
    parts = [slice(0, 3), slice(3, 10)]
    means = [weighted_mean(loss, logits[part], targets[part], weight[part]) for part in parts]
    counts = [counted_by(loss, logits[part], targets[part], weight[part]) for part in parts]
    joined = sum(mean * count for mean, count in zip(means, counts, strict=True)) / sum(counts)
    torch.testing.assert_close(joined, weighted_mean(loss, logits, targets, weight))


def test_regression_in_any_shape():
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(6, 2, 3, generator=generator), torch.randn(6, 2, 3, generator=generator)
    for loss in (nn.MSELoss(), nn.L1Loss(), nn.SmoothL1Loss(), F.mse_loss):
        torch.testing.assert_close(weighted_mean(loss, a, b, torch.ones(6)), loss(a, b))
        assert counted_by(loss, a, b, None) is None


def test_probabilities_as_targets_count_one_each():
    logits, targets = torch.randn(5, 3), torch.randn(5, 3).softmax(1)
    assert counted_by(nn.CrossEntropyLoss(), logits, targets, None) is None
    torch.testing.assert_close(weighted_mean(nn.CrossEntropyLoss(), logits, targets, torch.ones(5)),
                               F.cross_entropy(logits, targets))  # fmt: skip


def test_the_users_loss_keeps_its_reduction():
    loss = nn.MSELoss()
    per_sample(loss, torch.ones(3, 1), torch.zeros(3, 1))
    assert loss.reduction == "mean" and loss(torch.ones(3, 1), torch.zeros(3, 1)).ndim == 0


def test_gradients_go_through():
    prediction = torch.ones(3, 1, requires_grad=True)
    weighted_mean(nn.MSELoss(), prediction, torch.zeros(3, 1), torch.tensor([1.0, 0.0, 3.0])).backward()
    torch.testing.assert_close(prediction.grad, torch.tensor([[0.5], [0.0], [1.5]]))


def test_errors():
    a = torch.ones(3, 1)
    with pytest.raises(InvalidArgument, match=r"expected one weight for each of 3 samples, got shape \[3, 1\]"):
        weighted_mean(nn.MSELoss(), a, a, a)
    with pytest.raises(InvalidArgument, match="sample weights need a loss with reduction='mean', got 'sum'"):
        weighted_mean(nn.MSELoss(reduction="sum"), a, a, torch.ones(3))

    def mine(predictions, targets):
        return (predictions - targets).abs().mean()

    with pytest.raises(InvalidArgument, match="mine does not support sample weights: it needs a reduction"):
        weighted_mean(mine, a, a, torch.ones(3))


def test_a_partial_cross_entropy_counts_as_the_whole_one():
    pred, targets = torch.randn(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
    classes = torch.tensor([1.0, 2.0, 3.0])
    applied = partial(partial(F.cross_entropy, ignore_index=0), weight=classes)
    module = nn.CrossEntropyLoss(weight=classes, ignore_index=0)
    weight = torch.rand(6)
    assert torch.equal(weighted_mean(applied, pred, targets, weight), weighted_mean(module, pred, targets, weight))


def added(predictions, targets, *, reduction="sum"):
    return F.l1_loss(predictions, targets, reduction=reduction)


@pytest.mark.parametrize(
    ("loss", "sums"),
    [
        (nn.MSELoss(reduction="sum"), True),
        (nn.MSELoss(), False),
        (partial(F.mse_loss, reduction="sum"), True),
        (partial(partial(F.mse_loss, reduction="sum"), reduction="mean"), False),
        (partial(partial(F.cross_entropy, reduction="sum"), label_smoothing=0.1), True),
        (F.mse_loss, False),
        (added, True),
        (partial(added, reduction="mean"), False),
        (lambda predictions, targets: (predictions - targets).sum(), False),
        (torch.dist, False),
        (None, False),
    ],
)
def test_a_loss_says_by_its_reduction_whether_it_is_a_sum(loss, sums):
    assert is_sum(loss) is sums


def test_losses_that_are_no_mean_or_can_not_leave_it_out_are_refused():
    def total(predictions, targets, reduction="sum"):
        return (predictions - targets).square()

    class Stubborn(nn.Module):
        reduction = "mean"

        def forward(self, predictions, targets):
            return (predictions - targets).square().mean()

    for loss, text in (
        (total, "does not support sample weights"),
        (Stubborn(), "returns one number for the batch even"),
    ):
        with pytest.raises(InvalidArgument, match=text):
            weighted_mean(loss, torch.zeros(2, 1), torch.ones(2, 1), torch.ones(2))
