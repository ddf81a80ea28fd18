"""Process groups of the simulated device: "nccl" and gloo with CUDA tensors, by gloo on the CPU as the reference."""

import gc
import warnings
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from tests.distributed.processes import run

pytestmark = [pytest.mark.cuda, pytest.mark.simulated]


def take_races():
    from simulated_cuda import control  # on the simulated device only

    return control.take_races()


def group_of(backend, ranks=None):
    warnings.simplefilter("ignore")  # names that torch replaces, and a barrier without a device
    return dist.new_group(ranks, backend=backend, timeout=timedelta(seconds=60))


def numbers(rank, shape, dtype=torch.float32, seed=0):
    """A rank's tensor on the host; every rank can compute those of the others. Integers, so that sums are exact."""
    generator = torch.Generator().manual_seed(100 * seed + rank)
    return torch.randint(0, 5, shape, generator=generator).to(dtype)


# --- results


def reductions(group, rank, size):
    ops = dist.ReduceOp
    expected = {
        ops.SUM: lambda all_: all_.sum(0),
        ops.MAX: lambda all_: all_.amax(0),
        ops.MIN: lambda all_: all_.amin(0),
        ops.PRODUCT: lambda all_: all_.prod(0),
    }
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8):
        for op, reference in expected.items():
            tensor = numbers(rank, (3, 4), dtype).cuda()
            dist.all_reduce(tensor, op, group=group)
            all_ = torch.stack([numbers(each, (3, 4), dtype) for each in range(size)])
            yield f"all_reduce {op} {dtype}", tensor, reference(all_.double()).to(dtype)
    tensor = (numbers(rank, (5,)) > 2).cuda()
    dist.all_reduce(tensor, group=group)
    yield "a sum of flags", tensor, torch.stack([numbers(each, (5,)) > 2 for each in range(size)]).any(0)
    tensor = numbers(rank, (5,)).to(torch.complex64).cuda() * (1 + 2j)
    dist.all_reduce(tensor, group=group)
    yield "complex", tensor, sum(numbers(each, (5,)).to(torch.complex64) * (1 + 2j) for each in range(size))


def means(group, rank, size):
    all_ = [numbers(each, (6,)) * 12 for each in range(size)]
    tensor = all_[rank].cuda()
    dist.all_reduce(tensor, dist.ReduceOp.AVG, group=group)
    yield "AVG", tensor, sum(each * (1 / size) for each in all_)
    tensor = all_[rank].cuda()
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5), group=group)
    yield "PREMUL_SUM", tensor, sum(all_) * 0.5


def movements(group, rank, size):
    """Collectives that move bytes, also of types that can't be added up."""
    for dtype in (torch.float32, torch.bool, torch.complex64, torch.float8_e4m3fn):
        own = [numbers(each, (4, 2), dtype) for each in range(size)]

        def plain(tensor):
            return tensor.cpu().view(torch.uint8)

        tensor = own[rank].cuda()
        dist.broadcast(tensor, group_src=1, group=group)
        yield f"broadcast {dtype}", plain(tensor), plain(own[1])
        out = torch.empty(4 * size, 2, dtype=dtype, device="cuda")
        dist.all_gather_into_tensor(out, own[rank].cuda(), group=group)
        yield f"all_gather_into_tensor {dtype}", plain(out), torch.cat([plain(each) for each in own])
        outs = [torch.empty(4, 2, dtype=dtype, device="cuda") for _ in range(size)]
        dist.all_gather(outs, own[rank].cuda(), group=group)
        yield f"all_gather {dtype}", torch.stack(list(map(plain, outs))), torch.stack(list(map(plain, own)))
    own = [numbers(each, (2 * size, 3)) for each in range(size)]
    out = torch.empty(2 * size, 3, device="cuda")
    dist.all_to_all_single(out, own[rank].cuda(), group=group)
    yield "all_to_all_single", out, torch.cat([each.chunk(size)[rank] for each in own])
    uneven = [torch.arange(10.0 * each, 10.0 * each + size * (each + 1)) for each in range(size)]  # rank r sends r + 1
    out = torch.empty(sum(range(1, size + 1)), device="cuda")
    receives, sends = [each + 1 for each in range(size)], [rank + 1] * size
    dist.all_to_all_single(out, uneven[rank].cuda(), receives, sends, group=group)
    yield "uneven", out, torch.cat([each.chunk(size)[rank] for each in uneven])
    outs = [torch.empty(2, 3, device="cuda") for _ in range(size)]
    dist.all_to_all(outs, list(own[rank].cuda().chunk(size)), group=group)
    yield "all_to_all", torch.cat(outs), torch.cat([each.chunk(size)[rank] for each in own])


