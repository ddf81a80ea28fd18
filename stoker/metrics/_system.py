"""Meters of the machine: processor, memory, GPU. They need `stoker[monitor]` (psutil, nvidia-ml-py)."""

import functools
from collections.abc import Callable
from typing import Any

import torch

from stoker.errors import MissingExtra
from stoker.metrics._meters import Meter, Readings

ABSENT = float("nan")  # where the machine does not say


class CPUUse(Meter):
    """How busy the processors are, all together, since the last reading.

    >>> 0 <= CPUUse().read(None)["cpu_use"] <= 100
    True
    """

    name: str = "cpu_use"

    unit = "%"

    def __post_init__(self) -> None:
        _psutil().cpu_percent()  # use is measured between calls: this is the first of them

    def read(self, ctx: Readings | None) -> dict[str, float]:
        return {self.name: _psutil().cpu_percent()}


class CPUTemperature(Meter):
    """The temperature of the hottest processor core; NaN where the machine does not say.

    >>> CPUTemperature().name
    'cpu_temperature'
    """

    name: str = "cpu_temperature"

    unit = "°C"

    def __post_init__(self) -> None:
        _psutil()

    def read(self, ctx: Readings | None) -> dict[str, float]:
        sensors: Any = getattr(_psutil(), "sensors_temperatures", dict)()  # psutil has it on Linux only
        cores = [each.current for name in ("coretemp", "k10temp", "cpu_thermal") for each in sensors.get(name, ())]
        return {self.name: max(cores, default=ABSENT)}


class MemoryUse(Meter):
    """The main memory that this process holds (its resident set), in GB.

    >>> MemoryUse().read(None)["memory"] > 0
    True
    """

    name: str = "memory"

    unit = "GB"

    def __post_init__(self) -> None:
        _psutil()

    def read(self, ctx: Readings | None) -> dict[str, float]:
        return {self.name: _psutil().Process().memory_info().rss / 1e9}


class GPUUse(Meter):
    """How busy a GPU is: the share of the time in which it computes. `gpu` is torch's number of it, or the current one.

    >>> GPUUse(gpu=1).name, GPUUse(gpu=1).unit
    ('gpu_use', '%')

    NaN where there is no NVIDIA GPU, or it does not say.
    """

    name: str = "gpu_use"
    gpu: int | None = None

    unit = "%"

    def __post_init__(self) -> None:
        _nvml()

    def read(self, ctx: Readings | None) -> dict[str, float]:
        return {self.name: _ask(self.gpu, lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu)}


class GPUMemory(Meter):
    """The memory of a GPU that is taken, by all processes together, in GB. `gpu` and NaN as in `GPUUse`.

    >>> GPUMemory().unit
    'GB'
    """

    name: str = "gpu_memory"
    gpu: int | None = None

    unit = "GB"

    def __post_init__(self) -> None:
        _nvml()

    def read(self, ctx: Readings | None) -> dict[str, float]:
        return {self.name: _ask(self.gpu, lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).used / 1e9)}


class GPUPower(Meter):
    """What a GPU draws, in watts. `gpu` and NaN as in `GPUUse`.

    >>> GPUPower().unit
    'W'
    """

    name: str = "gpu_power"
    gpu: int | None = None

    unit = "W"

    def __post_init__(self) -> None:
        _nvml()

    def read(self, ctx: Readings | None) -> dict[str, float]:
        return {self.name: _ask(self.gpu, lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3)}


class GPUTemperature(Meter):
    """How hot a GPU is, in degrees Celsius. `gpu` and NaN as in `GPUUse`.

    >>> GPUTemperature().unit
    '°C'
    """

    name: str = "gpu_temperature"
    gpu: int | None = None

    unit = "°C"

    def __post_init__(self) -> None:
        _nvml()

    def read(self, ctx: Readings | None) -> dict[str, float]:
        return {self.name: _ask(self.gpu, lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(gpu, 0))}  # 0: the chip's own


def _ask(gpu: int | None, question: Callable[[Any, Any], float]) -> float:
    if not torch.cuda.is_available():
        return ABSENT
    nvml = _nvml()
    try:
        _start_nvml()
        # NVML counts the GPUs of the machine, torch those that the process may see: the UUID is the same.
        uuid = torch.cuda.get_device_properties(torch.cuda.current_device() if gpu is None else gpu).uuid
        return float(question(nvml, nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")))
    except nvml.NVMLError:
        return ABSENT


@functools.cache
def _start_nvml() -> None:
    _nvml().nvmlInit()


def _psutil() -> Any:
    try:
        import psutil
    except ImportError as error:
        raise MissingExtra("system metrics need psutil: pip install 'stoker[monitor]'") from error
    return psutil


def _nvml() -> Any:
    try:
        import pynvml
    except ImportError as error:
        raise MissingExtra("GPU metrics need nvidia-ml-py: pip install 'stoker[monitor]'") from error
    return pynvml
