"""Figures of a history, and the helpers that viewers draw with."""

import math
import sys

import matplotlib.colors
import matplotlib.pyplot as plt
import pytest
from matplotlib.figure import Figure

from stoker._figure import escape_label, figure_of, new_figure
from stoker.errors import InvalidArgument, MissingExtra, NoSuchMetric
from stoker.record import (
    Event,
    History,
    LineStyle,
    Record,
    group_by_metric,
    line_styles,
    use_log_scale,
)
from tests.record.examples import example_record, record_of


def test_there_is_a_panel_for_each_metric_with_the_best_epoch_marked(tmp_path):
    figure = example_record(valid_every=2).plot()
    panels = figure.axes
    assert [axes.get_ylabel() for axes in panels] == ["loss", "accuracy", "lr"]
    train, valid, best = panels[0].lines
    assert list(train.get_xdata()) == [1, 2, 3, 4, 5] and list(valid.get_xdata()) == [2, 4]
    assert list(best.get_xdata()) == [2] and best.get_label() == "best: 0.6000 in epoch 2"
    assert [text.get_text() for text in panels[1].get_legend().get_texts()] == ["train/accuracy", "valid/accuracy"]
    assert panels[0].get_xlabel() == "Epoch"
    figure.savefig(tmp_path / "plot.png")


def test_it_draws_on_given_axes():
    mine = Figure()
    axes = mine.subplots()
    assert History(example_record()).plot("lr", ax=axes) is mine and len(axes.lines) == 1
    inside = mine.subfigures(1, 2)[0].subplots()
    assert figure_of(inside) is mine and figure_of(Figure().subplots()) is not mine


def test_train_and_valid_have_fixed_colors_and_pyplot_does_not_know_the_figure():
    known = plt.get_fignums()  # of other tests
    figure = History(example_record()).plot()
    colors = [matplotlib.colors.to_hex(line.get_color()).upper() for line in figure.axes[0].lines]
    assert colors == ["#0072B2", "#E69F00", "#E69F00"]
    assert plt.get_fignums() == known and figure.canvas.manager is None
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_a_loss_that_falls_far_gets_a_logarithmic_axis_and_an_accuracy_never():
    record = record_of([1.0, 0.01, 0.001])
    for epoch, value in enumerate([0.01, 0.5, 0.9], 1):
        record.append(Event("log", epoch=epoch, values={"valid/accuracy": value}))
    assert [axes.get_yscale() for axes in History(record).plot().axes] == ["log", "linear"]
    assert History(record_of([1.0, 0.0, 0.5])).plot().axes[0].get_yscale() == "linear"
    assert use_log_scale([1.0, 0.01, math.nan, math.inf]) and use_log_scale([5e-324, 1e308])
    assert not any(map(use_log_scale, ([], [math.nan], [1.0, 0.5], [1.0, 0.0], [1.0, -0.01])))


@pytest.mark.parametrize("name", ["loss", "損失🔥", r"$\frac", r"a$\frac$c", "_own", "line\nbreak", "\x00"], ids=ascii)
def test_any_name_can_be_a_label(name):
    figure = new_figure(2, 1)
    axes = figure.subplots()
    axes.set_title(escape_label(name))
    axes.plot([1], [1], label=escape_label(name))
    assert len(axes.legend().get_texts()) == 1
    assert figure._repr_png_()  # warnings are errors here


def test_mistakes_are_errors_that_say_what_to_do(monkeypatch):
    with pytest.raises(InvalidArgument, match="plot: there are no numbers yet; plot after the first epoch"):
        History(Record()).plot()
    with pytest.raises(NoSuchMetric, match="did you mean 'valid/loss'"):
        History(example_record()).plot("valid/los")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtra, match=r'plot needs matplotlib: pip install "stoker\[plot\]"'):
        History(example_record()).plot()


def test_a_metric_of_all_sets_and_classes_is_one_group():
    names = ["train/loss", "near/loss", "far/loss", "lr", "samples_per_second", "valid/recall/0", "train/recall/0"]
    assert group_by_metric([*names, "lr/body.*"]) == {
        "loss": ["train/loss", "near/loss", "far/loss"],
        "lr": ["lr", "lr/body.*"],
        "samples_per_second": ["samples_per_second"],
        "recall": ["valid/recall/0", "train/recall/0"],
    }


def test_sixteen_lines_have_sixteen_styles():
    styles = line_styles([f"valid/recall/{label}" for label in range(16)])
    assert len(set(styles.values())) == 16 and styles["valid/recall/0"] == LineStyle("#E69F00")
    assert line_styles(["lr", "train/loss"]) == {"lr": LineStyle("#009E73"), "train/loss": LineStyle("#0072B2")}
