"""Meters read numbers about the training and the machine."""

import math
import sys
from types import SimpleNamespace

import psutil
import pytest
import torch

from stoker import MissingExtra
from stoker.metrics import (
    CPUTemperature,
    CPUUse,
    GPUMemory,
    GPUPower,
    GPUTemperature,
    GPUUse,
    GradientNorm,
    LearningRate,
    MemoryUse,
    Throughput,
)

CPU = torch.device("cpu")


def test_learning_rates_are_numbers_by_pattern():
    assert LearningRate().read(SimpleNamespace(lr=torch.tensor(0.5))) == {"lr": 0.5}
    assert LearningRate(name="rate").read(SimpleNamespace(lr={"0.*": 0.5})) == {"rate/0.*": 0.5}


def test_throughput_is_samples_per_second():
    assert Throughput().read(SimpleNamespace(samples=64, seconds=2.0)) == {"samples_per_second": 32}
    assert math.isnan(Throughput().read(SimpleNamespace(samples=64, seconds=0.0))["samples_per_second"])
    assert Throughput().direction == "max"


def test_gradient_norms_are_averaged_over_updates():
    norm = GradientNorm()
    assert norm.read(SimpleNamespace(grad_norm=None)) == {}
    assert norm.read(SimpleNamespace(grad_norm=torch.tensor(2.0))) == {"gradient_norm": 2.0}
    halves = []
    for part in ([1.0, 2.0], [6.0]):
        state = norm.init(CPU)
        for each in part:
            state = norm.update(state, torch.tensor(each))
        halves.append(state)
    assert norm.compute(norm.merge(*halves)) == {"gradient_norm": 3.0, "gradient_norm/max": 6.0}
    assert all(math.isnan(each) for each in norm.compute(norm.init(CPU)).values())


GPU = [GPUUse, GPUMemory, GPUPower, GPUTemperature]


def test_processor_and_memory_are_measured():
    assert 0 <= CPUUse().read(None)["cpu_use"] <= 100
    before, held = MemoryUse().read(None)["memory"], psutil.Process().memory_info().rss / 1e9
    assert before == pytest.approx(held, rel=0.2)
    block = torch.ones(50_000_000)  # 0.2 GB
    assert MemoryUse().read(None)["memory"] > before + 0.1
    del block
    hot = CPUTemperature().read(None)["cpu_temperature"]
    assert math.isnan(hot) or hot > 0


@pytest.mark.parametrize("meter", GPU)
def test_gpu_meters_are_nan_without_a_gpu(meter, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert math.isnan(meter().read(None)[meter().name])


def test_nvml_is_initialised_once(monkeypatch):
    calls = []
    fake = SimpleNamespace(
        NVMLError=RuntimeError,
        nvmlInit=lambda: calls.append("init"),
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetPowerUsage=lambda handle: 5000 if handle == "GPU-b" else 0,
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 17)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda gpu: SimpleNamespace(uuid="b" if gpu == 17 else "c")
    )
    assert [GPUPower().read(None) for _ in range(3)] == [{"gpu_power": 5.0}] * 3 and calls == ["init"]
    assert GPUPower(gpu=18).read(None) == {"gpu_power": 0.0}


@pytest.mark.cuda
@pytest.mark.needs_gpu("NVML")
def test_gpu_meters_read_the_gpu():
    block = torch.ones(500_000_000, device="cuda")  # 2 GB
    assert 0 <= GPUUse().read(None)["gpu_use"] <= 100
    assert GPUMemory().read(None)["gpu_memory"] > 2
    assert GPUPower().read(None)["gpu_power"] > 10
    assert 10 < GPUTemperature(gpu=0).read(None)["gpu_temperature"] < 110
    del block


@pytest.mark.parametrize(("meter", "module"), [(MemoryUse, "psutil"), (GPUUse, "pynvml")])
def test_a_missing_package_raises_when_the_meter_is_made(meter, module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)  # makes the import fail
    with pytest.raises(MissingExtra, match=r"need (psutil|nvidia-ml-py): pip install 'stoker\[monitor\]'"):
        meter()
