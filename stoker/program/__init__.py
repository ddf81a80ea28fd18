"""program: takes the stations of one training step, gives one program of them; the one type to know is `Plan`.

The stations are the loop's own: what they do one after the other is recorded as a CUDA graph (`Captured`), or traced
and compiled (`Compiled`), or run as it is (`Eager`; `Late` where nobody waits for the verdict). All do the same to the
same tensors, and nobody who calls `run` can tell which one it was.
"""

from stoker.program._captured import Captured
from stoker.program._compiled import Compiled
from stoker.program._compiling import compiling
from stoker.program._eager import Eager
from stoker.program._late import Late
from stoker.program._plan import Plan, size
from stoker.program._pool import clear_workspaces
from stoker.program._reason import Cannot
from stoker.program._stations import Inputs, Stations, Surroundings
from stoker.program._tree import copied, detached
from stoker.program._verdict import Verdict

__all__ = [
    "Cannot",
    "Captured",
    "Compiled",
    "Eager",
    "Inputs",
    "Late",
    "Plan",
    "Stations",
    "Surroundings",
    "Verdict",
    "clear_workspaces",
    "compiling",
    "copied",
    "detached",
    "size",
]
