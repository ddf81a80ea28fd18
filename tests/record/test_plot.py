"""Pictures, looked at through matplotlib's own objects."""

import sys

import matplotlib.colors
import matplotlib.pyplot as plt
import pytest
from matplotlib.figure import Figure

from stoker.errors import InvalidArgument, MissingExtra, NoSuchMetric
from stoker.record import Event, History, Record
from tests.record.stories import numbers, story


def test_a_panel_for_each_metric_with_the_best_epoch_marked(tmp_path):
    figure = History(story(valid_every=2)).plot()
    panels = figure.axes
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
    mine = Figure()
    axes = mine.subplots()
    assert History(story()).plot("lr", ax=axes) is mine and len(axes.lines) == 1


def test_a_single_epoch_can_be_seen():
    assert History(numbers([0.5])).plot().axes[0].lines[0].get_marker() == "o"


def test_train_and_valid_have_their_colours_and_pyplot_knows_nothing():
    known = plt.get_fignums()  # of other tests
    figure = History(story()).plot()
    colours = [matplotlib.colors.to_hex(line.get_color()).upper() for line in figure.axes[0].lines]
    assert colours == ["#0072B2", "#E69F00", "#E69F00"]
    assert plt.get_fignums() == known and figure._repr_png_().startswith(b"\x89PNG")


def test_a_loss_that_falls_far_is_logarithmic_and_an_accuracy_never():
    record = numbers([1.0, 0.01, 0.001])
    for epoch, value in enumerate([0.01, 0.5, 0.9], 1):
        record.append(Event("log", epoch=epoch, values={"valid/accuracy": value}))
    assert [axes.get_yscale() for axes in History(record).plot().axes] == ["log", "linear"]
    assert History(numbers([1.0, 0.0, 0.5])).plot().axes[0].get_yscale() == "linear"


def test_any_name_can_be_drawn():
    record = Record()
    for name in ("a/$\\frac$ {", "_own", "損失/🔥", "line\nbreak", "<b>&"):
        record.append(Event("epoch", epoch=1, values={name: 1.0}))
    assert History(record).plot()._repr_png_().startswith(b"\x89PNG")  # warnings are errors here


def test_the_cells_of_a_matrix_are_no_curves():
    record = Record()
    cells = {f"valid/confusion/{row}/{column}": 1.0 for row in range(3) for column in range(3)}
    record.append(Event("epoch", epoch=1, values={"valid/loss": 1.0, **cells}))
    assert [axes.get_title() for axes in History(record).plot().axes] == ["loss"]


def test_mistakes(monkeypatch):
    with pytest.raises(InvalidArgument, match="plot: there are no numbers yet; plot after the first epoch"):
        History(Record()).plot()
    with pytest.raises(NoSuchMetric, match="did you mean 'valid/loss'"):
        History(story()).plot("valid/los")
    monkeypatch.delitem(sys.modules, "stoker.record._figure", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtra, match=r'plot needs matplotlib: pip install "stoker\[plot\]"'):
        History(story()).plot()
