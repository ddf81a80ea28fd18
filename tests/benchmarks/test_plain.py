"""The plain loops: the update that people write, with what a workload asks for in it."""

from dataclasses import replace

import pytest
import torch

from benchmarks._workloads import workload
from benchmarks.peers.plain import epoch_by_hand, update_by_hand


@pytest.mark.parametrize("limit", [None, 1e-3])
def test_gradients_are_clipped_where_the_workload_says_so(limit):
    work = replace(workload("toy"), clip_norm=limit)
    model = work.model()
    x, y = work.data()
    update_by_hand(work, model)(x, y)
    norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()])
    assert norm.item() > 1 if limit is None else norm.item() == pytest.approx(limit, rel=1e-2)


def test_in_bf16_the_predictions_are_bf16_and_the_weights_are_not():
    work = replace(workload("toy"), precision="bf16")
    model = work.model()
    _, predictions = update_by_hand(work, model)(*work.data())
    assert predictions.dtype == torch.bfloat16 and next(model.parameters()).dtype == torch.float32


@pytest.mark.parametrize("dataloader", [True, False])
def test_an_epoch_has_every_batch_and_the_short_last_one(dataloader):
    toy = workload("toy")
    x, y = toy.data()
    work = replace(toy, make=lambda: (x[:250], y[:250]), samples=250)
    assert epoch_by_hand(work, work.model(), dataloader=dataloader)() == work.updates == 3
