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
from stoker import Accumulator, backward, optim
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


def wrapped(kind):
    model = network()
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if kind == "ddp, bucket views":
        return nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))  # also on a machine that has a GPU
    for layer in (model[0], model[2], model[4]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def gradients_of(rank, size, kind):
    """This rank's share of the batch through a wrapped model, with a gradient of other code in `.grad`."""
    model = wrapped(kind)
    x, y = (each.chunk(size)[rank] for each in samples())
    parameters = list(model.parameters())
    left = torch.zeros_like(parameters[0])
    parameters[0].grad = left
    grads = backward(F.cross_entropy(model(x), y), model)
    assert parameters[0].grad is left and all(p.grad is None for p in parameters[1:])
    norm = grads.norm()
    clipped = grads.clone().clip_norm(0.05).norm()
    part = grads.clone().take("2")
    kept = {name: whole(tensor).clone() for name, tensor in grads.items()}
    backward(F.cross_entropy(model(x * 100), y), model)  # must not write into what we hold
    assert all(torch.equal(whole(grads[name]), kept[name]) for name in kept)
    return kept, norm, clipped, list(part), [whole(tensor) for tensor in part.values()]


@pytest.mark.parametrize(
    "kind", ["ddp", *(pytest.param(kind, marks=pytest.mark.soak) for kind in ("ddp, bucket views", "fsdp2"))]
)
def test_gradients_are_averaged_over_the_processes(kind):
    model, (x, y) = network(), samples()
    expected = backward(F.cross_entropy(model(x), y), model)
    norm = expected.norm()
    for kept, total, clipped, names, part in run(gradients_of, 2, kind):
        assert list(kept) == list(expected)  # the user's own names: no "module."
        for name in kept:
            torch.testing.assert_close(kept[name], expected[name], rtol=0, atol=1e-7)
        torch.testing.assert_close(total, norm)
        torch.testing.assert_close(clipped, torch.tensor(0.05))
        assert names == ["2.weight", "2.bias"]
        torch.testing.assert_close(part[0], expected["2.weight"], rtol=0, atol=1e-7)


def train(rank, size, kind):
    model = wrapped(kind)
    optimizer = optim.init({"4": optim.SGD(momentum=0.9), "*": optim.AdamW()}, model)
    x, y = (each.chunk(size)[rank] for each in samples())
    for _ in range(5):
        accumulator = Accumulator()
        for images, targets in zip(x.split(2), y.split(2), strict=True):
            accumulator.add(backward(F.cross_entropy(model(images), targets), model), weight=len(images))
        optimizer.step(accumulator.take().clip_norm(0.5), lr={"*.bias": 0.05, "*": 0.01})
    outputs_of_view = stoker.valid(model)(x)
    assert not outputs_of_view.requires_grad
    return {name: whole(p.detach()).clone() for name, p in stoker.select(model, "*").items()}, outputs_of_view


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_a_custom_loop_trains_as_in_one_process(kind):
    model, (x, y) = network(), samples()
    optimizer = optim.init({"4": optim.SGD(momentum=0.9), "*": optim.AdamW()}, model)
    for _ in range(5):
        grads = backward(F.cross_entropy(model(x), y), model)
        optimizer.step(grads.clip_norm(0.5), lr={"*.bias": 0.05, "*": 0.01})
    expected = dict(model.named_parameters())
    outputs_of_view = stoker.valid(model)(x).chunk(2)
    for rank, (parameters, outputs) in enumerate(run(train, 2, kind)):
        assert list(parameters) == list(expected)
        for name in expected:
            torch.testing.assert_close(parameters[name], expected[name].detach(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(outputs, outputs_of_view[rank], rtol=1e-4, atol=1e-5)


def corners_of_ddp(rank, size):
    critic = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
    generator = nn.Linear(4, 4)
    grads = backward(critic(generator(torch.ones(2, 4))).mean(), critic)
    assert list(grads) == ["weight", "bias"]
    assert all(p.grad is None for p in generator.parameters()), "another model on the way was written to"

    model = wrapped("ddp")
    x, y = (each.chunk(size)[rank] for each in samples())
    grads = backward(F.cross_entropy(model(x), y), model, wrt="0")
    assert list(grads) == ["0.weight", "0.bias"]
    assert all(p.grad is None for p in model.parameters())

    frozen = network()
    stoker.freeze(frozen, "0")
    model = nn.parallel.DistributedDataParallel(frozen)
    assert "0.weight" not in backward(F.cross_entropy(model(x), y), model)
    return True


@pytest.mark.soak
def test_other_models_parts_and_frozen_parameters_under_ddp():
    assert run(corners_of_ddp) == [True, True]


def ddp_inside(rank, size, kind):
    """DDP where the model that is given is not itself DDP, with the weights of its buckets kept over a second call."""
    views = kind.endswith("views")
    inner = nn.parallel.DistributedDataParallel(network(), gradient_as_bucket_view=views)
    model = torch.compile(inner, backend="eager") if kind.startswith("compiled") else nn.Sequential(inner)
    x, y = (each.chunk(size)[rank] for each in samples())
    grads = backward(F.cross_entropy(model(x), y), model)
    kept = [tensor.clone() for tensor in grads.values()]
    backward(F.cross_entropy(model(x * 100), y), model)
    assert all(map(torch.equal, kept, grads.values())), "gradients that we hold were written to"
    assert all(p.grad is None for p in model.parameters())
    return list(grads), kept


@pytest.mark.soak
@pytest.mark.parametrize(("kind", "prefix"), [("compiled", ""), ("module, views", "0.")])
def test_gradients_of_ddp_inside_another_module_are_averaged(kind, prefix):
    model, (x, y) = network(), samples()
    expected = backward(F.cross_entropy(model(x), y), model)
    for names, kept in run(ddp_inside, 2, kind):
        assert names == [prefix + name for name in expected]
        torch.testing.assert_close(kept, expected.tensors(), rtol=0, atol=1e-7)


def own_share(rank, size):
    model = nn.parallel.DistributedDataParallel(network())
    x, y = (each.chunk(size)[rank] for each in samples())
    return backward(F.cross_entropy(model(x), y), model.module).tensors()


@pytest.mark.soak
def test_the_module_inside_ddp_gives_the_gradients_of_this_process():
    model, (x, y) = network(), samples()
    for rank, tensors in enumerate(run(own_share, 2)):
        expected = backward(F.cross_entropy(model(x.chunk(2)[rank]), y.chunk(2)[rank]), model).tensors()
        torch.testing.assert_close(tensors, expected, rtol=0, atol=1e-7)


def pair():
    """A model of FSDP2, whose outermost module has parameters of its own, and the same model on one process."""
    model, single = network(), network()  # of its last layer three processes have one row each, a fourth has none
    fully_shard(model[0], mesh=init_device_mesh("cpu", (torch.distributed.get_world_size(),)))
    return fully_shard(model, mesh=init_device_mesh("cpu", (torch.distributed.get_world_size(),))), single


def same(grads, expected, tolerance=1e-6):
    assert list(grads) == list(expected)
    for name in expected:
        torch.testing.assert_close(whole(grads[name]), expected[name], rtol=0, atol=tolerance)


def everything_on_shards(rank, size):
    (model, single), (x, y) = pair(), samples()
    parameters = list(model.parameters())

    def both(times=1.0):
        left = backward(F.cross_entropy(model(x * times), y), model)
        return left, backward(F.cross_entropy(single(x * times), y), single)

    grads, expected = both()
    assert grads.parameters() == parameters, "those that an optimizer was made for"
    assert all(each.grad is None for each in model.parameters())
    for kind in (1.0, 2.0, float("inf")):
        torch.testing.assert_close(grads.norm(kind), expected.norm(kind))
    assert bool(grads.all_finite())
    same(grads, expected)
    same(grads.clone().scale(0.5), expected.clone().scale(0.5))
    same(grads.clone().scale(torch.tensor(0.5)), expected.clone().scale(0.5))
    same(grads.clone().clip_norm(0.1), expected.clone().clip_norm(0.1))
    same(grads.clone().clip_norm(0.1, kind=float("inf")), expected.clone().clip_norm(0.1, kind=float("inf")))
    same(grads.clone().clip_value(0.01), expected.clone().clip_value(0.01))
    same(grads.clone().map(lambda name, each: each * 2), expected.clone().map(lambda name, each: each * 2))
    more, further = both(3.0)
    same(grads.clone() + more, expected.clone() + further)
    same(grads.clone().take("4"), expected.clone().take("4"))
    same(grads.to(torch.float64), expected.to(torch.float64))
    assert repr(grads).splitlines()[0] == repr(expected).splitlines()[0]

    for weight in (2.0, torch.tensor(2)):
        ours, theirs = Accumulator(), Accumulator()
        for times in (1.0, 2.0):
            left, right = both(times)
            ours.add(left, weight=weight * times)
            theirs.add(right, weight=weight * times)
        saved, alone = ours.state_dict(), theirs.state_dict()
        other, another = Accumulator(), Accumulator()
        other.load_state_dict(saved, model)
        another.load_state_dict(alone, model)  # whole sums, into what is sharded
        mean = theirs.take()
        same(ours.take(), mean)
        same(other.take(), mean)
        same(another.take(), mean)

    with torch.no_grad():
        for name, each in grads.items():
            if name == "4.weight" and each.to_local().numel() and rank == 0:
                each.to_local()[0, 0] = float("nan")  # of one process alone
    assert not grads.all_finite()
    assert all(grads.norm(kind).isnan() for kind in (1.0, 2.0, float("inf")))
    return True


def test_all_methods_of_gradients_and_accumulators_work_on_shards():
    assert run(everything_on_shards, 3) == [True] * 3


def with_something_in_grad(rank, size):
    """The outermost module's parameters are whole between forward and backward: `.grad` is the sharded ones'."""
    (model, _), (x, y) = pair(), samples()
    parameters = list(model.parameters())
    loss = F.cross_entropy(model(x), y)
    for each in parameters:
        each.grad = torch.ones_like(each)
    left = [each.grad for each in parameters]
    grads = backward(loss, model)
    assert all(each.grad is own for each, own in zip(parameters, left, strict=True))
    assert all(bool((each.to_local() == 1).all()) for each in left)
    return grads.norm().item()


@pytest.mark.soak
def test_what_is_in_grad_of_a_sharded_model_stays():
    model, (x, y) = network(), samples()
    expected = backward(F.cross_entropy(model(x), y), model).norm().item()
    for norm in run(with_something_in_grad, 2):
        assert abs(norm - expected) < 1e-6


# --- views


def noisy_model():
    torch.manual_seed(0)
    return nn.Sequential(noisy(), noisy())


def update_twice(wrapped, view):
    """The parameters after two updates, with calls of the view in between, if there is one."""
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


def shard(mesh):
    made = noisy_model()
    fully_shard(made[0], mesh=mesh)
    return fully_shard(made, mesh=mesh)


def use_views(rank, size):
    expected = copy.deepcopy(noisy_model()).eval()(BATCH)
    replicated = nn.parallel.DistributedDataParallel(noisy_model())
    view = stoker.valid(replicated)
    if rank == 0:  # alone: no collective may be waiting for the other process
        assert torch.equal(view(BATCH), expected)
    assert replicated.training
    both = update_twice(nn.parallel.DistributedDataParallel(noisy_model()), None), update_twice(replicated, view)
    assert all(torch.equal(a, b) for a, b in zip(*both, strict=True))

    mesh = init_device_mesh("cpu", (2,))
    part = shard(mesh)
    assert torch.allclose(stoker.valid(part)(BATCH), expected, atol=1e-6)
    assert all(module.training for module in part.modules())
    assert all(hasattr(parameter, "full_tensor") for parameter in part.parameters())  # shards, as before
    both = update_twice(shard(mesh), None), update_twice(part, stoker.valid(part))
    assert all(torch.equal(a, b) for a, b in zip(*both, strict=True))
    return True


def test_views_of_ddp_and_fsdp_models_change_nothing():
    assert run(use_views) == [True, True]
