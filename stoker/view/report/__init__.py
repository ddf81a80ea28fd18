"""report: takes runs, or a model's answers, and gives pictures and pages; the one to know is `report_html`.

A page is one file: nothing in it runs, and nothing is loaded from elsewhere. `confusion`, `calibration` and `lr_curve`
draw plain arrays with matplotlib, `plot` a run; the figure that they return is nobody's, and pyplot doesn't know it.
"""

from stoker.view.report._calibration import Calibration, calibrated, calibration
from stoker.view.report._card import fitted_html
from stoker.view.report._compare import compare_html
from stoker.view.report._confusion import confusion, confusions
from stoker.view.report._judged import Judged, Sample, Task, judged
from stoker.view.report._lr_curve import lr_curve
from stoker.view.report._plot import Kind, plot
from stoker.view.report._readable import Readable, Remembered, as_readable
from stoker.view.report._report import report_html, write_report

__all__ = [
    "Calibration",
    "Judged",
    "Kind",
    "Readable",
    "Remembered",
    "Sample",
    "Task",
    "as_readable",
    "calibrated",
    "calibration",
    "compare_html",
    "confusion",
    "confusions",
    "fitted_html",
    "judged",
    "lr_curve",
    "plot",
    "report_html",
    "write_report",
]
