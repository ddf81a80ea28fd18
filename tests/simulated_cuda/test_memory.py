"""Memory of the device: what is allocated and reserved, its limit, and pools."""

import gc

import pytest
import torch

from tests.simulated_cuda.helpers import capture, control, failed_capture

pytestmark = [pytest.mark.cuda, pytest.mark.simulated]
MIB = 2**20


@pytest.fixture(autouse=True)
def clean():
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    yield
    control().set_memory_limit(None)
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


def tensor(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def test_allocated_memory_and_its_peak_are_exact():
    before = torch.cuda.memory_allocated()
    x = tensor(10 * MIB)
    y = x.view(-1)[: 5 * MIB]  # a view takes no memory
    assert torch.cuda.memory_allocated() == before + 10 * MIB
    z = x + 1
    assert torch.cuda.memory_allocated() == before + 20 * MIB
    del x, z
    assert torch.cuda.memory_allocated() == before + 10 * MIB
    del y
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.max_memory_allocated() == before + 20 * MIB
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == before


def test_blocks_are_rounded_to_512_bytes():
    before = torch.cuda.memory_allocated()
    x = tensor(1)
    assert torch.cuda.memory_allocated() == before + 512
    del x


def test_freed_memory_stays_reserved_until_the_cache_is_emptied():
    before = torch.cuda.memory_reserved()
    x = tensor(64 * MIB)
    assert torch.cuda.memory_reserved() == before + 64 * MIB
    del x
    assert torch.cuda.memory_reserved() == before + 64 * MIB
    x = tensor(64 * MIB)  # takes the cached segment
    assert torch.cuda.memory_reserved() == before + 64 * MIB == torch.cuda.max_memory_reserved()
    torch.cuda.empty_cache()  # a segment in use stays
    assert torch.cuda.memory_reserved() == before + 64 * MIB
    del x
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == before


def test_small_blocks_share_a_segment():
    before = torch.cuda.memory_reserved()
    kept = [tensor(1000) for _ in range(10)]
    assert torch.cuda.memory_reserved() - before <= 2 * MIB
    del kept


def test_a_freed_block_between_others_is_used_again():
    kept = [tensor(3 * MIB) for _ in range(6)]  # one segment of 20 MiB
    reserved = torch.cuda.memory_reserved()
    del kept[2]
    kept.append(tensor(2 * MIB))
    assert torch.cuda.memory_reserved() == reserved
    kept.append(tensor(4 * MIB))  # larger than what is left
    assert torch.cuda.memory_reserved() > reserved


def test_memory_runs_out_at_the_limit_and_can_be_used_afterwards():
    kept = tensor(4 * MIB)
    control().set_memory_limit(torch.cuda.memory_allocated() + 6 * MIB)
    fits = tensor(6 * MIB)
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory. Tried to allocate"):
        tensor(MIB)
    with pytest.raises(torch.OutOfMemoryError):
        kept + 1
    del fits
    assert (kept.zero_() + 1).sum().item() == 4 * MIB
    control().set_memory_limit(None)
    tensor(64 * MIB)


def test_the_fraction_of_the_memory_limits_what_is_reserved():
    total = torch.cuda.get_device_properties(0).total_memory
    assert torch.cuda.mem_get_info() == (total - torch.cuda.memory_reserved(), total)
    cached = tensor(64 * MIB)
    del cached
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 16 * MIB) / total)
    fits = tensor(80 * MIB)  # after torch has freed what it caches
    with pytest.raises(torch.OutOfMemoryError):
        tensor(64 * MIB)
    del fits
    tensor(64 * MIB)


def test_a_capture_keeps_its_segments_in_a_pool_of_its_own():
    x = torch.ones(4 * MIB, device="cuda")
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved(), torch.cuda.memory_allocated()
    graph, result = capture(lambda: (x * 2 + 1).sum())
    # The product is freed when the sum has been launched; the graph keeps the segment for its replays.
    assert torch.cuda.memory_allocated() == before[1] + 512
    torch.cuda.empty_cache()
    kept = torch.cuda.memory_reserved() - before[0]
    assert 32 * MIB <= kept <= 36 * MIB
    pools = {segment["segment_pool_id"] for segment in torch.cuda.memory_snapshot()}
    assert graph.pool() in pools
    del result
    graph.reset()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == before[0]


def test_graphs_of_one_pool_share_what_is_free_in_it():
    x = torch.ones(4 * MIB, device="cuda")
    torch.cuda.empty_cache()
    first, _ = capture(lambda: (x * 2 + 1).sum())
    reserved = torch.cuda.memory_reserved()
    second, _ = capture(lambda: (x * 3 + 1).sum(), pool=first.pool())
    assert torch.cuda.memory_reserved() == reserved
    third, _ = capture(lambda: (x * 3 + 1).sum())
    assert torch.cuda.memory_reserved() > reserved
    del second, third


def test_the_snapshot_has_the_addresses_of_tensors():
    x = tensor(3 * MIB)
    segments = [each for each in torch.cuda.memory_snapshot() if each["segment_pool_id"] == (0, 0)]
    blocks = {block["address"]: block for segment in segments for block in segment["blocks"] if block["size"]}
    assert blocks[x.data_ptr()]["state"] == "active_allocated" and blocks[x.data_ptr()]["size"] == 3 * MIB
    assert sum(each["allocated_size"] for each in torch.cuda.memory_snapshot()) == torch.cuda.memory_allocated()
    assert sum(each["total_size"] for each in torch.cuda.memory_snapshot()) == torch.cuda.memory_reserved()
    address = x.data_ptr()
    del x
    segments = torch.cuda.memory_snapshot()
    states = {block["address"]: block["state"] for segment in segments for block in segment["blocks"]}
    assert states.get(address) != "active_allocated"


def test_memory_that_a_busy_stream_uses_is_not_given_away():
    side = torch.cuda.Stream()
    x = tensor(32 * MIB)
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)  # 0.1 s
    x.record_stream(side)
    del x
    reserved = torch.cuda.memory_reserved()
    other = tensor(32 * MIB)
    assert torch.cuda.memory_reserved() == reserved + 32 * MIB
    side.synchronize()
    more = tensor(32 * MIB)
    assert torch.cuda.memory_reserved() == reserved + 32 * MIB
    del other, more


def test_what_a_graph_reads_and_the_program_has_freed_is_overwritten():
    kept = [torch.ones(4, device="cuda")]
    graph, result = capture(lambda: kept[0] * 2)
    graph.replay()
    assert result.tolist() == [2] * 4
    kept.clear()
    graph.replay()
    assert result.isnan().all()


def test_statistics_have_the_names_of_torch():
    x = tensor(4 * MIB)
    stats = torch.cuda.memory_stats()
    assert stats["allocated_bytes.all.current"] == torch.cuda.memory_allocated()
    assert stats["reserved_bytes.all.peak"] == torch.cuda.max_memory_reserved()
    assert stats["num_ooms"] >= 0
    del x


def test_a_capture_that_fails_keeps_all_memory_until_its_pool_is_ended():
    graph, x = torch.cuda.CUDAGraph(), tensor(64 * MIB)
    with failed_capture(graph):
        with pytest.raises(RuntimeError, match="previous error during capture"), torch.cuda.graph(graph):
            x.sum().item()
        del x
        before = torch.cuda.memory_reserved()
        torch.cuda.empty_cache()
        assert torch.cuda.memory_reserved() == before
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= before - 64 * MIB
