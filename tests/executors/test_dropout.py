"""The dropout masks of compiled steps: statistically independent, and drawn from torch's generator."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import stoker
from stoker import callbacks
from stoker.engine.executors._dropout import draw_mask, fast_dropout, hash_elements
from tests.executors.fits import plan_of

MANY = 2**18


def draw_masks(p, times, size=MANY):
    torch.manual_seed(0)
    return torch.stack([draw_mask(torch.Size([size]), p) for _ in range(times)]).double()


@pytest.mark.parametrize("p", [0.01, 0.1, 0.5, 0.9, 0.999])
def test_the_share_of_kept_elements_has_the_right_mean_and_deviation(p):
    shares = draw_masks(p, 40).mean(1)  # one for each mask
    deviation = (p * (1 - p) / MANY) ** 0.5
    assert abs(shares.mean() - p) < 4 * deviation / 40**0.5
    assert 0.7 < shares.std() / deviation < 1.35


@pytest.mark.parametrize("distance", [1, 2, 3, 4, 8, 26, 64, 512, 676, 1024, 4096, 65536])
def test_elements_of_a_mask_are_uncorrelated(distance):
    masks = draw_masks(0.5, 20) - 0.5
    correlation = (masks[:, distance:] * masks[:, :-distance]).mean() * 4
    assert abs(correlation) < 4.5 / (20 * (MANY - distance)) ** 0.5


def test_masks_are_uncorrelated():
    masks = (draw_masks(0.5, 60, size=2**14) - 0.5) * 2
    correlations = (masks @ masks.T / 2**14)[~torch.eye(60, dtype=torch.bool)]
    assert correlations.abs().max() < 5.5 / 2**7
    assert 0.9 < correlations.std() * 2**7 < 1.1


def test_all_patterns_of_eight_elements_are_equally_frequent():
    """A chi-squared test with 255 degrees of freedom."""
    patterns = draw_masks(0.5, 8).reshape(-1, 8) @ (2.0 ** torch.arange(8, dtype=torch.float64))
    counts = torch.bincount(patterns.long(), minlength=256).double()
    chi = ((counts - counts.mean()) ** 2 / counts.mean()).sum()
    assert 160 < chi < 370


@settings(deadline=None)
@given(st.floats(0, 1), st.integers(1, 200))
def test_kept_elements_are_scaled_and_the_others_are_zero(p, count):
    x = torch.randn(count)
    out, mask = fast_dropout(x, p, True)
    kept = x / (1 - p) if p < 1 else torch.zeros(count)
    torch.testing.assert_close(out, torch.where(mask, kept, 0.0))
    assert p < 1 or not mask.any()


@pytest.mark.parametrize(("p", "train"), [(0.0, True), (0.5, False)])
def test_nothing_is_dropped_for_p_zero_or_in_evaluation(p, train):
    x = torch.randn(50)
    out, mask = fast_dropout(x, p, train)
    assert torch.equal(out, x) and mask.all()


class Ones(nn.Module):
    """Returns the dropout of ones."""

    def __init__(self):
        super().__init__()
        self.drop, self.scale = nn.Dropout(0.25), nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.drop(torch.ones_like(x)) * self.scale


@pytest.mark.soak
def test_a_compiled_fit_draws_a_new_mask_for_each_step_and_the_same_masks_for_the_same_seed():
    def masks():
        seen = []
        learner = stoker.Learner(Ones(), loss=lambda pred, y: pred.mean(), lr=0.0, seed=5, compile=True)
        keep = callbacks.on(train_batch_end=lambda ctx: seen.append(ctx.pred.clone()))
        fitted = learner.fit(
            torch.randn(6 * 512, 8).split(3 * 512), batch_size=512, epochs=2, callbacks=[keep], show=False
        )
        assert plan_of(fitted).mode == "compiled", plan_of(fitted).reason
        return torch.stack(seen)

    first = masks()
    assert first.unique().tolist() == pytest.approx([0, 4 / 3])
    kept = (first > 0).flatten(1).double()
    assert abs(kept.mean() - 0.75) < 0.02
    assert torch.corrcoef(kept).fill_diagonal_(0).abs().max() < 0.08
    assert torch.equal(masks(), first)


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # of torch, when it imports its compiler
def test_the_compiled_hash_equals_the_eager_one():
    """The products overflow on purpose; in C++ the overflow of signed integers is undefined."""

    def mask(values, seeds):
        return values * (hash_elements(values.shape, *seeds) < 2**23)

    seeds = torch.tensor([77, -1234567891], dtype=torch.int32)
    for values in torch.ones(5, 7), torch.ones(1037):  # their sizes are not multiples of the vector width
        assert torch.equal(torch.compile(mask, dynamic=False)(values, seeds), mask(values, seeds))
