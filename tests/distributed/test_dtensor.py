"""Functions for sharded tensors in a world of one process; several processes: the other tests in this directory."""

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from stoker.distributed import (
    copy_into,
    from_local,
    full_tensor,
    is_dtensor,
    local_region,
    reshard,
    shard_like,
    to_local,
)


def test_an_ordinary_tensor_is_its_own_part():
    tensor = torch.ones(2)
    assert not is_dtensor(tensor) and to_local(tensor) is tensor and full_tensor(tensor) is tensor
    target = torch.zeros(2)
    copy_into("a", target, tensor)
    assert torch.equal(target, tensor)


def test_the_local_part_shares_memory(mesh):
    tensor = nn.Parameter(distribute_tensor(torch.arange(6.0).reshape(3, 2), mesh, [Shard(0)]))
    assert is_dtensor(tensor) and local_region("a", tensor) == (slice(0, 3), slice(0, 2))
    to_local(tensor).zero_()
    assert not tensor.full_tensor().any()
    number = distribute_tensor(torch.tensor(3.0), mesh, [Replicate()])
    assert local_region("n", number) == ()


def test_a_part_keeps_its_dtype_and_device(mesh):
    like = distribute_tensor(torch.ones(3, 2), mesh, [Shard(1)])
    made = from_local(torch.zeros(3, 2, dtype=torch.bfloat16), like)
    assert isinstance(made, DTensor) and made.dtype == torch.bfloat16 and made.placements == like.placements
    assert made.shape == (3, 2) and made.full_tensor().dtype == torch.bfloat16
    assert from_local(torch.zeros(3, 2, device="meta"), like).to_local().is_meta


def test_source_and_target_of_a_copy_may_be_sharded(mesh):
    whole = torch.arange(6.0).reshape(3, 2)
    for value in (whole, distribute_tensor(whole, mesh, [Shard(0)]), distribute_tensor(whole, mesh, [Shard(1)])):
        sharded, plain = distribute_tensor(torch.zeros(3, 2), mesh, [Shard(0)]), torch.zeros(3, 2)
        copy_into("a", sharded, value)
        copy_into("a", plain, value)
        assert torch.equal(sharded.full_tensor(), whole) and torch.equal(plain, whole)
    own = shard_like("a", whole, distribute_tensor(torch.zeros(3, 2), mesh, [Shard(0)]))
    assert torch.equal(own.full_tensor(), whole) and own.to_local().data_ptr() != whole.data_ptr()


def test_reshard_restores_the_shards_of_fsdp(mesh):
    model = fully_shard(nn.Linear(2, 2), mesh=mesh)
    with torch.no_grad():
        model(torch.ones(1, 2))
    assert not is_dtensor(model.weight)
    reshard(model)
    assert is_dtensor(model.weight)
