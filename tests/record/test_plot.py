"""Pictures, looked at through matplotlib's own objects."""

import sys

import matplotlib
import matplotlib.pyplot as plt
import pytest

from stoker.errors import InvalidArgument, MissingExtra, NoSuchMetric
from stoker.record import History, Record
from tests.record.stories import numbers, story


@pytest.fixture(autouse=True)
def _on_paper():
    before = matplotlib.get_backend()
    plt.switch_backend("agg")
    yield
    plt.close("all")
    plt.switch_backend(before)


def test_a_panel_for_each_metric_with_the_best_epoch_marked(tmp_path):
    figure = History(story(valid_every=2)).plot()
    panels = [axes for axes in figure.axes if axes.axison]
    assert [axes.get_title() for axes in panels] == ["loss", "accuracy", "lr"]
    train, valid, best = panels[0].lines
    assert list(train.get_xdata()) == [1, 2, 3, 4, 5] and list(valid.get_xdata()) == [2, 4]
    assert list(best.get_xdata()) == [2] and best.get_label() == "best: 0.6000 in epoch 2"
    assert [text.get_text() for text in panels[1].get_legend().get_texts()] == ["train/accuracy", "valid/accuracy"]
    assert panels[0].get_xlabel() == "epoch"
    figure.savefig(tmp_path / "plot.png")


def test_chosen_names_share_a_panel():
    figure = History(story()).plot("train/loss", "lr")
    assert len(figure.axes) == 1 and [line.get_label() for line in figure.axes[0].lines] == ["train/loss", "lr"]


def test_the_users_own_axes():
    mine, axes = plt.subplots()
    assert History(story()).plot("lr", ax=axes) is mine and len(axes.lines) == 1


def test_a_single_epoch_can_be_seen():
    assert History(numbers([0.5])).plot().axes[0].lines[0].get_marker() == "o"


def test_mistakes(monkeypatch):
    with pytest.raises(InvalidArgument, match="plot: there are no numbers yet; plot after the first epoch"):
        History(Record()).plot()
    with pytest.raises(NoSuchMetric, match="did you mean 'valid/loss'"):
        History(story()).plot("valid/los")
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(MissingExtra, match=r'plot needs matplotlib: pip install "stoker\[plot\]"'):
        History(story()).plot()