def of_one_rank(group, rank, size):
    """Collectives with a root, messages from rank to rank, and objects."""
    own = [numbers(each, (3,)) for each in range(size)]
    out = torch.empty(3, device="cuda")
    dist.scatter(out, [each.cuda() for each in own] if rank == 0 else None, group_src=0, group=group)
    yield "scatter", out, own[rank]
    outs = [torch.empty(3, device="cuda") for _ in range(size)] if rank == 1 else None
    dist.gather(own[rank].cuda(), outs, group_dst=1, group=group)
    if outs:
        yield "gather", torch.cat(outs), torch.cat(own)
    tensor = own[rank].cuda()
    dist.reduce(tensor, group_dst=1, group=group)
    yield "reduce", tensor, sum(own) if rank == 1 else own[rank]
    tensor = own[rank].cuda()
    if rank == 0:
        dist.send(tensor, group_dst=1, group=group)
    elif rank == 1:
        dist.recv(tensor, group_src=0, group=group)
        yield "recv", tensor, own[0]
    received = torch.empty(3, device="cuda")  # in a ring, all at the same time
    receive = dist.P2POp(dist.irecv, received, group_peer=(rank - 1) % size, group=group)
    send = dist.P2POp(dist.isend, own[rank].cuda(), group_peer=(rank + 1) % size, group=group)
    for work in dist.batch_isend_irecv([receive, send]):
        work.wait()
    yield "batch_isend_irecv", received, own[(rank - 1) % size]
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank}, group=group)
    assert objects == [{"rank": each} for each in range(size)]


def scattered(group, rank, size):
    own = [numbers(each, (2 * size, 3)) for each in range(size)]
    total = sum(own).chunk(size)[rank]
    out = torch.empty(2, 3, device="cuda")
    dist.reduce_scatter_tensor(out, own[rank].cuda(), group=group)
    yield "reduce_scatter_tensor", out, total
    out = torch.empty(2, 3, device="cuda")
    dist.reduce_scatter(out, list(own[rank].cuda().chunk(size)), group=group)
    yield "reduce_scatter", out, total


