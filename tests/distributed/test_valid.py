"""Views of DDP and FSDP2 models, in two real processes."""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from stoker.steps import valid
from tests.distributed.processes import run
from tests.steps.architectures import BATCH, noisy


def model():
    torch.manual_seed(0)
    return nn.Sequential(noisy(), noisy())


def updated(wrapped, view):
    """Two updates, with validation around where there is a view; the parameters as they are afterwards."""
    if view is not None:
        view(BATCH)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    for _ in range(2):
        loss = wrapped(BATCH).square().mean()
        if view is not None:
            view(BATCH)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.full_tensor() if hasattr(p, "full_tensor") else p.detach() for p in wrapped.parameters()]


def sharded(mesh):
    made = model()
    fully_shard(made[0], mesh=mesh)
    return fully_shard(made, mesh=mesh)


def worker(rank, size):
    expected = copy.deepcopy(model()).eval()(BATCH)
    replicated = nn.parallel.DistributedDataParallel(model())
    view = valid(replicated)
    if rank == 0:  # alone: no collective may be waiting for the other process
        assert torch.equal(view(BATCH), expected)
    assert replicated.training
    both = updated(nn.parallel.DistributedDataParallel(model()), None), updated(replicated, view)
    assert all(torch.equal(a, b) for a, b in zip(*both, strict=True))

    mesh = init_device_mesh("cpu", (2,))
    part = sharded(mesh)
    assert torch.allclose(valid(part)(BATCH), expected, atol=1e-6)
    assert all(module.training for module in part.modules())
    assert all(hasattr(parameter, "full_tensor") for parameter in part.parameters())  # shards, as before
    both = updated(sharded(mesh), None), updated(part, valid(part))
    assert all(torch.equal(a, b) for a, b in zip(*both, strict=True))
    return True


def test_views_of_ddp_and_fsdp_models():
    assert run(worker) == [True, True]
