"""The pictures of a run, by kind."""

import numpy as np
import pytest

from stoker.errors import InvalidArgument
from stoker.record import Event, Record
from stoker.view.report import judged, plot
from tests.record.stories import story


def test_curves_are_the_historys():
    lines = plot(story(), "valid/loss").axes[0].lines
    assert list(lines[0].get_ydata()) == story().series("valid/loss")


def test_the_learning_rate_over_the_updates():
    record = Record()
    for update, rate in enumerate([1e-1, 1e-2, 1e-4], 1):
        record.append(Event("progress", 10.0 * update, update=update, values={"lr/head": rate, "lr/*": rate / 2}))
    axes = plot(record, kind="lr").axes[0]
    assert [line.get_label() for line in axes.lines] == ["lr/head", "lr/*"] and axes.get_yscale() == "log"
    assert axes.lines[0].get_xdata().tolist() == [1, 2, 3] and axes.lines[0].get_ydata().tolist() == [1e-1, 1e-2, 1e-4]
    with pytest.raises(InvalidArgument, match=r"no learning rate was recorded; add metrics.LearningRate\(\)"):
        plot(Record(), kind="lr")


def test_confusions_of_a_judgement_or_of_the_record():
    found = judged(np.eye(2), [0, 0], labels=["cat", "dog"])
    axes = plot(story(), kind="confusion", judgement=found).axes[0]
    assert [text.get_text() for text in axes.texts] == ["1", "1", "0", "0"]
    record = story()
    cells = {f"valid/confusion/{row}/{column}": float(row + column) for row in (0, 1) for column in (0, 1)}
    record.append(Event("log", epoch=5, values=cells))
    assert [text.get_text() for text in plot(record, kind="confusion").axes[0].texts] == ["0", "1", "1", "2"]
    with pytest.raises(InvalidArgument, match="the run has no confusion matrix; give fitted.plot data=, or add"):
        plot(story(), kind="confusion")


def test_calibration():
    found = judged([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]], [0, 1, 1])
    assert plot(story(), kind="calibration", judgement=found).axes[0].get_title() == "calibration error 0.300"
    with pytest.raises(InvalidArgument, match="a calibration needs a classifier's answers to a data set"):
        plot(story(), kind="calibration")


def test_mistakes():
    with pytest.raises(InvalidArgument, match="names choose curves, and kind='lr' has none; leave out valid/loss"):
        plot(story(), "valid/loss", kind="lr")
    with pytest.raises(InvalidArgument, match="kind='pie'; expected \"curves\""):
        plot(story(), kind="pie")
