"""`stoker doctor`: what is installed, what this machine can do, what is missing and how to get it."""

import os
import platform
import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version

import torch

from stoker.cli._screen import screen

_NEEDED = ("stoker", "torch", "numpy", "safetensors", "rich", "msgpack")
_OURS = {"bench", "dev", "docs"}  # extras for those who work on stoker itself
_FRIENDS = {  # no extras: stoker meets them where they are
    "pandas": "tables as data, history.to_pandas()",
    "polars": "tables as data",
    "pyarrow": "tables as data",
    "datasets": "Hugging Face's data sets as data",
    "torchmetrics": "its metrics beside stoker's",
    "mlflow": "callbacks.MLflow",
    "wandb": "callbacks.WandB",
    "trackio": "callbacks.Trackio",
}


def main() -> None:
    """Prints the whole examination."""
    console = screen()
    for title, lines in (
        ("versions", versions()),
        ("devices", devices()),
        ("precision", precisions()),
        ("optional", optional()),
    ):
        console.print(title, style="bold")
        for line in lines:
            console.print(f"  {line}", markup=False)


def versions() -> Iterator[str]:
    """Python and what stoker needs."""
    yield f"python {platform.python_version()} on {platform.system()} {platform.machine()}"
    for package in _NEEDED:
        yield f"{package} {_version(package) or 'is missing'}"
    yield f"torch is built for CUDA {torch.version.cuda}" if torch.version.cuda else "torch is built without CUDA"


def devices() -> Iterator[str]:
    """What can be trained on; the first is what a fit takes by itself."""
    for number in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(number)
        capability = f"capability {about.major}.{about.minor}"
        yield f"cuda:{number}  {about.name}, {about.total_memory / 2**30:.0f} GiB, {capability}"
    if torch.backends.mps.is_available():
        yield "mps  the GPU of this Mac"
    yield f"cpu  {os.cpu_count()} cores, of which torch uses {torch.get_num_threads()}; {_cpu_capability()}"
    if not torch.cuda.is_available() and torch.version.cuda:
        yield "no NVIDIA GPU can be used: check that nvidia-smi sees one, and that its driver knows this CUDA version"


def precisions() -> Iterator[str]:
    """What `precision=` can be on the best device here, and what it buys."""
    yield f"fp32  as PyTorch is set: float32 products are {torch.get_float32_matmul_precision()!r}"
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
        found = getattr(torch.cpu, "get_capabilities", dict)()
        native = any(found.get(name) for name in ("amx_bf16", "avx512_bf16", "bf16"))
        yield "tf32  not on a CPU"
        yield f"bf16  {'in hardware; saves memory and mostly time' if native else 'runs, but slower than fp32'}"
        yield "fp16  runs, but rarely pays on a CPU; bf16 needs no scaler"


def optional() -> Iterator[str]:
    """What is not needed but used where it is there: installed, or how to get it."""
    for extra, packages in extras().items():
        missing = [package for package in packages if _version(package) is None]
        have = ", ".join(f"{package} {_version(package)}" for package in packages if package not in missing)
        get = f'{", ".join(missing)} missing: pip install "stoker[{extra}]"' if missing else ""
        yield f"stoker[{extra}]  {'; '.join(part for part in (have, get) if part)}"
    for package, purpose in _FRIENDS.items():
        yield f"{package}  {_version(package) or f'missing: pip install {package}'} ({purpose})"


def extras() -> dict[str, list[str]]:
    """The packages of each extra, as stoker's own metadata has them."""
    found: dict[str, list[str]] = {}
    try:
        wanted = requires("stoker") or []
    except PackageNotFoundError:  # run from its sources
        wanted = []
    for requirement in wanted:
        parts = re.match(r"([\w.-]+).*extra == ['\"](\w+)['\"]", requirement)
        if parts is not None and parts[2] not in _OURS:
            found.setdefault(parts[2], []).append(parts[1])
    return found


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu_capability() -> str:
    return torch.backends.cpu.get_cpu_capability()
