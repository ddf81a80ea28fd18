"""distributed: takes the environment and gives a `World`, a value handed down; collectives vanish at size 1.

`joined` meets the other processes. `Parallel` is what a user says about them. `Accord` makes one rank's wish the
decision of all, and `failing` makes one rank's failure that of all.
"""

from stoker.distributed._accord import Accord
from stoker.distributed._dtensor import (
    copy_into,
    from_local,
    full_tensor,
    is_dtensor,
    local_region,
    map_shards,
    place_like,
    reduce_shards,
    reshard,
    shard_like,
    stored_values,
    to_local,
)
from stoker.distributed._failing import failing
from stoker.distributed._join import device_of, joined, left, world
from stoker.distributed._mesh import data_world
from stoker.distributed._parallel import Parallel, as_parallel
from stoker.distributed._rank_zero import (
    FailedElsewhere,
    barrier,
    broadcast_result,
    describe_failure,
    gather_results,
    rank_zero,
    run_on_rank_zero,
)
from stoker.distributed._shard import blocks_of, is_distributed, is_sharded, sharded
from stoker.distributed._world import Group, World

__all__ = [
    "Accord",
    "FailedElsewhere",
    "Group",
    "Parallel",
    "World",
    "as_parallel",
    "barrier",
    "blocks_of",
    "broadcast_result",
    "copy_into",
    "data_world",
    "describe_failure",
    "device_of",
    "failing",
    "from_local",
    "full_tensor",
    "gather_results",
    "is_distributed",
    "is_dtensor",
    "is_sharded",
    "joined",
    "left",
    "local_region",
    "map_shards",
    "place_like",
    "rank_zero",
    "reduce_shards",
    "reshard",
    "run_on_rank_zero",
    "shard_like",
    "sharded",
    "stored_values",
    "to_local",
    "world",
]
Agreement = Accord
propagate_failures = failing
World.all_gather = World.gathered
World.broadcast_object = World.told
