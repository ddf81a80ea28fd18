"""The arguments of fit, checked before anything happens."""

import pytest

from stoker import InvalidArgument, WrongType, callbacks
from tests.engine.fits import line, linear


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({}, InvalidArgument, "say how long to train: epochs=, updates= or minutes="),
        ({"epochs": 0}, InvalidArgument, "epochs must be above 0, got 0"),
        ({"epochs": 2.5}, WrongType, "epochs is a whole number, got 2.5"),
        ({"epochs": True}, WrongType, "epochs is a whole number, got True"),
        ({"updates": "9"}, WrongType, "updates is a whole number, got '9'"),
        ({"minutes": -1}, InvalidArgument, "minutes must be above 0"),
        ({"minutes": float("nan")}, InvalidArgument, "minutes must be above 0, got nan"),
        ({"epochs": 1, "keep": "all"}, InvalidArgument, 'keep is "best" or "last", got \'all\''),
        ({"epochs": 1, "validate_every": 0}, InvalidArgument, 'validate_every is "epoch" or a number of updates'),
        ({"epochs": 1, "validate_every": "batch"}, InvalidArgument, "validate_every"),
        ({"epochs": 1, "batch_size": 0}, InvalidArgument, "batch_size"),
        ({"epochs": 1, "callbacks": callbacks.EarlyStopping()}, WrongType, "callbacks is a list"),
        ({"epochs": 1, "callbacks": [callbacks.EarlyStopping]}, WrongType, "make one of it"),
        ({"epochs": 1, "config": {"a": 1}}, InvalidArgument, "config is written into the run's directory"),
    ],
)
def test_nonsense_for_fit(settings, error, text):
    with pytest.raises(error, match=text):
        linear().fit(line(), show=False, **settings)
