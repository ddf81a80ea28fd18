"""Dropout's masks in compiled programs: as random as they have to be, and drawn from torch's generator."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import stoker
from stoker import callbacks
from stoker.engine.executors._dropout import _mix_bits, draw_mask, fast_dropout

MANY = 2**18


def drawn_often(p, times, size=MANY):
    torch.manual_seed(0)
    return torch.stack([draw_mask(torch.Size([size]), p) for _ in range(times)]).double()


@pytest.mark.parametrize("p", [0.01, 0.1, 0.5, 0.9, 0.999])
def test_as_many_are_kept_as_should_be(p):
    found = drawn_often(p, 40).mean(1)  # of every mask
    deviation = (p * (1 - p) / MANY) ** 0.5
    assert abs(found.mean() - p) < 4 * deviation / 40**0.5
    assert 0.7 < found.std() / deviation < 1.35  # neither too far from p nor too near


@pytest.mark.parametrize("distance", [1, 2, 3, 4, 8, 26, 64, 512, 676, 1024, 4096, 65536])
def test_neighbours_know_nothing_of_each_other(distance):
    masks = drawn_often(0.5, 20) - 0.5
    together = (masks[:, distance:] * masks[:, :-distance]).mean() * 4  # their correlation
    assert abs(together) < 4.5 / (20 * (MANY - distance)) ** 0.5


def test_masks_know_nothing_of_each_other():
    masks = (drawn_often(0.5, 60, size=2**14) - 0.5) * 2
    correlations = (masks @ masks.T / 2**14)[~torch.eye(60, dtype=torch.bool)]
    assert correlations.abs().max() < 5.5 / 2**7
    assert 0.9 < correlations.std() * 2**7 < 1.1


def test_words_of_a_mask_are_all_as_frequent():
    """Bytes of eight elements that follow each other: chi-squared has 255 degrees of freedom."""
    words = drawn_often(0.5, 8).reshape(-1, 8) @ (2.0 ** torch.arange(8, dtype=torch.float64))
    counts = torch.bincount(words.long(), minlength=256).double()
    chi = ((counts - counts.mean()) ** 2 / counts.mean()).sum()
    assert 160 < chi < 370


@settings(deadline=None)
@given(st.floats(0, 1), st.integers(1, 200))
def test_what_stays_is_scaled_and_the_rest_is_zero(p, count):
    x = torch.randn(count)
    out, mask = fast_dropout(x, p, True)
    kept = x / (1 - p) if p < 1 else torch.zeros(count)
    torch.testing.assert_close(out, torch.where(mask, kept, 0.0))
    assert p < 1 or not mask.any()


@pytest.mark.parametrize(("p", "train"), [(0.0, True), (0.5, False)])
def test_nothing_is_dropped_where_nothing_should_be(p, train):
    x = torch.randn(50)
    out, mask = fast_dropout(x, p, train)
    assert torch.equal(out, x) and mask.all()


class Ones(nn.Module):
    """Says what its dropout has left of ones."""

    def __init__(self):
        super().__init__()
        self.drop, self.scale = nn.Dropout(0.25), nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.drop(torch.ones_like(x)) * self.scale


def test_a_compiled_fit_drops_other_elements_each_time_and_the_same_ones_again():
    def masks():
        seen = []
        learner = stoker.Learner(Ones(), loss=lambda found, y: found.mean(), lr=0.0, seed=5, compile=True)
        keep = callbacks.on(train_batch_end=lambda ctx: seen.append(ctx.pred.clone()))
        fitted = learner.fit(
            torch.randn(6 * 512, 8).split(3 * 512), batch_size=512, epochs=2, callbacks=[keep], show=False
        )
        assert fitted._prepared.fit.plan.mode == "compiled", fitted._prepared.fit.plan.reason
        return torch.stack(seen)

    one = masks()
    assert one.unique().tolist() == pytest.approx([0, 4 / 3])
    kept = (one > 0).flatten(1).double()
    assert abs(kept.mean() - 0.75) < 0.02
    assert torch.corrcoef(kept).fill_diagonal_(0).abs().max() < 0.08
    assert torch.equal(masks(), one)


def test_a_compiler_comes_to_the_same_hashes():
    """Products overflow on purpose, where C++ promises nothing of whole numbers with a sign."""
    numbers = torch.arange(1037, dtype=torch.int32) * -1640531535 + 77  # no multiple of what goes at once
    assert torch.equal(torch.compile(_mix_bits)(numbers), _mix_bits(numbers))
