"""The contract of trackers: each of ours keeps it, and so does one that a user writes."""

import inspect

import pytest

from stoker.callbacks import Sink, Tracked
from stoker.callbacks._mlflow import _Client
from stoker.callbacks._tensorboard import _Files
from stoker.callbacks._trackio import _Process
from stoker.callbacks._wandb import _Online
from tests.callbacks.sinks import Listed


@pytest.mark.parametrize("sink", [_Files, _Client, _Online, _Process, Listed], ids=lambda sink: sink.__name__)
@pytest.mark.parametrize("method", ["open", "write", "text", "close"])
def test_a_sink_has_the_methods_with_these_parameters(sink, method):
    asked, found = (inspect.signature(getattr(each, method)) for each in (Sink, sink))
    assert [(each.name, each.kind) for each in found.parameters.values()] == [
        (each.name, each.kind) for each in asked.parameters.values()
    ]


def test_what_is_tracked_is_a_value():
    run = Tracked("1f", "digits", None, {"lr": 0.1}, {}, 0, 1.0)
    with pytest.raises(AttributeError):
        run.name = "other"
