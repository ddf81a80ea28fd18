"""report: a run, or several, as one HTML file, and matplotlib figures of runs and of a model's predictions.

`report_html` and `compare_html` return pages that load nothing and run no script. `plot`, `confusion`, `calibration`
and `lr_curve` return matplotlib figures that pyplot does not know, so nothing has to be closed.
"""

from stoker.view.report._compare import compare_html
from stoker.view.report._evaluation import (
    Calibration,
    Evaluation,
    Sample,
    Task,
    evaluate_predictions,
    measure_calibration,
)
from stoker.view.report._figures import Kind, calibration, confusion, lr_curve, plot
from stoker.view.report._report import fitted_html, lr_curve_html, report_html, write_report

__all__ = [
    "Calibration",
    "Evaluation",
    "Sample",
    "calibration",
    "compare_html",
    "confusion",
    "evaluate_predictions",
    "fitted_html",
    "lr_curve",
    "lr_curve_html",
    "measure_calibration",
    "plot",
    "report_html",
    "write_report",
]
