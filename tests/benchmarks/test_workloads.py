"""What contenders agree on: data, first weights, arithmetic, and how far a trained model came."""

import math

import pytest
import torch

from benchmarks._workloads import WORKLOADS, workload


@pytest.mark.parametrize("name", list(WORKLOADS))
def test_a_model_starts_from_the_same_weights_and_takes_the_data(name):
    work = workload(name, tiny=True)
    first, second = work.model(), work.model()
    for left, right in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(left, right)
    x, y = work.data()
    assert len(x) == len(y) == work.samples
    loss = work.loss(first(x[: work.batch]), y[: work.batch])
    assert loss.ndim == 0 and loss.isfinite()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", list(WORKLOADS))
def test_a_workload_says_what_it_is_before_anything_is_made(name, device):
    work = workload(name, device=device)
    assert work.device == device and work.epochs > work.warm >= 1 and work.judged <= work.epochs
    assert work.text and work.updates == math.ceil(work.samples / work.batch)


def test_the_sizes_on_a_gpu_are_those_of_the_numbers_to_beat():
    digits, gpt = workload("digits", device="cuda"), workload("gpt", device="cuda")
    assert (digits.samples, digits.batch, digits.lr, digits.updates) == (60_000, 64, 1e-4, 938)
    assert (gpt.tokens, gpt.precision, gpt.decay) == (1024, "bf16", 0.1)
    assert workload("resnet", device="cuda").batch == 512 and workload("tabular").samples == 1_000_000


def test_every_sample_comes_once_in_batches_of_a_hundred():
    work = workload("toy")
    batches = list(work.batches())
    assert [len(inputs) for inputs, _ in batches] == [100] * 10
    targets = torch.cat([targets for _, targets in batches])
    assert torch.equal(targets.sort(dim=0).values, work.data()[1].sort(dim=0).values)


def test_the_judge_is_the_loss_without_dropout():
    work = workload("digits", tiny=True)
    model = work.model()
    x, y = work.data()
    with torch.no_grad():
        expected = work.loss(model.eval()(x), y)
    assert work.judge(model.train()) == pytest.approx(expected.item(), rel=1e-5)


def test_the_optimizer_is_adam_or_with_a_decay_adamw():
    toy, gpt = workload("toy"), workload("gpt", tiny=True)
    assert type(toy.optimizer(toy.model())) is torch.optim.Adam
    adamw = gpt.optimizer(gpt.model(), fused=True)
    assert type(adamw) is torch.optim.AdamW
    assert (adamw.defaults["weight_decay"], adamw.defaults["fused"], adamw.defaults["lr"]) == (0.1, True, 3e-4)
