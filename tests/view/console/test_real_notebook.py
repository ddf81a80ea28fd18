"""A notebook that a real kernel executes and nbconvert turns into a page."""

import re

import pytest

from tests.view.console.scenes import ROOT

CELLS = [
    """import torch, stoker
from torch import nn
from stoker import metrics

class Odd(nn.Sequential):
    def extra_repr(self):
        return "<script>alert(1)</script>"

x = torch.randn(256, 4, generator=torch.Generator().manual_seed(0))
y = (x.sum(1) > 0).long()
confusion = metrics.ConfusionMatrix(on="valid")
model = Odd(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
learner = stoker.Learner(model, loss=nn.CrossEntropyLoss(), metrics=[metrics.Accuracy(), confusion], seed=0)
learner""",
    "learner.explain((x, y), valid=0.2, epochs=3)",
    "stoker.summary(model, x)",
    "stoker.lr_find(learner, (x, y), steps=20)",
    "fitted = learner.fit((x, y), valid=0.2, epochs=3, run='runs/digits')",
    "fitted",
    "fitted.history",
]


@pytest.mark.soak
def test_everything_renders_as_html_in_a_real_notebook(tmp_path, monkeypatch):
    nbformat, nbclient, nbconvert = map(pytest.importorskip, ("nbformat", "nbclient", "nbconvert"))
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in CELLS])
    nbclient.NotebookClient(notebook, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    html = ["".join(output["data"].get("text/html", "") for output in cell.outputs) for cell in notebook.cells]
    assert all(html), "every cell has HTML"
    assert not any(output.output_type in ("stream", "error") for cell in notebook.cells for output in cell.outputs)
    learner, explained, summary, rates, fit, fitted, history = html
    assert "&lt;script&gt;" in learner and "CrossEntropyLoss()" in learner and "<b>Plan</b>" in explained
    assert "<th>FLOPs</th>" in summary and "suggestion" in rates and "<polyline" in rates
    assert "3 epochs, " in fit and "<svg" in fit and "<td>3/3</td>" in fit and "run: runs/digits" in fit
    assert "confusion" not in fit, "cells of a matrix stay out"
    assert "<img" in fitted and "Completed 3 epochs" in fitted and "* best valid/loss" in history
    page, _ = nbconvert.HTMLExporter(template_name="basic").from_notebook_node(notebook)
    assert "alert(1)" in page and "<script>alert(1)" not in page
    # Text has the colors of the page, so it is readable on a light and a dark one.
    colors = re.findall(r"[\"; ](?:color|background-color): ?([^;\"]+)", "".join(html))
    assert set(colors) <= {"inherit"}, colors
