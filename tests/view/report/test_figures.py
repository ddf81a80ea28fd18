"""The matplotlib figures hold the numbers they are made of."""

import numpy as np
import pytest

from stoker.errors import InvalidArgument
from stoker.record import Event, Record
from stoker.view.report import calibration, confusion, evaluate_predictions, lr_curve, measure_calibration, plot
from tests.record.examples import example_record


def texts_in(figure):
    return [text.get_text() for text in figure.axes[0].texts]


def record_matrices(matrices, losses):
    record = Record()
    for epoch, (matrix, loss) in enumerate(zip(matrices, losses, strict=True), 1):
        cells = {f"valid/confusion/{row}/{column}": matrix[row][column] for row in (0, 1) for column in (0, 1)}
        place = {"time": float(epoch), "epoch": epoch, "update": 10 * epoch}
        record.append(Event("valid", values={"valid/loss": loss, **cells}, **place))
        record.append(Event("epoch", values={"valid/loss": loss, **cells}, **place))
    return record


def test_curves_are_those_of_the_history():
    lines = plot(example_record(), "valid/loss").axes[0].lines
    assert list(lines[0].get_ydata()) == example_record().series("valid/loss")


def test_the_learning_rate_over_the_updates():
    record = Record()
    for update, rate in enumerate([1e-1, 1e-2, 1e-4], 1):
        record.append(Event("progress", 10.0 * update, update=update, values={"lr/head": rate, "lr/*": rate / 2}))
    axes = plot(record, kind="lr").axes[0]
    assert [line.get_label() for line in axes.lines] == ["lr/head", "lr/*"] and axes.get_yscale() == "linear"
    assert [axes.get_xlabel(), axes.get_ylabel()] == ["Update", "Learning rate"]
    assert axes.lines[0].get_xdata().tolist() == [1, 2, 3] and axes.lines[0].get_ydata().tolist() == [1e-1, 1e-2, 1e-4]
    with pytest.raises(InvalidArgument, match=r"recorded no learning rate; add metrics.LearningRate\(\)"):
        plot(Record(), kind="lr")


def test_the_confusion_matrix_is_the_evaluations_or_the_best_epochs():
    record = record_matrices([[[1, 2], [3, 4]], [[5, 0], [0, 6]], [[0, 9], [9, 0]]], [0.5, 0.1, 0.7])
    assert texts_in(plot(record, kind="confusion")) == ["1.00\n5", "0.00\n0", "0.00\n0", "1.00\n6"]
    found = evaluate_predictions(np.eye(2), [0, 0], labels=["cat", "dog"])
    assert texts_in(plot(record, kind="confusion", evaluation=found)) == ["0.50\n1", "0.50\n1", "0.00\n0", "0.00\n0"]
    with pytest.raises(InvalidArgument, match="the run has no confusion matrix; give data= to fitted.plot, or add"):
        plot(example_record(), kind="confusion")


def test_a_confusion_matrix_holds_the_counts():
    figure = confusion([[8, 2, 0], [1, 9, 0], [0, 0, 0]], ["cat", "$dog", "_"])
    axes = figure.axes[0]
    assert texts_in(figure)[:4] == ["0.80\n8", "0.20\n2", "0.00\n0", "0.10\n1"]
    assert figure.axes[1].get_ylabel() == "Share of true label", "a color bar"
    assert axes.images[0].get_array().tolist() == [[0.8, 0.2, 0], [0.1, 0.9, 0], [0, 0, 0]]
    assert [axes.get_xlabel(), axes.get_ylabel()] == ["Predicted label", "True label"]
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_many_classes_are_drawn_without_counts():
    axes = confusion(np.eye(50)).axes[0]
    assert len(axes.texts) == 0 and axes.images[0].get_array().shape == (50, 50)


def test_a_calibration_shows_the_filled_bins():
    random = np.random.default_rng(0)
    values, targets = random.dirichlet(np.ones(5), 500), random.integers(0, 5, 500)
    found, axes = measure_calibration(values, targets), calibration(values, targets).axes[0]
    filled = found.count > 0
    assert not filled.all(), "an empty bin is part of this test"
    line = axes.lines[1]
    assert np.array_equal(line.get_xdata(), found.confidence[filled])
    assert np.array_equal(line.get_ydata(), found.accuracy[filled])
    assert sum(bar.get_height() for bar in axes.patches) == pytest.approx(1)
    evaluation = evaluate_predictions(values, targets)
    title = plot(example_record(), kind="calibration", evaluation=evaluation).axes[0].get_title()
    assert title == axes.get_title() == f"Calibration error {found.error:.3f}"
    assert [axes.get_xlabel(), axes.get_ylabel()] == ["Mean predicted probability", "Fraction of positives"]
    with pytest.raises(InvalidArgument, match="a calibration needs a classifier's predictions on a data set"):
        plot(example_record(), kind="calibration")


def test_the_curve_of_learning_rates_marks_the_suggestion():
    axes = lr_curve([1e-3, 1e-2, 1e-1], [2.3, 1.1, 3.0], 1e-2).axes[0]
    curve, marker = axes.lines
    assert np.array_equal(curve.get_xdata(), [1e-3, 1e-2, 1e-1]) and np.array_equal(curve.get_ydata(), [2.3, 1.1, 3.0])
    assert list(marker.get_xdata()) == [1e-2, 1e-2] and axes.get_legend().get_texts()[0].get_text() == "suggestion 0.01"
    assert len(lr_curve([1e-3, 1e-2], [2.3, 1.1]).axes[0].lines) == 1


def test_wrong_arguments():
    with pytest.raises(InvalidArgument, match="names choose curves, but kind='lr' has none; leave out valid/loss"):
        plot(example_record(), "valid/loss", kind="lr")
    with pytest.raises(InvalidArgument, match="kind='pie'; expected \"curves\""):
        plot(example_record(), kind="pie")
    with pytest.raises(InvalidArgument, match=r"expected a square matrix, \[classes, classes\]; got \[2, 3\]"):
        confusion(np.ones((2, 3)))
    with pytest.raises(InvalidArgument, match="1 labels for 2 classes"):
        confusion(np.ones((2, 2)), ["cat"])


@pytest.mark.parametrize("kind", ["curves", "confusion"])
def test_sizes_for_paper_and_slide_and_vector_output(kind, tmp_path):
    record = record_matrices([[[1, 2], [3, 4]], [[5, 0], [0, 6]]], [0.5, 0.1])
    screen, paper, slide = (plot(record, kind=kind, size=size) for size in ("screen", "paper", "slide"))
    widths = [figure.get_size_inches()[0] for figure in (paper, screen, slide)]
    fonts = [figure.axes[0].yaxis.label.get_size() for figure in (paper, screen, slide)]
    assert widths[0] == 0.75 * widths[1] and widths[2] == 1.5 * widths[1] and fonts == [8.0, 10.0, 18.0]
    paper.savefig(tmp_path / "figure.svg")
    svg = (tmp_path / "figure.svg").read_text()
    assert "<path" in svg and ("<image" in svg) == (kind == "confusion"), "curves are vectors"
    paper.savefig(tmp_path / "figure.pdf")
    assert (tmp_path / "figure.pdf").read_bytes().startswith(b"%PDF")
    with pytest.raises(InvalidArgument, match="size='poster'; expected 'screen', 'paper', 'slide'"):
        plot(record, kind=kind, size="poster")
