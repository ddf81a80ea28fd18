"""The ranks among which a batch is split, along a device mesh."""

import pytest
import torch

from stoker.distributed import Parallel, World, data_world, is_sharded, joined, shard_model
from stoker.errors import InvalidArgument

from .processes import run
from .test_shard import gradients, network


def split(rank, size):
    from torch.distributed.device_mesh import init_device_mesh

    world = joined()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    assert data_world(world, Parallel()) is world
    assert data_world(world, Parallel(mesh=mesh, data=("dp", "tp"))) is world
    part = data_world(world, Parallel(mesh=mesh))
    across = data_world(world, Parallel(mesh=mesh, data=("tp",)))
    both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    hybrid = network()
    shard_model(hybrid, Parallel(mode="fsdp", mesh=both), world)
    along = network()
    shard_model(along, Parallel(mode="fsdp", mesh=mesh), world)
    assert is_sharded(hybrid) and is_sharded(along)
    three = init_device_mesh("cpu", (2, 2, 1), mesh_dim_names=("a", "b", "c"))
    with pytest.raises(InvalidArgument, match=r"needs one dimension of the mesh .* not a, b, c: say which with data="):
        shard_model(network(), Parallel(mode="fsdp", mesh=three), world)
    return {
        "dp": (
            part.rank,
            part.size,
            part.all_gather(rank),
            float(part.sum(torch.tensor(float(rank)))),
            part.broadcast_object(rank),
        ),
        "tp": (across.rank, across.size, across.all_gather(rank)),
        "hybrid": gradients(hybrid, rank, size),
        "along": gradients(along, part.rank, part.size),
    }


def test_ranks_along_a_mesh():
    found = run(split, 4)
    assert [each["dp"] for each in found] == [
        (0, 2, [0, 2], 2.0, 0),
        (0, 2, [1, 3], 4.0, 1),
        (1, 2, [0, 2], 2.0, 0),
        (1, 2, [1, 3], 4.0, 1),
    ]
    assert [each["tp"] for each in found] == [(0, 2, [0, 1]), (1, 2, [0, 1]), (0, 2, [2, 3]), (1, 2, [2, 3])]
    expected = gradients(network(), 0, 1)
    for each in found:
        torch.testing.assert_close(each["hybrid"], expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(each["along"], expected, rtol=1e-5, atol=1e-6)


def test_a_mesh_of_other_ranks():
    mesh = type("Mesh", (), {"mesh_dim_names": ("dp",), "mesh": torch.arange(2)})()
    with pytest.raises(InvalidArgument, match="the mesh has 2 ranks and there are 3: make it of all of them"):
        data_world(World(0, 3), Parallel(mesh=mesh))