def coalesced(group, rank, size):
    own = [numbers(each, (4,)) for each in range(size)]
    tensors = [own[rank].cuda() * factor for factor in (1, 2, 3)]
    with dist._coalescing_manager(group, device=torch.device("cuda"), async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor, group=group)
    manager.wait()
    for factor, tensor in enumerate(tensors, 1):
        yield "all_reduce", tensor, sum(own) * factor
    outs = [torch.empty(4 * size, device="cuda") for _ in range(2)]
    with dist._coalescing_manager(group, device=torch.device("cuda")):
        for out in outs:
            dist.all_gather_into_tensor(out, own[rank].cuda(), group=group)
    yield "all_gather_into_tensor", torch.cat(outs), torch.cat(own * 2)
    out = torch.empty(4 // 2, device="cuda")
    if size == 2:
        with dist._coalescing_manager(group, device=torch.device("cuda")):
            dist.reduce_scatter_tensor(out, own[rank].cuda(), group=group)
        yield "reduce_scatter_tensor", out, sum(own).chunk(2)[rank]


def compare(rank, size, backend, kinds):
    group = group_of(backend)
    for kind in kinds:
        for name, found, expected in globals()[kind](group, rank, size):
            assert torch.equal(found.cpu(), expected), f"{kind}, {name}: {found} instead of {expected}"


COMMON = ["reductions", "movements", "of_one_rank", "scattered"]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(("backend", "kinds"), [("nccl", [*COMMON, "means", "coalesced"]), ("gloo", COMMON)])
def test_collectives_give_what_they_should(backend, kinds, size):
    run(compare, size, backend, kinds)


def use_part_of_the_ranks(rank, size):
    pair = group_of("nccl", [0, 2])
    if rank != 1:
        tensor = torch.full((2,), rank + 1.0, device="cuda")
        dist.all_reduce(tensor, group=pair)
        assert tensor.tolist() == [4.0, 4.0]
        assert dist.get_backend(pair) == "nccl" and dist.get_world_size(pair) == 2


def test_a_group_may_be_a_part_of_the_ranks():
    run(use_part_of_the_ranks, 3)


# --- streams


def use_too_early(rank, size, backend):
    group = group_of(backend)
    tensor = torch.ones(4, device="cuda")
    work = dist.all_reduce(tensor, group=group, async_op=True)
    tensor + 1
    early = take_races()
    work.wait()
    tensor + 1
    return early, take_races()


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_a_result_that_is_used_before_wait_is_a_race(backend):
    for early, later in run(use_too_early, 2, backend):
        assert len(early) == 1 and "may not have written yet" in early[0] and "communicate" in early[0]
        assert later == []


def overwrite_too_early(rank, size):
    group = group_of("nccl")
    own, out = torch.ones(4, device="cuda"), torch.empty(8, device="cuda")
    work = dist.all_gather_into_tensor(out, own, group=group, async_op=True)
    own.zero_()
    early = take_races()
    work.wait()
    own.zero_()
    return early, take_races()


def test_an_input_that_is_overwritten_before_wait_is_a_race():
    for early, later in run(overwrite_too_early, 2):
        assert len(early) == 1 and "may still read" in early[0]
        assert later == []


def order_in_other_ways(rank, size):
    """Ways to wait for a collective besides `wait`."""
    group = group_of("nccl")
    tensor = torch.ones(4, device="cuda")
    dist.all_reduce(tensor, group=group)  # not asynchronous: on the stream of the caller
    found = [tensor + 1]
    future = dist.all_reduce(tensor, group=group, async_op=True).get_future()
    found.append(future.then(lambda done: done.value()[0] * 2).wait() + 1)
    dist.all_reduce(tensor, group=group, async_op=True)
    torch.cuda.synchronize()
    found.append(tensor + 1)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        side.wait_stream(torch.cuda.default_stream())
        dist.all_reduce(tensor, group=group)
    early = (tensor + 1, take_races())[1]
    torch.cuda.current_stream().wait_stream(side)
    found.append(tensor + 1)
    return [each[0].item() for each in found], early, take_races()


def test_streams_wait_for_each_other_as_with_nccl():
    for found, early, races in run(order_in_other_ways, 2):
        assert found == [3.0, 9.0, 9.0, 17.0]
        assert len(early) == 1 and "on stream 0 reads" in early[0]
        assert races == []


def free_early(rank, size):
    """A collective that nobody waits for keeps its memory until it is done."""
    group = group_of("nccl")
    for _ in range(4):
        dist.all_reduce(torch.ones(1000, device="cuda"), group=group, async_op=True)
        gc.collect()
        torch.ones(1000, device="cuda")
    return take_races()


def test_memory_of_a_collective_is_not_used_again_too_early():
    assert run(free_early, 2) == [[], []]


def synchronize(rank, size, backend):
    group = group_of(backend)
    tensor = torch.ones(4, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    found = []
    for action in (
        lambda: dist.all_reduce(tensor, group=group),
        lambda: dist.all_reduce(tensor, group=group, async_op=True).wait(),
        lambda: dist.barrier(group=group),
    ):
        try:
            action()
            found.append("runs")
        except RuntimeError as error:
            found.append(str(error).splitlines()[0])
    torch.cuda.set_sync_debug_mode("default")
    return found


def test_nccl_does_not_synchronise_except_in_a_barrier():
    for found in run(synchronize, 2, "nccl"):
        assert found == ["runs", "runs", "called a synchronizing CUDA operation: a barrier"]


def test_gloo_synchronises_with_the_device():
    for found in run(synchronize, 2, "gloo"):
        text = "called a synchronizing CUDA operation: gloo with tensors of the device"
        assert found == [text, text, "runs"]  # its barrier is one of the host


# --- captures


def capture(rank, size, backend):
    group = group_of(backend)
    tensor, total = torch.ones(4, device="cuda"), torch.zeros(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        copy = tensor * (rank + 1)
        dist.all_reduce(copy, group=group)
        dist.all_reduce(total, group=group, async_op=True).wait()
        total += copy
    assert total.tolist() == [0.0] * 4  # a capture runs nothing
    sums = []
    for value in (1.0, 10.0):
        tensor.fill_(value)
        graph.replay()
        sums.append(total.tolist())
    return sums


def test_a_collective_of_nccl_is_recorded_and_replayed():
    for sums in run(capture, 2, "nccl"):
        assert sums == [[3.0] * 4, [36.0] * 4]  # 0 + 3, then twice 3 and 30


def capture_gloo(rank, size):
    with pytest.raises(RuntimeError, match="due to a previous error during capture") as error:
        capture(rank, size, "gloo")
    assert "not permitted when stream is capturing (gloo" in str(error.value.__context__)
    tensor = torch.ones(2, device="cuda")
    group = group_of("gloo")
    dist.all_reduce(tensor, group=group)  # works again
    assert tensor.tolist() == [2.0, 2.0]


def test_a_collective_of_gloo_can_not_be_captured():
    run(capture_gloo, 2)


# --- mistakes


def launch_different_ones(rank, size, one, other):
    group = group_of("nccl")
    try:
        eval(other if rank else one, globals(), {"group": group})
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return "no error"


@pytest.mark.parametrize(
    ("one", "other", "texts"),
    [
        (
            "dist.all_reduce(torch.ones(3, device='cuda'), group=group)",
            "dist.all_reduce(torch.ones(4, device='cuda'), group=group)",
            ["rank 0 all_reduce(Float [3], SUM)", "rank 1 all_reduce(Float [4], SUM)"],
        ),
        (
            "dist.all_reduce(torch.ones(3, device='cuda'), group=group)",
            "dist.broadcast(torch.ones(3, device='cuda'), 0, group=group)",
            ["rank 0 all_reduce(Float [3], SUM)", "rank 1 broadcast(Float [3], from rank 0)"],
        ),
        (
            "dist.all_reduce(torch.ones(3, device='cuda'), group=group)",
            "dist.all_reduce(torch.ones(3, device='cuda').double(), dist.ReduceOp.MAX, group=group)",
            ["all_reduce(Float [3], SUM)", "all_reduce(Double [3], MAX)"],
        ),
        (
            "dist.broadcast(torch.ones(3, device='cuda'), 0, group=group)",
            "dist.broadcast(torch.ones(3, device='cuda'), 1, group=group)",
            ["from rank 0", "from rank 1"],
        ),
    ],
    ids=["shapes", "operations", "types", "roots"],
)
def test_ranks_that_launch_different_collectives_get_an_error(one, other, texts):
    for error in run(launch_different_ones, 2, one, other):
        assert "ranks launch different collectives (number 1 of the group)" in error
        assert all(text in error for text in texts), error


def launch_wrong_ones(rank, size):
    group = group_of("nccl")
    device = torch.device("cuda")
    with pytest.raises(RuntimeError, match="equal to world_size times input tensor size"):
        dist.all_gather_into_tensor(torch.empty(3, device=device), torch.empty(3, device=device), group=group)
    with pytest.raises(RuntimeError, match="must be contiguous"):
        dist.all_reduce(torch.empty(4, 4, device=device)[:, :2], group=group)
    with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
        dist.all_reduce(torch.empty(4), group=group)


def test_wrong_tensors_are_errors():
    run(launch_wrong_ones, 2)


def wait_for_a_rank_that_has_ended(rank, size):
    group = dist.new_group(backend="nccl", timeout=timedelta(seconds=5))
    if rank == 1:
        with pytest.raises(RuntimeError, match="(?i)timed? ?out|closed by peer"):
            dist.all_reduce(torch.ones(2, device="cuda"), group=group)


def test_a_rank_that_is_alone_gets_an_error():
    run(wait_for_a_rank_that_has_ended, 2)
