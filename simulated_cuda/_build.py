"""Compiles the device, once for each version of its source, of torch and of Python."""

import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType

SOURCES = Path(__file__).resolve().parent / "backend"
NAME = "simulated_cuda_backend"


def build() -> Path:
    """Compiles the device if that was not done before. Returns the folder of its libraries.

    Ends the program with a message if this is not possible here.
    """
    _check_platform()
    folder = build_folder()
    if folder.exists():
        return folder
    environment = _environment_with_compiler()
    print("compiling the simulated CUDA device; this takes half a minute, once", file=sys.stderr, flush=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Several processes may compile at the same time: each in a folder of its own, and the first gives it its name.
    with tempfile.TemporaryDirectory(dir=folder.parent, ignore_cleanup_errors=True) as own:
        libraries = Path(own, "libraries")
        libraries.mkdir()
        _compile(libraries, environment)
        try:
            libraries.rename(folder)
        except OSError:
            if not folder.exists():
                raise
    return folder


def build_folder() -> Path:
    """Where the libraries are, or will be."""
    digest = hashlib.sha256(f"{importlib.metadata.version('torch')} {sys.version}".encode())
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.read_bytes())
    return _cache_folder() / digest.hexdigest()[:16]


def load_backend() -> ModuleType:
    """The compiled module; the runner has built it, and set where it is."""
    spec = importlib.util.spec_from_file_location(NAME, Path(os.environ["SIMULATED_CUDA"], f"{NAME}.so"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _cache_folder() -> Path:
    if given := os.environ.get("SIMULATED_CUDA_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "simulated_cuda")


def _check_platform() -> None:
    if sys.platform != "linux":
        sys.exit("simulated_cuda runs on Linux only: it preloads a library with LD_PRELOAD")
    spec = importlib.util.find_spec("torch")  # not imported, which takes seconds
    if spec is None or spec.origin is None:
        sys.exit("simulated_cuda needs torch in this environment")
    if any(Path(spec.origin).parent.glob("lib/libtorch_cuda*")):
        sys.exit(
            "simulated_cuda needs a torch without CUDA, and this one has it. On a machine with an NVIDIA GPU "
            "`make test` runs the tests on it. Without one: "
            "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cpu"
        )


def _environment_with_compiler() -> dict[str, str]:
    """The environment for the compiler; ends the program if there is none."""
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    advice = {
        "g++": "install the package g++ of your system (apt-get install g++)",
        "ninja": "install it from the package index (pip install '.[dev]')",
    }
    missing = [name for name in advice if shutil.which(name, path=search) is None]
    if missing:
        sys.exit(
            f"simulated_cuda is compiled when it is used first, and needs {' and '.join(missing)}: "
            + "; ".join(f"{name}: {advice[name]}" for name in missing)
        )
    return dict(os.environ, PATH=search)


def _compile(folder: Path, environment: dict[str, str]) -> None:
    command = [sys.executable, "-c", _COMPILE, str(SOURCES), NAME, str(folder)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"{done.stdout}\nthe simulated CUDA device was not compiled")


# A program of its own, since the search path for compilers is that of a process.
_COMPILE = """
import subprocess, sys
from pathlib import Path
import torch
from torch.utils.cpp_extension import load

sources, name, folder = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
modules = [str(path) for path in sorted(sources.glob("*.cpp")) if path.name != "preload.cpp"]
preload = ["g++", "-std=c++20", "-shared", "-fPIC", "-O1", f"-I{Path(torch.__file__).parent / 'include'}"]
subprocess.run([*preload, "-o", folder / "preload.so", sources / "preload.cpp", "-ldl"], check=True)
load(name, modules, extra_cflags=["-O1", "-w"], build_directory=str(folder), is_python_module=False, verbose=True)
"""
