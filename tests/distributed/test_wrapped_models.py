"""`backward` and `valid` for models under DDP and FSDP2: the same as in one process, and nothing left in `.grad`."""

import copy

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import stoker
from stoker import Accumulator, backward
from tests.steps.architectures import BATCH, noisy

from .processes import run


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


def samples():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(12, 4, generator=generator), torch.randint(0, 3, (12,), generator=generator)


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def shard(model, layers):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))  # also on a machine that has a GPU
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def wrap(kind):
    model = network()
    if kind == "fsdp2":
        return shard(model, [model[0], model[2], model[4]])
    model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=kind.endswith("views"))
    if kind.startswith("compiled"):
        return torch.compile(model, backend="eager")
    return nn.Sequential(model) if kind.startswith("inside") else model


# The names of the gradients have this prefix: DDP itself adds none.
KINDS = {"ddp": "", "ddp, bucket views": "", "compiled ddp": "", "inside a module, bucket views": "0.", "fsdp2": ""}


def gradients_of(rank, size):
    """This rank's share of the batch through each wrapped model, with a gradient of other code in `.grad`."""
    x, y = (tensor.chunk(size)[rank] for tensor in samples())
    results = {}
    for kind, prefix in KINDS.items():
        model = wrap(kind)
        parameters = list(model.parameters())
        loss = F.cross_entropy(model(x), y)
        parameters[0].grad = other = torch.ones_like(parameters[0])
        grads = backward(loss, model)
        assert parameters[0].grad is other and bool((whole(other) == 1).all())
        assert all(parameter.grad is None for parameter in parameters[1:])
        kept = {name: whole(tensor).clone() for name, tensor in grads.items()}
        part = backward(F.cross_entropy(model(x * 100), y), model, wrt=f"{prefix}2")  # must not write into `grads`
        assert list(part) == [f"{prefix}2.weight", f"{prefix}2.bias"]
        assert all(torch.equal(whole(grads[name]), kept[name]) for name in kept)
        results[kind] = kept, grads.norm(), grads.clip_norm(0.05).norm()
    return results


def test_gradients_are_averaged_over_the_processes():
    model, (x, y) = network(), samples()
    expected = backward(F.cross_entropy(model(x), y), model)
    for results in run(gradients_of, 2):
        for kind, (grads, norm, clipped) in results.items():
            torch.testing.assert_close(
                grads, {KINDS[kind] + name: tensor for name, tensor in expected.items()}, rtol=0, atol=1e-7
            )
            torch.testing.assert_close(norm, expected.norm())
            torch.testing.assert_close(clipped, torch.tensor(0.05))


def use_parts_of_ddp(rank, size):
    critic, generator = nn.parallel.DistributedDataParallel(nn.Linear(4, 1)), nn.Linear(4, 4)
    grads = backward(critic(generator(torch.ones(2, 4))).mean(), critic)
    assert list(grads) == ["weight", "bias"]
    assert all(p.grad is None for p in generator.parameters()), "another model on the way was written to"

    x, y = (tensor.chunk(size)[rank] for tensor in samples())
    model = nn.parallel.DistributedDataParallel(stoker.freeze(network(), "0"))
    assert "0.weight" not in backward(F.cross_entropy(model(x), y), model)
    own = backward(F.cross_entropy(model(x), y), model.module)  # the module inside: gradients of this process
    alone = stoker.freeze(network(), "0")
    torch.testing.assert_close(own.tensors(), backward(F.cross_entropy(alone(x), y), alone).tensors())
    return True


@pytest.mark.soak
def test_other_models_frozen_parameters_and_the_module_inside_ddp():
    assert run(use_parts_of_ddp) == [True, True]


def same(grads, expected):
    assert list(grads) == list(expected)
    for name in expected:
        torch.testing.assert_close(whole(grads[name]), expected[name], rtol=0, atol=1e-6)


def use_shards(rank, size):
    """The outermost module has parameters of its own; of its last layer a rank may have no row."""
    model, single, (x, y) = network(), network(), samples()
    shard(model, [model[0]])
    parameters = list(model.parameters())

    def both(factor=1.0):
        ours = backward(F.cross_entropy(model(x * factor), y), model)
        return ours, backward(F.cross_entropy(single(x * factor), y), single)

    grads, expected = both()
    assert grads.parameters() == parameters, "those that an optimizer was made for"
    for kind in (1.0, 2.0, float("inf")):
        torch.testing.assert_close(grads.norm(kind), expected.norm(kind))
    assert bool(grads.all_finite())
    more, more_expected = both(3.0)
    for change in (
        lambda each, _: each,
        lambda each, _: each.scale(0.5),
        lambda each, _: each.scale(torch.tensor(0.5)),
        lambda each, _: each.clip_norm(0.1),
        lambda each, _: each.clip_norm(0.1, kind=float("inf")),
        lambda each, _: each.clip_value(0.01),
        lambda each, _: each.map(lambda name, tensor: tensor * 2),
        lambda each, other: each + other.clone(),
        lambda each, _: each.take("4"),
        lambda each, _: each.to(torch.float64),
    ):
        same(change(grads.clone(), more), change(expected.clone(), more_expected))

    for weight in (2.0, torch.tensor(2)):
        ours, theirs = Accumulator(), Accumulator()
        for factor in (1.0, 2.0):
            left, right = both(factor)
            ours.add(left, weight=weight * factor)
            theirs.add(right, weight=weight * factor)
        restored, from_whole = Accumulator(), Accumulator()
        restored.load_state_dict(ours.state_dict(), model)
        from_whole.load_state_dict(theirs.state_dict(), model)  # whole sums, into what is sharded
        mean = theirs.take()
        for accumulator in (ours, restored, from_whole):
            same(accumulator.take(), mean)

    if rank == 0:
        with torch.no_grad():
            grads["4.weight"].to_local()[0, 0] = float("nan")  # of one process alone
    assert not grads.all_finite()
    assert all(grads.norm(kind).isnan() for kind in (1.0, 2.0, float("inf")))
    return True


def test_all_methods_of_gradients_and_accumulators_work_on_shards():
    assert run(use_shards, 3) == [True] * 3


# --- views


def noisy_model():
    torch.manual_seed(0)
    return nn.Sequential(noisy(), noisy())


def update_twice(model, view):
    """The parameters after two updates, with calls of the view in between, if there is one."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    for _ in range(2):
        loss = model(BATCH).square().mean()
        if view is not None:
            view(BATCH)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return [whole(parameter.detach()) for parameter in model.parameters()]


def shard_noisy():
    model = noisy_model()
    return shard(model, [model[0]])


def use_views(rank, size):
    expected = copy.deepcopy(noisy_model()).eval()(BATCH)
    replicated = nn.parallel.DistributedDataParallel(noisy_model())
    if rank == 0:  # alone: no collective may be waiting for the other process
        assert torch.equal(stoker.valid(replicated)(BATCH), expected)
        assert all(module.training for module in replicated.modules())
    plain = nn.parallel.DistributedDataParallel(noisy_model())
    assert all(map(torch.equal, update_twice(replicated, stoker.valid(replicated)), update_twice(plain, None)))
    with pytest.raises(stoker.InvalidArgument, match=r"FSDP does not support deepcopy.*; call model.eval\(\), compute"):
        stoker.valid(shard_noisy())
    return True


def test_a_view_of_a_ddp_model_changes_nothing_and_a_sharded_model_has_none():
    assert run(use_views) == [True, True]
