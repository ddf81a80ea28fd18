"""Runs a Python program, and all Python processes that it starts, with the simulated CUDA device.

    python -m simulated_cuda program.py arguments...
    python -m simulated_cuda -m pytest -m cuda
"""  # fmt: skip

import os
import sys
from pathlib import Path

from simulated_cuda._build import build

STARTUP = Path(__file__).resolve().parent / "startup"  # Python imports its sitecustomize.py


def main() -> None:
    """Replaces this process by the program."""
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    folder = build()
    environment = dict(os.environ, SIMULATED_CUDA=str(folder))
    environment["LD_PRELOAD"] = _with(folder / "preload.so", environment.get("LD_PRELOAD"), ":")
    environment["PYTHONPATH"] = _with(STARTUP, environment.get("PYTHONPATH"), os.pathsep)
    # The bits of a sum depend on the number of threads, and tests run in several processes.
    environment.setdefault("OMP_NUM_THREADS", "1")
    os.execve(sys.executable, [sys.executable, *sys.argv[1:]], environment)


def _with(path: Path, others: str | None, separator: str) -> str:
    return separator.join(filter(None, [str(path), others]))


if __name__ == "__main__":
    main()
