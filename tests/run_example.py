"""Runs a program as `python PROGRAM ARGUMENTS...` would, with torchvision's operators declared.

python -m tests.run_example examples/detection.py --epochs 1
"""

import runpy
import sys

if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
