"""`schedule.torch`: torch's own schedulers, bit for bit, as functions of the update number."""

import pickle
import random
import warnings
from functools import partial

import pytest
import torch
from torch.optim import lr_scheduler
from torch.optim.swa_utils import SWALR

from stoker import schedule
from stoker.errors import ConfigError, InvalidArgument, WrongType

STEPS = 60
LR = 0.3


def rise(optimizer):
    return lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=7)


def warm_cosine(optimizer, updates):
    return lr_scheduler.SequentialLR(
        optimizer, [rise(optimizer), lr_scheduler.CosineAnnealingLR(optimizer, updates)], milestones=[7]
    )


def chained(optimizer):
    return lr_scheduler.ChainedScheduler([rise(optimizer), lr_scheduler.ExponentialLR(optimizer, 0.97)], optimizer)


SCHEDULERS = {
    "LambdaLR": (lr_scheduler.LambdaLR, {"lr_lambda": lambda step: 0.95**step}),
    "MultiplicativeLR": (lr_scheduler.MultiplicativeLR, {"lr_lambda": lambda step: 0.9 if step % 2 else 1.01}),
    "StepLR": (lr_scheduler.StepLR, {"step_size": 9}),
    "MultiStepLR": (lr_scheduler.MultiStepLR, {"milestones": [5, 30], "gamma": 0.3}),
    "ConstantLR": (lr_scheduler.ConstantLR, {"factor": 0.4, "total_iters": 20}),
    "LinearLR": (lr_scheduler.LinearLR, {"start_factor": 0.2, "total_iters": 40}),
    "ExponentialLR": (lr_scheduler.ExponentialLR, {"gamma": 0.93}),
    "PolynomialLR": (lr_scheduler.PolynomialLR, {"total_iters": 50, "power": 1.7}),
    "CosineAnnealingLR": (lr_scheduler.CosineAnnealingLR, {"T_max": 40, "eta_min": 0.01}),
    "CosineAnnealingWarmRestarts": (lr_scheduler.CosineAnnealingWarmRestarts, {"T_0": 6, "T_mult": 2}),
    "CyclicLR": (
        lr_scheduler.CyclicLR,
        {"base_lr": 0.01, "max_lr": 0.2, "step_size_up": 8, "mode": "triangular2", "cycle_momentum": False},
    ),
    "OneCycleLR": (lr_scheduler.OneCycleLR, {"max_lr": 0.5, "total_steps": STEPS, "cycle_momentum": False}),
    "SequentialLR": (warm_cosine, {"updates": 50}),
    "ChainedScheduler": (chained, {}),
    "SWALR": (SWALR, {"swa_lr": 0.05}),
    "a partial": (partial(lr_scheduler.StepLR, step_size=4), {"gamma": 0.7}),
}


def torch_rates(make, steps=STEPS):
    """What a plain loop gets that calls `scheduler.step()` after every step of its optimizer."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=LR)
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scheduler = make(optimizer)
        for _ in range(steps):
            found.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
    return found


def test_every_scheduler_of_torch_is_here():
    bases = {"LRScheduler", "ReduceLROnPlateau"}
    assert set(lr_scheduler.__all__) - bases <= set(SCHEDULERS)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_the_rates_are_those_of_torch_bit_for_bit_in_any_order(name):
    make, arguments = SCHEDULERS[name]
    expected = torch_rates(partial(make, **arguments))
    rates = schedule.torch(make, LR, **arguments)
    order = list(range(STEPS))
    random.Random(0).shuffle(order)
    assert {update: rates(update) for update in order} == dict(enumerate(expected))
    by_epoch = schedule.torch(make, LR, every="epoch", **arguments).with_updates(per_epoch=7)
    assert [by_epoch(update) for update in range(200)] == [expected[update // 7] for update in range(200)]


def test_it_combines_with_other_schedules_and_is_pickled_but_not_saved():
    rates = schedule.torch(lr_scheduler.StepLR, LR, step_size=3)
    both = (0.5 * rates).then(schedule.constant(0.01), at=4)
    assert [both(update) for update in (0, 3, 4)] == [0.15, 0.5 * (LR * 0.1), 0.01]
    assert pickle.loads(pickle.dumps(rates))(5) == rates(5)
    with pytest.raises(ConfigError, match="curve.make: a function can't be saved"):
        rates.to_dict()
    assert repr(rates) == "schedule.torch(StepLR, 0.3, step_size=3)"


def test_a_scheduler_that_sets_its_own_rate_needs_none():
    one_cycle = partial(schedule.torch, lr_scheduler.OneCycleLR, max_lr=0.5, total_steps=10, cycle_momentum=False)
    assert [one_cycle()(update) for update in range(10)] == [one_cycle(0.7)(update) for update in range(10)]
    with pytest.raises(InvalidArgument, match=r"OneCycleLR has no learning rate after 11 steps: Tried to step 11"):
        one_cycle()(11)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (partial(schedule.torch, lr_scheduler.StepLR, step_size=3), InvalidArgument, r"schedule.torch\(StepLR, lr=0.1"),
        (
            partial(schedule.torch, lr_scheduler.OneCycleLR, max_lr=1.0, total_steps=9),
            InvalidArgument,
            "OneCycleLR also changes the momentum.*cycle_momentum=False",
        ),
        (
            partial(schedule.torch, lr_scheduler.CyclicLR, base_lr=0.1, max_lr=1.0),
            InvalidArgument,
            "CyclicLR also changes the momentum",
        ),
        (
            partial(schedule.torch, lr_scheduler.ReduceLROnPlateau, 0.1),
            InvalidArgument,
            r"callbacks=\[callbacks.ReduceLROnPlateau",
        ),
        (partial(schedule.torch, lambda optimizer: None, 0.1), WrongType, "a function that takes an optimizer and"),
        (partial(schedule.as_schedule, lr_scheduler.StepLR), WrongType, r"write lr=schedule.torch\(StepLR, lr="),
        (
            partial(schedule.as_schedule, partial(lr_scheduler.StepLR, step_size=3)),
            WrongType,
            "write lr=schedule.torch",
        ),
        (partial(schedule.as_schedule, lr_scheduler.ReduceLROnPlateau), WrongType, "callbacks.ReduceLROnPlateau"),
    ],
)
def test_what_is_not_a_schedule_is_an_error_that_says_what_to_write(make, error, text):
    with pytest.raises(error, match=text):
        make()


def test_without_the_length_of_an_epoch_it_cannot_be_called():
    rates = schedule.torch(lr_scheduler.StepLR, LR, step_size=3, every="epoch")
    assert rates.needs_length and rates.with_updates(100).needs_length
    with pytest.raises(InvalidArgument, match=r"lr = lr.with_updates\(1000, per_epoch=100\)"):
        rates(0)
