"""Optimizers step on a sharded model as in one process, and their state moves between the two."""

import pytest
import torch
from torch import nn

from stoker import Gradients, optim

from .processes import run

ALGORITHMS = ["Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Adagrad", "Adadelta", "Adafactor", "SGD", "ASGD"]
CONFIGS = {
    **{
        f"{name}, foreach={foreach}": getattr(optim, name)(foreach=foreach)
        for name in ALGORITHMS
        for foreach in (False, True)
    },
    **{f"{name}, fused": getattr(optim, name)(fused=True) for name in ("Adam", "AdamW", "Adagrad", "SGD")},
    "Adam with all states": optim.Adam(amsgrad=True, weight_decay=0.1),
    "RMSprop with all states": optim.RMSprop(momentum=0.9, centered=True),
    "AdamW": optim.AdamW(),
    "SGD": optim.SGD(momentum=0.9, nesterov=True),
    "Adafactor": optim.Adafactor(),
    "Rprop": optim.Rprop(),
    "Muon": {"*.bias": optim.AdamW(), "*": optim.Muon()},
    "wrap": optim.wrap(torch.optim.AdamW),
    "groups": {"4": optim.SGD(momentum=0.9), "*": optim.AdamW()},
}
RATE = 0.01


def network():
    """With three processes, the last one has no row of the last layer and fewer of the others."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 2))


def sharded():
    model = network()
    for layer in (model[0], model[2], model[4]):
        for name, each in list(layer.named_parameters()):
            layer.register_parameter(name, nn.Parameter(shard(each.detach())))
    return model


def shard(tensor):
    """A tensor sharded over all processes as by FSDP2."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    return distribute_tensor(tensor, mesh, [Shard(0)], src_data_rank=None)


def gradients(model, update, place=lambda tensor: tensor):
    """Random gradients, the same for a sharded model and a whole one."""
    generator = torch.Generator().manual_seed(update)
    shapes = {name: each.shape for name, each in model.named_parameters()}
    return Gradients({name: place(torch.randn(shape, generator=generator)) for name, shape in shapes.items()}, model)


def stepped(model, optimizer, updates):
    place = shard if hasattr(model[0].weight, "to_local") else lambda tensor: tensor
    for update in updates:
        optimizer.step(gradients(model, update, place).clip_norm(1.0), lr={"*.bias": 2 * RATE, "*": RATE})


def whole(tree):
    if isinstance(tree, dict):
        return {name: whole(each) for name, each in tree.items()}
    if isinstance(tree, list):
        return [whole(each) for each in tree]
    return tree.full_tensor() if hasattr(tree, "full_tensor") else tree


def compare(model, other):
    for name, parameter in other.named_parameters():
        torch.testing.assert_close(whole(model.get_parameter(name).detach()), parameter.detach(), rtol=0, atol=1e-5)


def compare_with_one_process(recipe):
    """Steps as in one process, also after moving the state to one process and back."""
    model, single = sharded(), network()
    optimizer, alone = optim.init(recipe, model), optim.init(recipe, single)
    stepped(model, optimizer, range(2))
    stepped(single, alone, range(2))
    compare(model, single)
    again, fresh = optim.init(recipe, model), optim.init(recipe, single)
    fresh.load_state_dict(whole(optimizer.state_dict()))
    again.load_state_dict(optimizer.state_dict())
    stepped(model, again, [2])
    stepped(single, fresh, [2])
    again.load_state_dict(fresh.state_dict())  # whole ones, into what is sharded
    stepped(model, again, [3])
    stepped(single, fresh, [3])
    compare(model, single)


def check_steps_decided_by_the_device(recipe):
    """With `when=True` a step is an ordinary one; with `when=False` nothing changes, including missing state."""
    model, other = sharded(), network()
    conditional, plain = optim.init(recipe, model), optim.init(recipe, other)
    for update, when in enumerate([False, True, True, False, True]):
        conditional.step(gradients(model, update, shard), lr=RATE, when=torch.tensor(when))
        if when:
            plain.step(gradients(other, update), lr=RATE)
        compare(model, other)


def step_each(rank, size, names):
    """Compares each of the algorithms with one process."""
    for name in names:
        try:
            compare_with_one_process(CONFIGS[name])
        except Exception as error:
            error.add_note(f"with {name}")
            raise
    for recipe in (optim.AdamW(), optim.SGD(momentum=0.9), optim.Adafactor()):
        check_steps_decided_by_the_device(recipe)
    return True


FAST = ["AdamW", "SGD", "Adafactor"]


@pytest.mark.parametrize("names", [FAST, pytest.param(list(CONFIGS), marks=pytest.mark.soak)], ids=["some", "all"])
def test_a_sharded_step_is_that_of_one_process(names):
    assert run(step_each, 3, names) == [True] * 3
