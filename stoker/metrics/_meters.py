"""Meters: numbers about the training and the machine. Those of the machine need `stoker[monitor]`."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from stoker.config import Config
from stoker.errors import explain_missing
from stoker.metrics._metric import Direction, State
from stoker.metrics._states import add, ratio, read, zero_sum

_UNKNOWN = float("nan")


class Readings(Protocol):
    """What a meter can read: the rates of the last update, and samples and seconds since the last reading."""

    lr: Any  # a number, or a mapping of patterns to numbers
    samples: int
    seconds: float
    grad_norm: Tensor | None


class Meter(Config):
    """A number to read while training runs: at the end of every epoch.

    >>> class Samples(Meter):
    ...     name: str = "samples"
    ...     def read(self, readings: Readings) -> dict[str, float]:
    ...         return {self.name: readings.samples}
    """

    name: str = ""

    direction: ClassVar[Direction | None] = None
    unit: ClassVar[str] = ""

    def read(self, readings: Readings) -> dict[str, float]:
        """The current numbers by name."""
        raise NotImplementedError


class LearningRate(Meter):
    """The learning rate of the last update, or one for each pattern of a mapping.

    >>> from types import SimpleNamespace
    >>> LearningRate().read(SimpleNamespace(lr={"head": 1e-3, "*": 1e-4}))
    {'lr/head': 0.001, 'lr/*': 0.0001}
    """

    name: str = "lr"

    def read(self, readings: Readings) -> dict[str, float]:
        if isinstance(readings.lr, Mapping):
            return {f"{self.name}/{pattern}": float(rate) for pattern, rate in readings.lr.items()}
        return {self.name: float(readings.lr)}


class Throughput(Meter):
    """Training samples per second of the epoch, validation included; NaN if no time has passed.

    >>> from types import SimpleNamespace
    >>> Throughput().read(SimpleNamespace(samples=100, seconds=0.5))
    {'samples_per_second': 200.0}
    """

    name: str = "samples_per_second"

    direction = "max"
    unit = "1/s"

    def read(self, readings: Readings) -> dict[str, float]:
        return {self.name: readings.samples / readings.seconds if readings.seconds > 0 else _UNKNOWN}


class GradientNorm(Meter):
    """The norm of the gradients before clipping: the current one (`read`), or mean and maximum over updates.

    >>> norm = GradientNorm()
    >>> state = norm.init(torch.device("cpu"))
    >>> for each in (1.0, 3.0):
    ...     state = norm.update(state, torch.tensor(each))
    >>> norm.compute(state)
    {'gradient_norm': 2.0, 'gradient_norm/max': 3.0}

    The state stays on the device; only `compute` and `read` wait for it.
    """

    name: str = "gradient_norm"

    def read(self, readings: Readings) -> dict[str, float]:
        return {} if readings.grad_norm is None else {self.name: float(readings.grad_norm)}

    def init(self, device: torch.device) -> State:
        """The state before the first update."""
        return {"sum": zero_sum(device), "count": zero_sum(device), "max": torch.zeros((), device=device)}

    def update(self, state: State, grad_norm: Tensor) -> State:
        """The state after one more update with gradients of this norm."""
        largest = torch.maximum(state["max"], grad_norm.to(state["max"].dtype))
        return {"sum": add(state["sum"], grad_norm), "count": add(state["count"], 1), "max": largest}

    def merge(self, a: State, b: State) -> State:
        """One state from the states of two processes."""
        largest = torch.maximum(a["max"], b["max"])
        return {"sum": a["sum"] + b["sum"], "count": a["count"] + b["count"], "max": largest}

    def compute(self, state: State) -> dict[str, float]:
        """The mean and the maximum; NaN if there was no update."""
        largest = state["max"].item() if read(state["count"]) > 0 else _UNKNOWN
        return {self.name: ratio(state["sum"], state["count"]), f"{self.name}/max": largest}


# --- the machine


class CPUUse(Meter):
    """The use of all processors together since the last reading.

    >>> 0 <= CPUUse().read(None)["cpu_use"] <= 100
    True
    """

    name: str = "cpu_use"

    unit = "%"

    def __post_init__(self) -> None:
        _psutil().cpu_percent()  # psutil measures between calls: this is the first one

    def read(self, readings: Readings | None) -> dict[str, float]:
        return {self.name: _psutil().cpu_percent()}


class CPUTemperature(Meter):
    """The temperature of the hottest processor core; NaN if the machine does not report it.

    >>> CPUTemperature().name
    'cpu_temperature'
    """

    name: str = "cpu_temperature"

    unit = "°C"

    def __post_init__(self) -> None:
        _psutil()

    def read(self, readings: Readings | None) -> dict[str, float]:
        sensors: Any = getattr(_psutil(), "sensors_temperatures", dict)()  # psutil has it on Linux only
        cores = [each.current for name in ("coretemp", "k10temp", "cpu_thermal") for each in sensors.get(name, ())]
        return {self.name: max(cores, default=_UNKNOWN)}


class MemoryUse(Meter):
    """The main memory of this process (its resident set) in GB.

    >>> MemoryUse().read(None)["memory"] > 0
    True
    """

    name: str = "memory"

    unit = "GB"

    def __post_init__(self) -> None:
        _psutil()

    def read(self, readings: Readings | None) -> dict[str, float]:
        return {self.name: _psutil().Process().memory_info().rss / 1e9}


class _GPUMeter(Meter):
    """Base of the GPU meters: reads one number of a GPU through NVML."""

    gpu: int | None = None

    query: ClassVar[Callable[[Any, Any], float]]  # (pynvml, handle of the GPU) -> number

    def __post_init__(self) -> None:
        _nvml()

    def read(self, readings: Readings | None) -> dict[str, float]:
        if not torch.cuda.is_available():
            return {self.name: _UNKNOWN}
        nvml = _nvml()
        try:
            gpu = _gpu_handle(torch.cuda.current_device() if self.gpu is None else self.gpu)
            return {self.name: float(self.query(nvml, gpu))}
        except nvml.NVMLError:
            return {self.name: _UNKNOWN}


@cache
def _gpu_handle(gpu: int) -> Any:
    """NVML's handle of a GPU. NVML is initialised once, and stays so."""
    nvml = _nvml()
    nvml.nvmlInit()
    # NVML numbers the GPUs of the machine, torch those visible to the process: the UUID is the same.
    return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(gpu).uuid}")


