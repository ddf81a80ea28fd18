"""The collectives of a world, device meshes, and work of single ranks."""

import math
import operator

import pytest
import torch
import torch.distributed as dist

from stoker.distributed import (
    FailedElsewhere,
    Parallel,
    World,
    _world,
    barrier,
    broadcast_result,
    data_world,
    gather_results,
    join,
    rank_zero,
    run_on_rank_zero,
)
from stoker.errors import InvalidArgument, PeerFailed, RunExists, StokerError

from .processes import launched, run

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8]


def tensors_of(rank):
    """Tensors of many shapes and dtypes, in no order; their sums are exact."""
    generator = torch.Generator().manual_seed(rank)
    shapes = [(3,), (), (2, 5), (0,), (4, 1, 2), (7,)]
    return [
        torch.randint(0, 9, shape, generator=generator).to(dtype)
        for place in range(3)
        for dtype in DTYPES[place:] + DTYPES[:place]
        for shape in shapes
    ]


def value_of(rank):
    """Values of all kinds, of a different size on each rank."""
    return {
        "epoch": rank,
        "nothing": None,
        "sums": {"loss": torch.full((rank, 2), float(rank), dtype=torch.bfloat16), 3: (math.inf, b"\0" * rank)},
        "texts": ["ä" * 1000 * rank, ""],
    }


def use_collectives(rank, size, way):
    _world.MANY_RANKS = 2 if way == "in a tree" else 64
    if way != "directly":
        _world._FEW_RANKS = 0
    world = join()
    assert (world.rank, world.size, world.is_first) == (rank, size, rank == 0)
    own = tensors_of(rank)
    before = [tensor.clone() for tensor in own]
    sums = [world.sum(tensor) for tensor in own]
    assert all(torch.equal(*pair) for pair in zip(own, before, strict=True))
    one = world.sum(torch.tensor([float(rank)], requires_grad=True))

    targets = [torch.full((3,), rank == 0), torch.full((2, 2), 5 - rank), torch.tensor(rank + 0.5, requires_grad=True)]
    targets += [torch.full((4, 4), rank, dtype=torch.bfloat16).t()[::2], torch.empty(0), torch.full((), rank + 0j)]
    # Expanded tensors, in which several elements share their memory.
    targets += [torch.full((2, 1), rank + 1).expand(3, 2, 4), torch.tensor(rank + 3.0).expand(5)]
    targets += [torch.ones(1).expand(0)]
    versions = [tensor._version for tensor in targets]
    world.broadcast(targets)
    assert rank or [tensor._version for tensor in targets] == versions  # rank 0's are only read
    world.broadcast([])
    world.barrier()
    return {
        "sums": sums,
        "one": one,
        "broadcast": [tensor.detach().clone() for tensor in targets],
        "all_gather": world.all_gather(value_of(rank)),
        "broadcast_object": world.broadcast_object(value_of(rank + 2)),
        "combine": world.combine([rank, "x" * rank], operator.add),
        "all_equal": [world.all_equal(value) for value in (["x", 1], rank, rank == 0)],
        "any": [world.any(flag) for flag in (False, rank == size - 1, True)],
        "all": [world.all(flag) for flag in (False, rank == 0, True)],
    }


@pytest.mark.parametrize("way", ["directly", "with collectives", "in a tree"])
@pytest.mark.parametrize("size", [2, *(pytest.param(size, marks=pytest.mark.soak) for size in (3, 7))])
def test_collectives_give_the_same_on_every_rank(size, way):
    expected = [torch.stack(each).sum(0) for each in zip(*map(tensors_of, range(size)), strict=True)]
    for found in run(use_collectives, size, way):
        for tensor, right, given in zip(found["sums"], expected, tensors_of(0), strict=True):
            assert tensor.dtype == given.dtype
            assert tensor.shape == given.shape
            assert torch.equal(tensor, right.to(given.dtype))
        assert found["one"] == sum(range(size))
        assert not found["one"].requires_grad
        right = [torch.full((3,), True), torch.full((2, 2), 5), torch.tensor(0.5)]
        right += [torch.zeros(2, 4, dtype=torch.bfloat16), torch.empty(0), torch.zeros((), dtype=torch.complex64)]
        right += [torch.ones(3, 2, 4, dtype=torch.int64), torch.full((5,), 3.0), torch.empty(0)]
        torch.testing.assert_close(found["broadcast"], right, rtol=0, atol=0)
        for rank, each in enumerate(found["all_gather"]):
            assert each["epoch"] == rank
            torch.testing.assert_close(each["sums"]["loss"], value_of(rank)["sums"]["loss"], rtol=0, atol=0)
            assert each["sums"][3] == value_of(rank)["sums"][3]
            assert each["texts"] == value_of(rank)["texts"]
        assert found["broadcast_object"]["epoch"] == 2
        assert found["combine"] == [each for rank in range(size) for each in (rank, "x" * rank)]  # in rank order
        assert found["all_equal"] == [True, False, False]
        assert found["any"] == [False, True, True]
        assert found["all"] == [False, size == 1, True]


