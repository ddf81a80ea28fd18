"""The curve that a learning rate is chosen by."""

import numpy as np

from stoker.view.report import lr_curve


def test_the_curve_and_the_rate_to_start_with():
    axes = lr_curve([1e-3, 1e-2, 1e-1], [2.3, 1.1, 3.0], 1e-2).axes[0]
    curve, mark = axes.lines
    assert np.array_equal(curve.get_xdata(), [1e-3, 1e-2, 1e-1]) and np.array_equal(curve.get_ydata(), [2.3, 1.1, 3.0])
    assert list(mark.get_xdata()) == [1e-2, 1e-2] and axes.get_legend().get_texts()[0].get_text() == "suggestion 0.01"
    assert len(lr_curve([1e-3, 1e-2], [2.3, 1.1]).axes[0].lines) == 1
