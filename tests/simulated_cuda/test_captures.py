"""CUDA graphs: a capture records and runs nothing, a replay repeats the operations on the same memory."""

import pytest
import torch
from torch import nn

from tests.simulated_cuda.helpers import capture, control, failed_capture

pytestmark = [pytest.mark.cuda, pytest.mark.simulated]
NAN = float("nan")


def test_a_capture_records_operations_and_does_not_run_them():
    x = torch.ones(4, device="cuda")

    def program():
        x.add_(1)
        return x * 2

    graph, result = capture(program)
    assert x.tolist() == [1] * 4
    assert control().operations_of(graph) == ["aten::add_.Tensor", "aten::mul.Tensor"]
    graph.replay()
    assert x.tolist() == [2] * 4 and result.tolist() == [4] * 4


def test_what_a_capture_has_computed_is_overwritten_until_the_first_replay():
    x = torch.ones(4, device="cuda")
    graph, result = capture(lambda: x * 2)
    assert result.isnan().all()
    graph.replay()
    assert result.tolist() == [2] * 4


def test_a_replay_reads_new_values_from_the_same_memory():
    x = torch.ones(4, device="cuda")
    graph, result = capture(lambda: x.exp().sum())
    for value in (0.0, 1.0):
        x.fill_(value)
        graph.replay()
        assert result.item() == torch.full((4,), value).exp().sum().item()


def test_a_replay_gives_the_bits_of_eager_steps():
    def trained(steps, captured):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 4)).cuda()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1, capturable=True, foreach=True)
        x, y = torch.randn(32, 8, device="cuda"), torch.randint(0, 4, (32,), device="cuda")

        def step():
            optimizer.zero_grad(set_to_none=False)
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()

        step()
        repeat = capture(step)[0].replay if captured else step
        for _ in range(steps):
            repeat()
        return model.state_dict()

    eager, replayed = trained(5, False), trained(5, True)
    assert all(torch.equal(eager[name], replayed[name]) for name in eager)
    assert not all(torch.equal(each, replayed[name]) for name, each in trained(4, False).items())


def test_a_replay_does_not_see_a_parameter_that_was_replaced():
    model = nn.Linear(2, 2, bias=False).cuda()
    x = torch.ones(1, 2, device="cuda")
    graph, result = capture(lambda: model(x).detach())
    with torch.no_grad():
        model.weight.fill_(3)  # the same memory
        graph.replay()
        assert result.tolist() == [[6, 6]]
        model.weight = nn.Parameter(torch.full((2, 2), 5.0, device="cuda"))
        graph.replay()
        assert result.tolist() != [[10, 10]]


def test_a_replay_overwrites_other_memory_of_its_pool():
    pool = torch.cuda.graph_pool_handle()
    x = torch.ones(4, device="cuda")
    torch._C._cuda_beginAllocateCurrentThreadToPool(0, pool)
    inside = torch.ones(4, device="cuda")
    torch._C._cuda_endAllocateToPool(0, pool)
    outside = torch.ones(4, device="cuda")
    graph, _ = capture(lambda: x * 2, pool=pool)
    graph.replay()
    assert inside.isnan().all() and outside.tolist() == [1] * 4
    del graph
    torch._C._cuda_releasePool(0, pool)


def test_graphs_of_one_pool_pass_values_to_each_other():
    x = torch.ones(4, device="cuda")
    first, middle = capture(lambda: x * 2)
    second, result = capture(lambda: middle + 1, pool=first.pool())
    first.replay()
    second.replay()
    assert result.tolist() == [3] * 4


def test_a_copy_to_pinned_memory_is_recorded():
    x, host = torch.ones(4, device="cuda"), torch.zeros(4).pin_memory()
    graph, _ = capture(lambda: host.copy_(x, non_blocking=True))
    torch.cuda.synchronize()
    assert host.tolist() == [0] * 4
    x.fill_(7)
    graph.replay()
    torch.cuda.synchronize()
    assert host.tolist() == [7] * 4


def test_a_copy_from_pinned_memory_reads_it_at_every_replay():
    host, x = torch.zeros(4).pin_memory(), torch.ones(4, device="cuda")
    graph, _ = capture(lambda: x.copy_(host, non_blocking=True))
    host.fill_(5)
    graph.replay()
    assert x.tolist() == [5] * 4


def test_numbers_of_the_host_are_recorded_as_they_are():
    scale, x = torch.tensor(2.0), torch.ones(4, device="cuda")
    graph, result = capture(lambda: x * scale)
    graph.replay()
    assert result.tolist() == [2] * 4


def index(x):
    return x[torch.tensor([0, 1])]


FORBIDDEN = {
    "item": lambda x: x.sum().item(),
    "branch": lambda x: bool(x.sum() > 0),
    "to the host": lambda x: x.cpu(),
    "from the host": lambda x: x.copy_(torch.zeros(4)),
    "tensor from a list": lambda x: torch.tensor([1.0, 2.0], device="cuda"),
    "mask": lambda x: x[x > 0],
    "nonzero": lambda x: x.nonzero(),
    "indices on the host": index,
    "synchronize": lambda x: torch.cuda.synchronize(),
    "synchronize the stream": lambda x: torch.cuda.current_stream().synchronize(),
    "state of the generator": lambda x: torch.cuda.get_rng_state(),
    "another stream": lambda x: torch.cuda.current_stream().wait_stream(torch.cuda.default_stream()),
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_what_needs_the_host_raises_in_a_capture_and_makes_it_invalid(name):
    x = torch.ones(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    invalid = pytest.raises(RuntimeError, match="CUDA error: operation failed due to a previous error during capture")
    refused = pytest.raises(RuntimeError, match="CUDA error: operation not permitted when stream is capturing")
    with failed_capture(graph), invalid, torch.cuda.graph(graph), refused:
        FORBIDDEN[name](x)
    with pytest.raises(RuntimeError, match="CUDA error"):
        graph.replay()
    FORBIDDEN[name](x)  # outside of a capture it is right
    x = torch.ones(4, device="cuda")
    graph, result = capture(lambda: x + 1)  # and the next capture is not disturbed
    graph.replay()
    assert result.tolist() == [2] * 4


def test_masks_that_keep_the_shape_are_captured():
    x = torch.tensor([1.0, -1.0], device="cuda")
    graph, result = capture(lambda: torch.where(x > 0, x, 0 * x).masked_fill(x < 0, 9))
    graph.replay()
    assert result.tolist() == [1, 9]


def test_one_capture_at_a_time_and_not_on_the_default_stream():
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="non-default stream"):
        graph.capture_begin()
    with torch.cuda.graph(graph), pytest.raises(RuntimeError, match="under way"):
        torch.cuda.CUDAGraph().capture_begin()


def test_a_graph_that_is_deleted_is_released():
    before = control().live_graphs()
    graph, _ = capture(lambda: torch.ones(4, device="cuda"))
    assert control().live_graphs() == before + 1
    del graph
    assert control().live_graphs() == before
