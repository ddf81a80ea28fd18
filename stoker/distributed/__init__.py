"""The processes that train together: `World` is a value with collectives, which are identities for one process.

`join` finds the other processes. `Parallel` is what a user says about them. `Agreement` makes one rank's request the
decision of all, and `propagate_failures` makes one rank's failure that of all. The functions for sharded tensors
(`DTensor`) take ordinary tensors as well.
"""

from stoker.distributed._agreement import Agreement
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
from stoker.distributed._failures import (
    FailedElsewhere,
    barrier,
    broadcast_result,
    describe_failure,
    gather_results,
    propagate_failures,
    rank_zero,
    run_on_rank_zero,
)
from stoker.distributed._join import join, leave, local_device, world
from stoker.distributed._messages import pack, unpack
from stoker.distributed._parallel import (
    Parallel,
    as_parallel,
    data_world,
    find_blocks,
    is_distributed,
    is_sharded,
    shard_model,
)
from stoker.distributed._world import World, group_into_buckets

__all__ = [
    "Parallel",
    "World",
    "barrier",
    "is_distributed",
    "join",
    "local_device",
    "rank_zero",
    "world",
]
