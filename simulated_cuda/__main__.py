"""Runs a Python program, and all Python processes that it starts, with the simulated CUDA device.

python -m simulated_cuda program.py arguments...
python -m simulated_cuda -m pytest -m cuda
"""

import os
import sys
from pathlib import Path

from simulated_cuda._build import build, build_folder

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Replaces this process by the program."""
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    build()
    environment = dict(os.environ)
    libraries = [str(build_folder() / "preload.so"), environment.get("LD_PRELOAD", "")]
    paths = [str(HERE / "startup"), environment.get("PYTHONPATH", "")]
    environment["LD_PRELOAD"] = ":".join(filter(None, libraries))
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    environment["SIMULATED_CUDA"] = "1"
    environment.setdefault("OMP_NUM_THREADS", "1")
    os.execve(sys.executable, [sys.executable, *sys.argv[1:]], environment)


if __name__ == "__main__":
    main()
