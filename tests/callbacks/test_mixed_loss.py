import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import stoker
from stoker import InvalidArgument
from stoker.callbacks import mixed_loss

CLASSES = 4


def by_hand(values, divisors, targets, other, weight):
    """Pair by pair, in plain numbers: what a pair adds to the sum, and to what the sum is divided by."""
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


@settings(deadline=None, max_examples=60)
@given(cases(), st.booleans(), st.sampled_from([0.0, 0.1]), st.sampled_from([-100, 0]))
def test_cross_entropy_pair_by_pair(case, weighted, smoothing, ignore):
    pred, targets, other, weight = case
    class_weight = torch.tensor([0.5, 1.0, 2.0, 3.0], dtype=torch.float64) if weighted else None
    targets[0] = 1  # something is left to divide by
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


@settings(deadline=None, max_examples=40)
@given(cases())
def test_the_other_losses_pair_by_pair(case):
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


def test_whole_weights_give_the_loss_itself_and_shared_ones_the_average():
    torch.manual_seed(0)
    pred, targets, other = torch.randn(8, CLASSES, 3, 5), torch.randint(4, (8, 3, 5)), torch.randint(4, (8, 3, 5))
    loss = nn.CrossEntropyLoss()
    torch.testing.assert_close(mixed_loss(loss, pred, targets, other, torch.ones(8)), loss(pred, targets))
    torch.testing.assert_close(mixed_loss(loss, pred, targets, other, torch.zeros(8)), loss(pred, other))
    mixed = mixed_loss(loss, pred, targets, other, torch.full((8,), 0.3))
    torch.testing.assert_close(mixed, 0.3 * loss(pred, targets) + 0.7 * loss(pred, other))


def test_weights_of_pairs_do_not_collapse_to_their_mean():
    """A pair with all of its weight on a wrong target costs; the same weights the other way round cost nothing."""
    pred, targets, other = torch.zeros(2, 1), torch.tensor([[1.0], [0.0]]), torch.tensor([[0.0], [1.0]])
    assert mixed_loss(nn.MSELoss(), pred, targets, other, torch.tensor([1.0, 0.0])).item() == 1.0
    assert mixed_loss(nn.MSELoss(), pred, targets, other, torch.tensor([0.0, 1.0])).item() == 0.0
    with pytest.raises(InvalidArgument, match=r"one number for each of the 2 samples; got shape \[2, 1\]"):
        mixed_loss(nn.MSELoss(), pred, targets, other, torch.ones(2, 1))


def test_samples_weights_multiply_both_pairs():
    torch.manual_seed(0)
    pred, targets, other = torch.randn(5, CLASSES), torch.randint(4, (5,)), torch.randint(4, (5,))
    weight, sample_weight, loss = torch.rand(5), torch.tensor([1.0, 0.0, 2.0, 0.0, 1.0]), nn.CrossEntropyLoss()
    kept = [0, 2, 2, 4]  # weight 2 is twice the same sample
    torch.testing.assert_close(
        mixed_loss(loss, pred, targets, other, weight, sample_weight=sample_weight),
        mixed_loss(loss, pred[kept], targets[kept], other[kept], weight[kept]),
    )
    with pytest.raises(InvalidArgument, match=r"the sample_weight of a mixed loss .* got shape \[4\]"):
        mixed_loss(loss, pred, targets, other, weight, sample_weight=torch.ones(4))


def test_gradients_flow_and_the_users_loss_is_unchanged():
    model, loss = nn.Linear(3, CLASSES), nn.CrossEntropyLoss()
    targets = torch.tensor([0, 1])
    mixed = mixed_loss(loss, model(torch.randn(2, 3)), targets, targets.flip(0), torch.tensor([0.9, 0.6]))
    grads = stoker.backward(mixed, model)
    assert grads["weight"].abs().sum() > 0 and loss.reduction == "mean"


def test_a_loss_that_gives_one_number_is_refused():
    with pytest.raises(InvalidArgument, match="use a loss with a reduction"):
        mixed_loss(
            lambda p, t: (p - t).abs().mean(), torch.ones(2, 1), torch.ones(2, 1), torch.ones(2, 1), torch.ones(2)
        )
