"""The ranks among which a batch is split, where a device mesh splits more than batches."""

from dataclasses import replace
from datetime import timedelta

import torch.distributed as dist

from stoker.distributed._parallel import Parallel
from stoker.distributed._world import Group, World
from stoker.errors import InvalidArgument


def data_world(world: World, parallel: Parallel) -> World:
    """The ranks among which a batch is split: all, or those along the mesh's data dimensions.

    Ranks that differ only along the other dimensions (tensor parallelism, say) get the same rows.
    """
    if parallel.mesh is None or world.size == 1:
        return world
    names = list(parallel.mesh.mesh_dim_names)
    ranks = parallel.mesh.mesh
    if ranks.numel() != world.size:
        raise InvalidArgument(f"the mesh has {ranks.numel()} ranks and there are {world.size}: make it of all of them")
    along = [names.index(name) for name in parallel.data_names]
    across = [place for place in range(ranks.ndim) if place not in along]
    size = 1
    for place in along:
        size *= ranks.shape[place]
    if size == world.size:
        return world
    rows = ranks.permute(*across, *along).reshape(-1, size).tolist()
    mine = next(row for row in rows if world.rank in row)
    waits = timedelta(seconds=world.timeout)
    group, _ = dist.new_subgroups_by_enumeration(rows, timeout=waits)
    control, _ = dist.new_subgroups_by_enumeration(rows, timeout=waits, backend="gloo")
    return replace(world, rank=mine.index(world.rank), size=size, group=group, control=Group(control))
