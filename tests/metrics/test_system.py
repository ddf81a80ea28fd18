import math
import sys

import psutil
import pytest
import torch

from stoker import MissingExtra
from stoker.metrics import CPUTemperature, CPUUse, GPUMemory, GPUPower, GPUTemperature, GPUUse, MemoryUse

GPU = [GPUUse, GPUMemory, GPUPower, GPUTemperature]


def test_the_processor_and_the_memory_are_read():
    assert 0 <= CPUUse().read(None)["cpu_use"] <= 100
    before, held = MemoryUse().read(None)["memory"], psutil.Process().memory_info().rss / 1e9
    assert before == pytest.approx(held, rel=0.2)
    block = torch.ones(50_000_000)  # 0.2 GB
    assert MemoryUse().read(None)["memory"] > before + 0.1
    del block
    hot = CPUTemperature().read(None)["cpu_temperature"]
    assert math.isnan(hot) or hot > 0


@pytest.mark.parametrize("meter", GPU)
def test_without_a_gpu_its_numbers_are_nan(meter, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert math.isnan(meter().read(None)[meter().name])


@pytest.mark.cuda
def test_a_gpu_is_read():
    block = torch.ones(500_000_000, device="cuda")  # 2 GB
    assert 0 <= GPUUse().read(None)["gpu_use"] <= 100
    assert GPUMemory().read(None)["gpu_memory"] > 2
    assert GPUPower().read(None)["gpu_power"] > 10
    assert 10 < GPUTemperature(gpu=0).read(None)["gpu_temperature"] < 110
    del block


@pytest.mark.parametrize(
    ("meter", "module"), [(CPUUse, "psutil"), (MemoryUse, "psutil"), *((each, "pynvml") for each in GPU)]
)
def test_a_missing_package_is_named_where_the_meter_is_made(meter, module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)  # what Python keeps for a module that can't be imported
    with pytest.raises(MissingExtra, match=r"need (psutil|nvidia-ml-py): pip install 'stoker\[monitor\]'"):
        meter()
