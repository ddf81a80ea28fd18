"""All stations of a batch as a function of tensors."""

import pytest
import torch

from stoker import schedule
from stoker.loop._stations import Stations
from tests.loop.fits import samples
from tests.loop.test_lend import a_fit


def test_the_rates_are_tensors_as_wide_as_the_numbers_that_eager_takes():
    fit, stations = a_fit()
    fit.ctx.lr = 0.1
    stations.set_rates()
    (rate,) = stations.inputs().rates
    assert rate.item() == 0.1 and rate.dtype == torch.float64
    fit.ctx.lr = 0.3
    stations.set_rates()
    assert stations.inputs().rates[0] is rate and rate.item() == 0.3


def test_several_rates_have_a_tensor_each():
    fit, _ = a_fit(lr={"head": schedule.linear(1.0, 0.0, steps=4), "*": 0.1})
    stations = Stations(fit)
    fit.ctx.lr = {"head": 0.5, "*": 0.25}
    stations.set_rates()
    assert [rate.item() for rate in stations.inputs().rates] == [0.5, 0.25]


def test_a_number_that_stays_is_a_turn_and_one_that_changes_is_none():
    fit, stations = a_fit()
    fit.steady = True
    one = stations.turn()
    fit.ctx.lr = 0.5
    assert stations.turn() != one
    fit.steady = False
    one = stations.turn()
    fit.ctx.lr = 0.25
    assert stations.turn() == one
    fit.ctx.accumulating = True
    assert stations.turn() != one


def test_nothing_is_read_on_the_device_and_everything_outside():
    fit, stations = a_fit()
    with stations.on_device():
        assert fit.verdict is stations.verdict and fit.rates_held is not None
    assert fit.verdict is None and fit.rates_held is None


def test_what_is_kept_can_be_held_again():
    fit, stations = a_fit(accumulate=2)
    fit.ctx.accumulating = True
    stations.run(next(iter(fit.train)))
    stations.ready()
    kept = stations.kept()
    count, weight, sums = kept["windows"][None]
    assert count == 1
    assert set(sums) == {name for name, _ in fit.model.named_parameters()} and float(weight) > 0
    stations.hold(kept)
    assert stations.kept()["windows"][None][0] == count


def test_a_run_that_was_not_finite_is_done_again_and_raises_where_it_was():
    _, stations = a_fit()
    x, y = samples(16)
    with pytest.raises(ArithmeticError, match="epoch 4, batch 9"):
        stations.fail((x * float("nan"), y), (4, 9, 30, 0.01, False, False))
    with pytest.raises(ArithmeticError, match="run again for the search, they were"):
        stations.fail((x, y), (4, 9, 30, 0.01, False, False))


def test_the_step_of_a_model_runs_in_training_mode():
    fit, stations = a_fit()
    fit.model.eval()
    assert stations.turn()[-1] is False
    stations.run(next(iter(fit.train)))
    assert fit.model.training
