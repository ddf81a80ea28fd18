"""Metrics of lists of dicts and of strings in a fit: in training, validation, evaluation, and across a resumed run."""

from types import SimpleNamespace

import pytest
import torch
import torchmetrics
from torch import nn

import stoker
from stoker import metrics
from tests.metrics.detection import Detection

X = torch.randn(22, 3, generator=torch.Generator().manual_seed(0))
COUNTS = torch.arange(22) % 4


class Detector(nn.Linear):
    """Finds as many boxes in a sample as its count, and spells it."""

    def train_step(self, batch):
        x, counts = batch
        y = self(x)
        found = [
            {"boxes": row.expand(count, 4), "labels": torch.arange(count) * 2}
            for row, count in zip(y, counts.tolist(), strict=True)
        ]
        texts = {"said": [f"{abs(row[0]):.1f}" for row in y.tolist()], "meant": [str(c) for c in counts.tolist()]}
        return SimpleNamespace(
            loss=y.square().mean(),
            predictions={"boxes": found, "text": texts["said"]},
            targets={"boxes": [{"labels": torch.ones(1, dtype=torch.int64)} for _ in found], "text": texts["meant"]},
        )


def fit(run=None, resume=False, **until):
    torch.manual_seed(0)
    given = [
        metrics.as_metric(Detection(), of="boxes", name="detection"),
        metrics.as_metric(torchmetrics.text.CharErrorRate(), of="text", name="cer"),
        metrics.as_metric(torchmetrics.text.ROUGEScore(rouge_keys="rouge1"), of="text", name="rouge"),
    ]
    learner = stoker.Learner(Detector(3, 4), metrics=given, lr=0.1, seed=0)
    data = (X[:16], COUNTS[:16])
    return learner.fit(data, valid=(X[16:], COUNTS[16:]), batch_size=3, run=run, resume=resume, show=False, **until)


def test_values_equal_those_of_torchmetrics_alone():
    fitted = fit(epochs=2)
    found = fitted.evaluate((X, COUNTS), batch_size=5)
    with torch.no_grad():
        y = fitted.model(X)
    cer = torchmetrics.text.CharErrorRate()
    cer.update([f"{abs(row[0]):.1f}" for row in y.tolist()], [str(count) for count in COUNTS.tolist()])
    assert found["cer"] == pytest.approx(cer.compute().item())
    assert found["detection/map"] == pytest.approx(y.repeat_interleave(COUNTS, 0).mean().item(), rel=1e-5)
    assert found["detection/map_per_class/4"] == (COUNTS == 3).sum()
    columns = {"train/detection/map", "valid/detection/map_per_class/2", "train/rouge/rouge1_fmeasure", "valid/cer"}
    assert columns <= set(fitted.history.columns)


def test_a_resumed_run_records_the_same(tmp_path):
    whole = fit(epochs=2)
    fit(run=tmp_path / "run", updates=3)  # in the middle of an epoch: the lists are in the checkpoint
    resumed = fit(run=tmp_path / "run", resume=True, epochs=2)
    for name in whole.history.columns:
        if "detection" in name or "cer" in name or "rouge" in name:
            assert resumed.history[name] == whole.history[name], name
