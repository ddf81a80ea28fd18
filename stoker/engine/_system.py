"""System metrics: how busy the processor, the memory and the GPU are, every few seconds of a fit."""

import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from stoker.errors import MissingExtra
from stoker.metrics import GPUMemory, GPUUse

_SECONDS = 5.0
_GB = 1e9


class SystemMetrics:
    """Reads the system every few seconds. What this machine does not report is left out.

    On Linux everything but the GPU comes from `/proc`, in about 0.1 ms; elsewhere from psutil, if it is installed.
    """

    def __init__(self, device: torch.device) -> None:
        self._read_machine = _read_proc if os.path.exists("/proc/stat") else _psutil_reader()
        self._meters: dict[str, Any] = {}
        if device.type == "cuda":
            with suppress(MissingExtra):
                self._meters = {
                    "system/gpu": GPUUse(gpu=device.index),
                    "system/gpu_memory": GPUMemory(gpu=device.index),
                }
        self._busy, self._total, _ = self._read_machine()
        self._process, self._time = time.process_time(), time.monotonic()

    def read_if_due(self, now: float) -> dict[str, float]:
        """The means since the last reading, by name; empty if that is not long ago. `now` is on the monotonic clock."""
        seconds = now - self._time
        if seconds < _SECONDS:
            return {}
        busy, total, values = self._read_machine()
        process = time.process_time()
        values["system/process_cpu"] = 100 * (process - self._process) / seconds
        if total > self._total:
            values["system/cpu"] = 100 * (busy - self._busy) / (total - self._total)
        self._busy, self._total, self._process, self._time = busy, total, process, now
        for name, meter in self._meters.items():
            values[name] = next(iter(meter.read(None).values()))
        return {name: value for name, value in values.items() if math.isfinite(value)}


_Machine = tuple[float, float, dict[str, float]]  # busy and total time of all cores, in any unit, and other values


def _read_proc() -> _Machine:
    """Reads the files of Linux, of which a container may hide some."""
    busy = total = 0.0
    values: dict[str, float] = {}
    try:
        with open("/proc/stat", encoding="ascii") as file:
            times = [float(each) for each in file.readline().split()[1:9]]
        total, busy = sum(times), sum(times) - times[3] - times[4]  # without idle time and waiting for disks
        with open("/proc/self/statm", encoding="ascii") as file:
            values["system/memory"] = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / _GB
        with open("/proc/meminfo", encoding="ascii") as file:
            sizes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in file)}
        values["system/memory_used"] = 100 * (1 - sizes["MemAvailable"] / sizes["MemTotal"])
    except (OSError, ValueError, LookupError, ZeroDivisionError):
        pass
    return busy, total, values


def _psutil_reader() -> Callable[[], _Machine]:
    try:
        import psutil
    except ImportError:
        return lambda: (0.0, 0.0, {})
    process = psutil.Process()

    def read() -> _Machine:
        try:
            times = psutil.cpu_times()
            values = {
                "system/memory": process.memory_info().rss / _GB,
                "system/memory_used": psutil.virtual_memory().percent,
            }
        except (psutil.Error, OSError):
            return 0.0, 0.0, {}
        return sum(times) - times.idle, sum(times), values

    return read
