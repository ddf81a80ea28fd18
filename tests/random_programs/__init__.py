"""Random fits, each of which is run in several ways that have to give the same bits; needs a GPU or the simulated one.

`python -m simulated_cuda -m tests.random_programs SEED` runs the program of a seed; see `__main__`.
"""

from tests.random_programs.comparisons import Different, check, check_and_report, check_seed
from tests.random_programs.program import Program, draw

__all__ = ["Different", "Program", "check", "check_and_report", "check_seed", "draw"]