class GPUUse(_GPUMeter):
    """The share of time in which a GPU computes. `gpu` is torch's device index; the default is the current device.

    >>> GPUUse(gpu=1).name, GPUUse(gpu=1).unit
    ('gpu_use', '%')

    NaN if there is no NVIDIA GPU, or it does not report the number.
    """

    name: str = "gpu_use"

    unit = "%"
    query = staticmethod(lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu)


class GPUMemory(_GPUMeter):
    """The used memory of a GPU, of all processes together, in GB. `gpu` and NaN as in `GPUUse`.

    >>> GPUMemory().unit
    'GB'
    """

    name: str = "gpu_memory"

    unit = "GB"
    query = staticmethod(lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).used / 1e9)


class GPUPower(_GPUMeter):
    """The power consumption of a GPU in watts. `gpu` and NaN as in `GPUUse`.

    >>> GPUPower().unit
    'W'
    """

    name: str = "gpu_power"

    unit = "W"
    query = staticmethod(lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3)


class GPUTemperature(_GPUMeter):
    """The temperature of a GPU in degrees Celsius. `gpu` and NaN as in `GPUUse`.

    >>> GPUTemperature().unit
    '°C'
    """

    name: str = "gpu_temperature"

    unit = "°C"
    query = staticmethod(lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(gpu, 0))  # sensor 0 is on the chip


def _psutil() -> Any:
    with explain_missing("system metrics need psutil: pip install 'stoker[monitor]'"):
        import psutil
    return psutil


def _nvml() -> Any:
    with explain_missing("GPU metrics need nvidia-ml-py: pip install 'stoker[monitor]'"):
        import pynvml
    return pynvml
