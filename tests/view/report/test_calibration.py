"""Calibration, beside torchmetrics' own."""

import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import binary_calibration_error, multiclass_calibration_error

from stoker.errors import InvalidArgument
from stoker.view.report import calibrated, calibration


def answers(classes, seed=0, samples=500):
    random = np.random.default_rng(seed)
    chances = random.dirichlet(np.ones(classes), samples)
    return chances, random.integers(0, classes, samples)


@pytest.mark.parametrize("bins", [1, 10, 15])
@pytest.mark.parametrize("classes", [2, 5])
def test_the_error_is_what_another_library_says(classes, bins):
    chances, targets = answers(classes)
    other = multiclass_calibration_error(torch.tensor(chances), torch.tensor(targets), num_classes=classes, n_bins=bins)
    assert calibrated(chances, targets, bins=bins).error == pytest.approx(float(other), abs=1e-6)


def test_yes_or_no():
    chances, targets = answers(2)
    other = binary_calibration_error(torch.tensor(chances[:, 1]), torch.tensor(targets), n_bins=15)
    assert calibrated(chances[:, 1], targets).error == pytest.approx(float(other), abs=1e-6)


def test_a_number_on_the_edge_belongs_to_the_bin_above():
    found = calibrated([0.0, 0.25, 0.5, 0.75, 1.0], [0, 1, 1, 0, 1], bins=4)
    other = binary_calibration_error(torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0]), torch.tensor([0, 1, 1, 0, 1]), n_bins=4)
    assert found.count.tolist() == [1, 1, 1, 2] and found.error == pytest.approx(float(other), abs=1e-6)


def test_a_model_that_knows_how_sure_it_can_be():
    chances = np.random.default_rng(0).uniform(size=50_000)
    right = np.random.default_rng(1).uniform(size=50_000) < chances
    assert calibrated(chances, right).error < 0.02 < 0.4 < calibrated(np.full(100, 0.99), np.arange(100) % 2).error


def test_the_picture_shows_the_bins():
    chances, targets = answers(5)
    found, figure = calibrated(chances, targets), calibration(chances, targets)
    axes = figure.axes[0]
    _, right = axes.lines
    seen = found.count > 0
    assert not seen.all(), "an empty bin is part of this test"
    assert np.array_equal(right.get_xdata(), found.sure[seen]) and np.array_equal(right.get_ydata(), found.right[seen])
    assert sum(bar.get_height() for bar in axes.patches) == pytest.approx(1)
    assert axes.get_title() == f"calibration error {found.error:.3f}"
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_mistakes():
    with pytest.raises(InvalidArgument, match=r"lie between 0 and 1; got -1 to 2. Scores of classes \(logits\) become"):
        calibrated([[-1.0, 2.0]], [0])
    with pytest.raises(InvalidArgument, match="between 0 and 1; got nan to nan"):
        calibrated([float("nan")], [0])
    with pytest.raises(InvalidArgument, match=r"and a target for each sample; got \[2, 2\] and \[3\]"):
        calibrated([[0.5, 0.5]] * 2, [0, 1, 0])
    with pytest.raises(InvalidArgument, match=r"got \[0\] and \[0\]"):
        calibrated([], [])
    with pytest.raises(InvalidArgument, match="bins is 0; expected at least 1"):
        calibrated([0.5], [0], bins=0)
