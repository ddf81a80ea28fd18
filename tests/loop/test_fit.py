"""What one fit works with: small answers about itself."""

import pytest
from torch import nn

from stoker.loop import Settings
from tests.loop.fits import learner, line, linear, samples


def test_where_it_stands_in_words():
    fit = learner().fit(samples(), epochs=2, batch_size=50, show=False)._fit
    fit.ctx.set_name = "train"
    assert fit.where() == ", train, epoch 2, batch 3"


@pytest.mark.parametrize(
    ("loss", "expected"), [(nn.MSELoss(), "mean"), (nn.MSELoss(reduction="sum"), "sum")], ids=["mean", "sum"]
)
def test_a_window_makes_of_batches_what_the_loss_makes_of_samples(loss, expected):
    assert linear(loss=loss, lr=1e-4).fit(line(), epochs=1, show=False)._fit.reduce == expected


def test_what_is_judged_is_the_average_where_there_is_one():
    plain, averaged = (learner(ema=ema).fit(samples(32), epochs=1, show=False)._fit for ema in (None, 0.9))
    assert plain.judged is plain.model
    assert averaged.judged is averaged.average.model is not averaged.model


def test_nothing_is_kept_for_a_fit_without_a_run():
    """What makes a fit durable costs nothing where it is not wanted."""
    fit = learner().fit(samples(32), epochs=1, show=False)._fit
    assert (fit.saver, fit.watch, fit.unsaved, fit.mark, fit.resumed, fit.reopen) == (None,) * 6
    assert fit.leave_at is None and not fit.cut


def test_settings_are_frozen():
    with pytest.raises(AttributeError):
        Settings().epochs = 5