def test_one_process_needs_no_process_group():
    assert not dist.is_initialized()
    world, tensor = World(), torch.ones(2, requires_grad=True)
    total = world.sum(tensor)
    assert total is not tensor
    assert torch.equal(total, tensor)
    assert not total.requires_grad
    world.broadcast([tensor])
    world.barrier()
    assert world.all_gather((1, None)) == [(1, None)]
    assert world.broadcast_object("x") == world.combine("x", max) == "x"
    assert (world.any(True), world.any(False), world.all(True), world.all(False)) == (True, False, True, False)


def test_error_for_a_world_that_was_not_joined():
    for use in (lambda: World(1, 2).all_gather("x"), lambda: World(1, 2).sum(torch.ones(1))):
        with pytest.raises(InvalidArgument, match=r"rank 1 of 2 has not joined the others.*stoker\.distributed\.join"):
            use()


# --- the ranks among which a batch is split


def split(rank, size):
    from torch.distributed.device_mesh import init_device_mesh

    world = join()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    assert data_world(world, Parallel()) is world
    assert data_world(world, Parallel(mesh=mesh, data=("dp", "tp"))) is world
    part = data_world(world, Parallel(mesh=mesh))
    across = data_world(world, Parallel(mesh=mesh, data=("tp",)))
    total = float(part.sum(torch.tensor(float(rank))))
    along = part.rank, part.size, part.all_gather(rank), total, part.broadcast_object(rank)
    return along, (across.rank, across.size, across.all_gather(rank))


@pytest.mark.soak
def test_a_batch_is_split_along_the_data_dimensions_of_a_mesh():
    dp, tp = zip(*run(split, 4), strict=True)
    assert dp == ((0, 2, [0, 2], 2.0, 0), (0, 2, [1, 3], 4.0, 1), (1, 2, [0, 2], 2.0, 0), (1, 2, [1, 3], 4.0, 1))
    assert tp == ((0, 2, [0, 1]), (1, 2, [0, 1]), (0, 2, [2, 3]), (1, 2, [2, 3]))


def test_error_for_a_mesh_of_other_ranks():
    mesh = type("Mesh", (), {"mesh_dim_names": ("dp",), "mesh": torch.arange(2)})()
    with pytest.raises(InvalidArgument, match="the mesh has 2 ranks, and there are 3; it must have them all"):
        data_world(World(0, 3), Parallel(mesh=mesh))


# --- work of rank 0, and of all ranks


@rank_zero
def write(text):
    """Writes."""
    return f"written: {text}"


def work_together(rank, size):
    barrier()  # joins
    found, world, done = {"rank_zero": write("x")}, join(), []
    barrier()

    class Odd(Exception):
        pass

    def work():
        done.append(rank)
        return rank

    def fail(error, on=0):
        def work():
            if rank == on:
                raise error
            return rank

        return work

    found["run_on_rank_zero"] = run_on_rank_zero(world, work), list(done)
    for error, kind in ((RunExists("taken"), RunExists), (PermissionError("no"), PermissionError)):
        with pytest.raises(kind, match=str(error)):
            run_on_rank_zero(world, fail(error))
    with pytest.raises(Odd if rank == 0 else StokerError) as odd:
        run_on_rank_zero(world, fail(Odd("strange")))
    found["odd"] = str(odd.value)
    found["gather_results"] = gather_results(world, work)
    found["broadcast_result"] = broadcast_result(world, lambda: f"from {rank}")
    for on in (0, 1):
        with pytest.raises(ValueError if rank == on else FailedElsewhere) as failure:
            gather_results(world, fail(ValueError("odd"), on))
        found[f"failure on {on}"] = str(failure.value)
    return found


def test_work_of_rank_zero_and_of_all_ranks_has_one_outcome():
    first, second = launched(work_together, 2)
    assert (first["rank_zero"], second["rank_zero"]) == ("written: x", None)
    assert (first["run_on_rank_zero"], second["run_on_rank_zero"]) == ((0, [0]), (None, []))
    assert (first["odd"], second["odd"]) == ("strange", "Odd: strange")
    for found in (first, second):
        assert found["gather_results"] == [0, 1]
        assert found["broadcast_result"] == "from 0"
    assert (first["failure on 0"], second["failure on 0"]) == ("odd", "rank 0: ValueError: odd. Fix that first")
    assert (first["failure on 1"], second["failure on 1"]) == ("rank 1: ValueError: odd. Fix that first", "odd")


def test_a_lost_connection_is_not_a_failure_of_the_work():
    class Lost(World):
        def all_gather(self, value):
            raise RuntimeError("[gloo/transport/tcp/pair.cc] Connection closed by peer")

    with pytest.raises(PeerFailed, match="^the connection to the other ranks was lost") as failed:
        gather_results(Lost(size=2), lambda: 3)
    assert not isinstance(failed.value, FailedElsewhere)
