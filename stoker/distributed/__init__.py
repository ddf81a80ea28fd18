"""distributed: takes the environment and gives a `World`, a value handed down; collectives vanish at size 1.

`joined` meets the other processes. `Parallel` is what a user says about them. `Accord` makes one rank's wish the
decision of all, and `failing` makes one rank's failure that of all.
"""

from stoker.distributed._accord import Accord
from stoker.distributed._failing import failing
from stoker.distributed._join import device_of, joined, left, world
from stoker.distributed._mesh import data_world
from stoker.distributed._parallel import Parallel, as_parallel
from stoker.distributed._shard import blocks_of, is_distributed, is_sharded, sharded
from stoker.distributed._together import barrier, rank_zero
from stoker.distributed._world import Group, World

__all__ = [
    "Accord",
    "Group",
    "Parallel",
    "World",
    "as_parallel",
    "barrier",
    "blocks_of",
    "data_world",
    "device_of",
    "failing",
    "is_distributed",
    "is_sharded",
    "joined",
    "left",
    "rank_zero",
    "sharded",
    "world",
]
