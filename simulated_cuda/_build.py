"""Compiles the device once for each version of its source and of torch."""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent
NAME = "simulated_cuda_backend"


def build_folder() -> Path:
    """Where the libraries are: a folder for each version of the source, of torch and of Python."""
    import torch

    sources = sorted([*HERE.glob("*.cpp"), *HERE.glob("*.h")])
    contents = b"".join(path.read_bytes() for path in sources)
    version = f"{torch.__version__} {sys.version}".encode()
    root = os.environ.get("SIMULATED_CUDA_BUILD") or Path(tempfile.gettempdir(), "simulated_cuda")
    return Path(root, hashlib.sha256(contents + version).hexdigest()[:16])


def build() -> None:
    """Compiles both libraries, unless that was done before; ends the program if there is no compiler."""
    target = build_folder()
    if (target / "done").exists():
        return
    missing = [name for name in ("g++", "ninja") if shutil.which(name) is None]
    if missing:
        sys.exit(
            f"simulated_cuda is compiled once, and needs {' and '.join(missing)}: install the packages g++ and ninja"
        )
    print("compiling the simulated CUDA device: this takes a minute, once", file=sys.stderr, flush=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        _compile(Path(folder))
        Path(folder, "done").touch()
        try:
            Path(folder).rename(target)
        except OSError:  # another process was first
            return
        Path(folder).mkdir()  # for the end of the context


def _compile(folder: Path) -> None:
    import torch
    from torch.utils.cpp_extension import load

    include = Path(torch.__file__).parent / "include"
    preload = ["g++", "-std=c++20", "-shared", "-fPIC", "-O1", f"-I{include}", "-o", folder / "preload.so"]
    subprocess.run([*preload, HERE / "preload.cpp", "-ldl"], check=True)
    verbose = bool(os.environ.get("SIMULATED_CUDA_VERBOSE"))
    flags = ["-O1", "-w"]
    sources = [str(HERE / name) for name in ("backend.cpp", "process_group.cpp", "storage.cpp")]
    load(
        NAME,
        sources,
        extra_cflags=flags,
        build_directory=str(folder),
        is_python_module=False,
        verbose=verbose,
    )


def load_backend() -> ModuleType:
    """The backend as a module."""
    spec = importlib.util.spec_from_file_location(NAME, build_folder() / f"{NAME}.so")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
