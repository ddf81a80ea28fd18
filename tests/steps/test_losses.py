"""The values of a loss for each sample, and what its mean divides by."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from stoker import InvalidArgument
from stoker.steps import Parts, Supervised, per_sample, weighted_mean


def mean_divisor(loss, predictions, targets, weight):
    """What the loss is a mean over, as a supervised step reports it."""
    return Supervised(nn.Identity(), loss).score(predictions, Parts((), {}, targets, weight)).count


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
def test_values_and_divisors_give_the_mean_of_the_loss(name, shape, seed):
    loss, (logits, targets) = LOSSES[name], classes(seed, *shape)
    values, shares = per_sample(loss, logits, targets)
    assert values.shape == shares.shape == (shape[0],)
    torch.testing.assert_close(values.sum() / shares.sum(), loss(logits, targets))
    torch.testing.assert_close(mean_divisor(loss, logits, targets, None), shares.sum(), check_dtype=False)
    torch.testing.assert_close(
        weighted_mean(loss, logits, targets, torch.ones(shape[0]).double()), loss(logits, targets)
    )


@pytest.mark.parametrize("name", LOSSES)
def test_an_integer_weight_repeats_the_sample(name):
    loss, (logits, targets) = LOSSES[name], classes(3, 6)
    times = torch.tensor([2, 0, 1, 3, 0, 1])
    repeated = loss(logits.repeat_interleave(times, 0), targets.repeat_interleave(times, 0))
    torch.testing.assert_close(weighted_mean(loss, logits, targets, times.double()), repeated)


@pytest.mark.parametrize("name", LOSSES)
def test_the_means_of_two_halves_weighted_by_their_counts_are_the_mean_of_the_whole(name):
    """Gradient accumulation and the mean loss of an epoch rest on this."""
    loss, (logits, targets), weight = LOSSES[name], classes(8, 10), weights(8, 10)
    parts = [slice(0, 3), slice(3, 10)]
    means = [weighted_mean(loss, logits[part], targets[part], weight[part]) for part in parts]
    counts = [mean_divisor(loss, logits[part], targets[part], weight[part]) for part in parts]
    joined = sum(mean * count for mean, count in zip(means, counts, strict=True)) / sum(counts)
    torch.testing.assert_close(joined, weighted_mean(loss, logits, targets, weight))


def test_regression_losses_of_any_shape():
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(6, 2, 3, generator=generator), torch.randn(6, 2, 3, generator=generator)
    for loss in (nn.MSELoss(), nn.L1Loss(), nn.SmoothL1Loss(), F.mse_loss):
        torch.testing.assert_close(weighted_mean(loss, a, b, torch.ones(6)), loss(a, b))
        assert mean_divisor(loss, a, b, None) is None


def test_targets_that_are_probabilities_count_one_each():
    logits, targets = torch.randn(5, 3), torch.randn(5, 3).softmax(1)
    assert mean_divisor(nn.CrossEntropyLoss(), logits, targets, None) is None
    torch.testing.assert_close(weighted_mean(nn.CrossEntropyLoss(), logits, targets, torch.ones(5)),
                               F.cross_entropy(logits, targets))  # fmt: skip


def test_the_users_loss_keeps_its_reduction():
    loss = nn.MSELoss()
    per_sample(loss, torch.ones(3, 1), torch.zeros(3, 1))
    assert loss.reduction == "mean" and loss(torch.ones(3, 1), torch.zeros(3, 1)).ndim == 0


def test_a_weighted_mean_is_differentiable():
    prediction = torch.ones(3, 1, requires_grad=True)
    weighted_mean(nn.MSELoss(), prediction, torch.zeros(3, 1), torch.tensor([1.0, 0.0, 3.0])).backward()
    torch.testing.assert_close(prediction.grad, torch.tensor([[0.5], [0.0], [1.5]]))


def test_errors_of_sample_weights():
    a = torch.ones(3, 1)
    with pytest.raises(InvalidArgument, match=r"expected one weight for each of 3 samples, got shape \[3, 1\]"):
        weighted_mean(nn.MSELoss(), a, a, a)
    with pytest.raises(InvalidArgument, match="sample weights need a loss with reduction='mean', got 'sum'"):
        weighted_mean(nn.MSELoss(reduction="sum"), a, a, torch.ones(3))

    def mine(predictions, targets):
        return (predictions - targets).abs().mean()

    with pytest.raises(InvalidArgument, match="mine does not support sample weights: it needs a reduction"):
        weighted_mean(mine, a, a, torch.ones(3))


def test_a_partial_of_cross_entropy_counts_like_the_module():
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
        (F.mse_loss, False),
        (added, True),
        (partial(added, reduction="mean"), False),
        (lambda predictions, targets: (predictions - targets).sum(), True),
    ],
)
def test_the_first_batch_shows_whether_a_loss_is_a_sum(loss, sums):
    step = Supervised(nn.Identity(), loss)
    assert step.sums is None
    step.score(torch.rand(1, 2), Parts((), {}, torch.rand(1, 2)))
    assert step.sums is sums and step.is_loss_known


def test_losses_without_a_mean_that_can_be_omitted_are_refused():
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
