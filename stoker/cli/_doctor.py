"""`stoker doctor`: what is installed, what this machine supports, what is missing and how to get it."""

import os
import platform
import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version

import torch

from stoker._text import format_size
from stoker.cli._screen import new_screen

_REQUIRED = ("stoker", "torch", "numpy", "safetensors", "rich", "msgpack")
_FOR_DEVELOPERS = {"bench", "dev", "docs"}  # extras that users do not need
_INTEGRATIONS = {  # packages without an extra: stoker uses them if they are installed
    "pandas": "tables as data, history.to_pandas()",
    "polars": "tables as data",
    "pyarrow": "tables as data",
    "datasets": "Hugging Face's data sets as data",
    "torchmetrics": "its metrics beside stoker's",
    "mlflow": "callbacks.MLflow",
    "wandb": "callbacks.WandB",
    "trackio": "callbacks.Trackio",
}
_VARIANTS = {"mlflow": ("mlflow-skinny",)}  # other packages with the same module


def doctor() -> None:
    """Prints versions, devices, precisions and optional packages."""
    screen = new_screen()
    sections = {"versions": _versions, "devices": _devices, "precision": _precisions, "optional": _optional}
    for title, lines in sections.items():
        screen.print(title, style="bold")
        for line in lines():
            screen.print(f"  {line}", markup=False)


def _versions() -> Iterator[str]:
    yield f"python {platform.python_version()} on {platform.system()} {platform.machine()}"
    for package in _REQUIRED:
        yield f"{package} {_version(package) or 'is missing'}"
    yield f"torch is built for CUDA {torch.version.cuda}" if torch.version.cuda else "torch is built without CUDA"


def _devices() -> Iterator[str]:
    """The devices; a fit uses the first by default."""
    for number in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(number)
        capability = f"capability {device.major}.{device.minor}"
        yield f"cuda:{number}  {device.name}, {format_size(device.total_memory)}, {capability}"
    if torch.backends.mps.is_available():
        yield "mps  the GPU of this Mac"
    capability = torch.backends.cpu.get_cpu_capability()
    yield f"cpu  {os.cpu_count()} cores, of which torch uses {torch.get_num_threads()}; {capability}"
    if not torch.cuda.is_available() and torch.version.cuda:
        yield "no NVIDIA GPU is usable: check that nvidia-smi shows one, and that its driver supports this CUDA version"


def _precisions() -> Iterator[str]:
    """What `precision=` can be on the default device."""
    yield f"fp32  PyTorch's setting for float32 products is {torch.get_float32_matmul_precision()!r}"
    if torch.cuda.is_available():
        yes, no = "in hardware, faster than fp32", "not on this device"
        yield f"tf32  {yes if torch.cuda.is_tf32_supported() else no}"
        yield f"bf16  {yes if torch.cuda.is_bf16_supported(including_emulation=False) else no}"
        yield f"fp16  {yes if torch.cuda.get_device_capability() >= (7, 0) else 'runs, without tensor cores'}"
    elif torch.backends.mps.is_available():
        yield "tf32  not on this device"
        yield "bf16  runs; saves memory"
        yield "fp16  runs; saves memory"
    else:
        capabilities = getattr(torch.cpu, "get_capabilities", dict)()
        native = any(capabilities.get(name) for name in ("amx_bf16", "avx512_bf16", "bf16"))
        yield "tf32  not on a CPU"
        yield f"bf16  {'in hardware; saves memory and mostly time' if native else 'runs, but slower than fp32'}"
        yield "fp16  runs, but is rarely faster on a CPU; bf16 needs no loss scaling"


def _optional() -> Iterator[str]:
    """Optional packages: the installed version, or how to install them."""
    for extra, packages in _extras().items():
        missing = [package for package in packages if _version(package) is None]
        installed = ", ".join(f"{package} {_version(package)}" for package in packages if package not in missing)
        advice = f'{", ".join(missing)} missing: pip install "stoker[{extra}]"' if missing else ""
        yield f"stoker[{extra}]  {'; '.join(filter(None, (installed, advice)))}"
    for package, purpose in _INTEGRATIONS.items():
        installed = next((name for name in (package, *_VARIANTS.get(package, ())) if _version(name)), None)
        found = "" if installed is None else f"{_version(installed)}{f' ({installed})' * (installed != package)}"
        yield f"{package}  {found or f'missing: pip install {package}'} ({purpose})"


def _extras() -> dict[str, list[str]]:
    """The packages of each extra, from stoker's own metadata; empty if stoker is not installed."""
    extras: dict[str, list[str]] = {}
    try:
        requirements = requires("stoker") or []
    except PackageNotFoundError:
        requirements = []
    for requirement in requirements:
        match = re.match(r"([\w.-]+).*extra == ['\"](\w+)['\"]", requirement)
        if match is not None and match[2] not in _FOR_DEVELOPERS:
            extras.setdefault(match[2], []).append(match[1])
    return extras


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
