"""The collectives of a world: what they give on every rank, and that they are identities on one."""

import math

import pytest
import torch
import torch.distributed as dist

from stoker.distributed import World, joined
from stoker.distributed._world import _buckets
from stoker.errors import InvalidArgument

from .processes import run

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8]


def tensors_of(rank):
    """Of many shapes and types, in no order; the sums are exact in all of them."""
    generator = torch.Generator().manual_seed(rank)
    shapes = [(3,), (), (2, 5), (0,), (4, 1, 2), (7,)]
    return [
        torch.randint(0, 9, shape, generator=generator).to(dtype)
        for place in range(3)
        for dtype in DTYPES[place:] + DTYPES[:place]
        for shape in shapes
    ]


def kept(rank):
    """What a rank might have: all kinds of values, of another size on each."""
    return {
        "epoch": rank,
        "nothing": None,
        "sums": {"loss": torch.full((rank, 2), float(rank), dtype=torch.bfloat16), 3: (math.inf, b"\0" * rank)},
        "texts": ["ä" * 1000 * rank, ""],
    }


def take_part(rank, size):
    world = joined()
    assert (world.rank, world.size, world.is_first) == (rank, size, rank == 0)
    mine = tensors_of(rank)
    before = [tensor.clone() for tensor in mine]
    summed = {megabytes: world.sum_all(mine, bucket_mb=megabytes) for megabytes in (25, 1e-5)}
    assert all(torch.equal(*pair) for pair in zip(mine, before, strict=True))
    one = world.sum(torch.tensor([float(rank)], requires_grad=True))

    flags = [torch.full((3,), rank == 0), torch.full((2, 2), 5 - rank), torch.tensor(rank + 0.5, requires_grad=True)]
    flags += [torch.full((4, 4), rank, dtype=torch.bfloat16).t()[::2], torch.empty(0), torch.full((), rank + 0j)]
    # Expanded, as a mask may be: many places of one memory.
    flags += [torch.full((2, 1), rank + 1).expand(3, 2, 4), torch.tensor(rank + 3.0).expand(5), torch.ones(1).expand(0)]
    versions = [tensor._version for tensor in flags]
    world.broadcast(flags)
    assert rank or [tensor._version for tensor in flags] == versions  # the first one's are only read
    world.broadcast([])
    world.barrier()
    return {
        "summed": summed,
        "one": one,
        "broadcast": [tensor.detach().clone() for tensor in flags],
        "gathered": world.all_gather(kept(rank)),
        "told": world.broadcast_object(kept(rank + 2)),
        "any": [world.any(flag) for flag in (False, rank == size - 1, True)],
        "all": [world.all(flag) for flag in (False, rank == 0, True)],
    }


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_collectives(size):
    expected = [torch.stack(each).sum(0) for each in zip(*map(tensors_of, range(size)), strict=True)]
    for found in run(take_part, size):
        for summed in found["summed"].values():
            for tensor, right, given in zip(summed, expected, tensors_of(0), strict=True):
                assert tensor.dtype == given.dtype and tensor.shape == given.shape
                assert torch.equal(tensor, right.to(given.dtype))
        assert found["one"] == sum(range(size)) and not found["one"].requires_grad
        right = [torch.full((3,), True), torch.full((2, 2), 5), torch.tensor(0.5)]
        right += [torch.zeros(2, 4, dtype=torch.bfloat16), torch.empty(0), torch.zeros((), dtype=torch.complex64)]
        right += [torch.ones(3, 2, 4, dtype=torch.int64), torch.full((5,), 3.0), torch.empty(0)]
        torch.testing.assert_close(found["broadcast"], right, rtol=0, atol=0)
        assert [each["epoch"] for each in found["gathered"]] == list(range(size))
        for rank, each in enumerate(found["gathered"]):
            torch.testing.assert_close(each["sums"]["loss"], kept(rank)["sums"]["loss"], rtol=0, atol=0)
            assert each["sums"][3] == kept(rank)["sums"][3] and each["texts"] == kept(rank)["texts"]
        assert found["told"]["epoch"] == 2 and found["told"]["texts"] == kept(2)["texts"]
        assert found["any"] == [False, True, True]
        assert found["all"] == [False, size == 1, True]


def test_alone_nothing_is_needed():
    assert not dist.is_initialized()
    world, tensor = World(), torch.ones(2, requires_grad=True)
    summed = world.sum(tensor)
    assert summed is not tensor and torch.equal(summed, tensor) and not summed.requires_grad
    world.broadcast([tensor])
    world.barrier()
    assert world.all_gather((1, None)) == [(1, None)] and world.broadcast_object("x") == "x"
    assert world.any(True) and not world.any(False) and world.all(True) and not world.all(False)


def test_what_travels_together():
    tensors = [torch.ones(size) for size in (100, 100, 100, 1000, 1, 100)]  # of 4 bytes
    kinds = ["a", "a", "b", "a", "a", "a"]
    assert list(_buckets(kinds, tensors, 1000 / 2**20)) == [[0, 1], [3], [4, 5], [2]]
    assert list(_buckets(kinds, tensors, 25)) == [[0, 1, 3, 4, 5], [2]]
    assert list(_buckets([], [], 25)) == []


def test_a_world_that_has_not_been_joined():
    with pytest.raises(
        InvalidArgument, match=r"rank 1 of 2 has not joined the others: ask stoker\.distributed\.joined"
    ):
        World(1, 2).all_gather("x")
    with pytest.raises(InvalidArgument, match="has not joined the others"):
        World(1, 2).sum(torch.ones(1))
