"""Operations give the bits of torch's CPU kernels, also those that have a kernel of their own on a GPU."""

import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.simulated_cuda.helpers import capture, failed_capture

pytestmark = [pytest.mark.cuda, pytest.mark.simulated]


def gradients(model, *inputs):
    """What a model computes, with the gradients of its inputs and parameters."""
    inputs = [each.detach().clone().requires_grad_(each.is_floating_point()) for each in inputs]
    output = model(*inputs)
    while isinstance(output, tuple):
        output = output[0]
    output.float().square().mean().backward()
    model.zero_grad if isinstance(model, nn.Module) else None
    found = [output, *(each.grad for each in inputs if each.grad is not None)]
    return found + [each.grad for each in getattr(model, "parameters", list)()]


def both(make, *inputs):
    torch.manual_seed(0)
    model = make()
    on_host = [each.clone() for each in gradients(model, *inputs)]
    for parameter in getattr(model, "parameters", list)():
        parameter.grad = None
    model = model.to("cuda") if isinstance(model, nn.Module) else model
    on_device = gradients(model, *(each.to("cuda") for each in inputs))
    assert all(each.device.type == "cuda" for each in on_device)
    return on_host, [each.cpu() for each in on_device]


def x(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


MODELS = {
    "linear": (lambda: nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)), x(4, 5)),
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        x(2, 3, 9, 9),
    ),
    "norms": (lambda: nn.Sequential(nn.LayerNorm(6), nn.RMSNorm(6), nn.GroupNorm(2, 6)), x(4, 6)),
    "products": (lambda: lambda a: torch.einsum("bij,bkj->bik", a, a).softmax(-1) @ a, x(2, 3, 4)),
    "embedding": (
        lambda: nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 2)),
        torch.randint(0, 9, (5, 3)),
    ),
}
CLOSE = {
    "lstm": (lambda: nn.LSTM(4, 6, num_layers=2, bidirectional=True, batch_first=True), x(3, 5, 4)),
    "gru": (lambda: nn.GRU(4, 6, num_layers=2, batch_first=True), x(3, 5, 4)),
    "gru without bias": (lambda: nn.GRU(4, 6, bias=False), x(5, 3, 4)),
    "lstm cell": (lambda: nn.LSTMCell(4, 6), x(3, 4)),
    "gru cell": (lambda: nn.GRUCell(4, 6), x(3, 4)),
    "plain recurrent": (lambda: nn.RNN(4, 6), x(5, 3, 4)),
    "attention": (lambda: lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), x(2, 2, 5, 4)),
}


@pytest.mark.parametrize("name", MODELS)
def test_results_and_gradients_have_the_bits_of_the_host(name):
    for expected, found in zip(*both(*MODELS[name]), strict=True):
        assert torch.equal(expected, found)


@pytest.mark.parametrize("name", CLOSE)
def test_fused_operations_are_close_to_the_host(name):
    for expected, found in zip(*both(*CLOSE[name]), strict=True):
        torch.testing.assert_close(expected, found, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_fused_optimizers_have_the_bits_of_the_host(optimizer):
    def updated(device):
        weight = nn.Parameter(x(5, 3).to(device))
        update = optimizer([weight], lr=0.1, fused=True)
        for _ in range(3):
            weight.grad = weight.detach() * 2
            update.step()
        return weight.detach().cpu()

    assert torch.equal(updated("cuda"), updated("cpu"))


def test_autocast_computes_products_in_16_bits():
    layer, value = nn.Linear(4, 4).cuda(), x(2, 4).cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert layer(value).dtype == torch.bfloat16
    assert layer(value).dtype == torch.float32


def test_tensors_of_host_and_device_do_not_mix():
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.ones(4, device="cuda") + torch.ones(4)
    assert (torch.ones(4, device="cuda") + torch.tensor(1.0)).tolist() == [2] * 4  # a number may be on the host


def test_views_share_memory_and_in_place_operations_write_to_it():
    base = torch.zeros(3, 4, device="cuda")
    base.T[1].add_(2)
    base[2:].mul_(3)
    base.view(-1)[0] = 7
    assert base.tolist() == [[7, 2, 0, 0], [0, 2, 0, 0], [0, 6, 0, 0]]
    assert base[1].data_ptr() == base.data_ptr() + 16


def test_tensors_can_be_resized_copied_saved_and_printed(tmp_path):
    value = torch.arange(4.0, device="cuda")
    value.resize_(8)[4:] = 1
    torch.save(value, tmp_path / "value")
    for copy in (torch.load(tmp_path / "value"), pickle.loads(pickle.dumps(value)), value.clone()):
        assert copy.device == value.device and copy.tolist() == [0, 1, 2, 3, 1, 1, 1, 1]
    assert "device='cuda:0'" in repr(value)


def test_sparse_tensors_move_to_the_device_and_back():
    value = torch.eye(3).to_sparse()
    there = value.to("cuda")
    assert there.is_sparse and there.device.type == "cuda" and there.is_coalesced()
    assert torch.equal(there.to_dense(), torch.eye(3, device="cuda"))
    assert torch.equal(there.cpu().to_dense(), torch.eye(3))
    assert torch.equal(torch.sparse.mm(there, 2 * torch.ones(3, 3, device="cuda")).cpu(), torch.full((3, 3), 2.0))
    assert torch.equal((there + there).coalesce().values().cpu(), torch.full((3,), 2.0))
    assert torch.equal(torch.ones(2, 2, device="cuda").to_sparse().indices().cpu(), torch.ones(2, 2).nonzero().T)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.SparseAdam])
def test_sparse_gradients_train_an_embedding(optimizer):
    def trained(device):
        torch.manual_seed(0)
        table = nn.Embedding(10, 4, sparse=True).to(device)
        update = optimizer(table.parameters(), lr=0.1)
        for _ in range(3):
            update.zero_grad()
            table(torch.tensor([1, 3, 3], device=device)).square().sum().backward()
            assert table.weight.grad.is_sparse and table.weight.grad.device.type == device
            update.step()
        return table.weight.detach().cpu()

    torch.testing.assert_close(trained("cuda"), trained("cpu"))


def test_coalescing_in_a_capture_raises():
    indices, values = torch.zeros(1, 2, dtype=torch.int64, device="cuda"), torch.ones(2, device="cuda")
    graph = torch.cuda.CUDAGraph()
    invalid = pytest.raises(RuntimeError, match="previous error during capture")
    refused = pytest.raises(RuntimeError, match="not permitted when stream is capturing")
    with failed_capture(graph), invalid, torch.cuda.graph(graph), refused:
        torch.sparse_coo_tensor(indices, values, (3,), check_invariants=False).coalesce()


def test_batch_norm_updates_its_statistics_once_for_each_replay():
    norm, host = nn.BatchNorm1d(3).cuda(), nn.BatchNorm1d(3)
    value = x(8, 3)
    there = value.cuda()
    graph, _ = capture(lambda: norm(there))
    assert torch.equal(norm.running_mean.cpu(), torch.zeros(3)) and norm.num_batches_tracked.item() == 0
    for _ in range(2):
        graph.replay()
        host(value)
    assert torch.equal(norm.running_mean.cpu(), host.running_mean) and norm.num_batches_tracked.item() == 2
