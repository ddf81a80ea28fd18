"""Metrics of several processes: each sees a share, and all compute the value of the whole, to the same bits."""

import math
from types import SimpleNamespace

import pytest
import torch
from torchmetrics import classification, regression, text

from stoker.distributed import _world, join
from stoker.metrics import as_metric, flatten_value
from stoker.steps import RegressionOutput
from tests.metrics.cases import CASES, CPU, classes, numbers
from tests.metrics.detection import Detection

from .processes import run


def single(draw, n):
    predictions, noise = torch.randn(2, n, generator=draw)
    return lambda rows: RegressionOutput(torch.tensor(0.0), predictions[rows], (predictions + noise)[rows])


def boxes(draw, n):
    images = [{"boxes": torch.rand(k % 3 + 1, 4, generator=draw), "labels": torch.arange(k % 3 + 1)} for k in range(n)]
    return lambda rows: SimpleNamespace(predictions=images[rows], targets=images[rows])


def words(draw, n):
    texts = [f"the {k} of {k % 3}" for k in torch.randint(9, (n + 1,), generator=draw)]
    return lambda rows: SimpleNamespace(predictions=texts[:-1][rows], targets=texts[1:][rows])


EDGE = [
    (as_metric(classification.MulticlassAUROC(4)), classes),  # keeps lists
    (as_metric(classification.MulticlassAccuracy(4, average="micro")), classes),
    (as_metric(regression.MeanSquaredError(num_outputs=2)), numbers),
    (as_metric(regression.PearsonCorrCoef()), single),  # keeps the processes' parts side by side
    (as_metric(Detection()), boxes),  # keeps tuples and bytes
    (as_metric(text.ROUGEScore(rouge_keys="rouge1")), words),
]
ROWS = 10


def merged(rank, size):
    """The value of every metric over all processes' states; the first process has seen nothing."""
    _world.MANY_RANKS = 2  # in a tree
    world, found = join(), []
    for metric, make in [*CASES, *EDGE]:
        output = make(torch.Generator().manual_seed(1), ROWS)
        state = metric.init(CPU)
        for start in range(ROWS * (rank - 1) // (size - 1) if rank else ROWS, ROWS * rank // (size - 1), 3):
            state = metric.update(state, output(slice(start, min(start + 3, ROWS * rank // (size - 1)))))
        found.append(flatten_value(metric.name, metric.compute(world.combine(state, metric.merge))))
    return found


@pytest.mark.soak
def test_every_metric_over_four_processes():
    answers = run(merged, 4)
    assert [repr(each) for each in answers] == [repr(answers[0])] * 4  # bit for bit, NaN included
    for (metric, make), got in zip([*CASES, *EDGE], answers[0], strict=True):
        whole = metric.update(metric.init(CPU), make(torch.Generator().manual_seed(1), ROWS)(slice(None)))
        expected = flatten_value(metric.name, metric.compute(whole))
        assert got.keys() == expected.keys()
        for name in expected:
            tolerance = 1e-5 if (metric, make) in EDGE else 1e-9  # torchmetrics adds up in float32
            assert math.isclose(got[name], expected[name], rel_tol=tolerance, abs_tol=1e-9), name
