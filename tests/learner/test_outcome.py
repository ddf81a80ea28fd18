"""What a fit has come to, as a value that keeps nothing of the fit alive."""

import dataclasses

import pytest

from stoker.learner._outcome import Outcome, outcome_of
from tests.engine.fits import line, linear


def test_it_is_what_the_fit_has():
    fitted = linear().fit(line(), valid=line(), epochs=2, show=False)
    outcome = outcome_of(fitted._prepared.fit)
    assert (outcome.epochs, outcome.updates, outcome.stopped) == (2, 4, "Completed 2 epochs")
    assert outcome.model is fitted.model and outcome.record is fitted.record
    assert outcome.best == fitted.best and outcome.precision == "fp32"
    assert outcome.device == outcome.home and outcome.supervised is fitted._prepared.fit.supervised


def test_it_changes_when_a_fit_goes_on_and_not_by_itself():
    fitted = linear().fit(line(), epochs=1, show=False)
    before = fitted._outcome
    fitted.continue_(epochs=1, show=False)
    assert (before.epochs, fitted.epochs) == (1, 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.epochs = 5


def test_it_has_no_place_for_the_data():
    assert {field.name for field in dataclasses.fields(Outcome)} == {
        *("model", "record", "best", "epochs", "updates", "stopped"),
        *("supervised", "metrics", "precision", "device", "home", "run", "split"),
    }
