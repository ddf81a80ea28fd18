"""Optimizers and learning rates that a random program chooses from, by name."""

import torch
from torch.optim import lr_scheduler

from stoker import optim, schedule


def _every_form(make, **settings):
    """An algorithm in all forms that torch has: its choice, a loop, foreach, fused, and with counters on the device."""
    name = f"{make.__name__}({', '.join(f'{key}={value}' for key, value in settings.items())})"
    forms = {"": {}, "loop": {"foreach": False}, "foreach": {"foreach": True}}
    fields = make.__dataclass_fields__
    if "fused" in fields and make is not optim.Adagrad:
        forms = {"": {}, "loop": {"foreach": False, "fused": False}, "foreach": {"foreach": True, "fused": False}}
        forms["fused"] = {"fused": True}
    if "capturable" in fields:
        other = {"fused": False} if "fused" in fields else {}
        forms["capturable"] = {"capturable": True, **other}
        forms["capturable loop"] = {"capturable": True, "foreach": False, **other}
    return {
        f"{name} {form}".strip(): lambda more=more: make(**settings, **more)
        for form, more in forms.items()
        if all(key in fields for key in more)
    }


OPTIMIZERS = {
    "AdamW() fused": lambda: optim.AdamW(fused=True),
    **_every_form(optim.AdamW),
    **_every_form(optim.AdamW, amsgrad=True, maximize=True),
    **_every_form(optim.Adam),
    **_every_form(optim.Adam, amsgrad=True, weight_decay=0.01),
    **_every_form(optim.SGD),
    **_every_form(optim.SGD, momentum=0.5, nesterov=True, weight_decay=0.01),
    **_every_form(optim.SGD, momentum=0.9, dampening=0.1),
    **_every_form(optim.Adamax),
    **_every_form(optim.NAdam, decoupled_weight_decay=True, weight_decay=0.01),
    **_every_form(optim.RAdam, betas=(0.5, 0.5)),
    **_every_form(optim.RMSprop),
    **_every_form(optim.RMSprop, momentum=0.5, centered=True, weight_decay=0.01),
    **_every_form(optim.Adagrad, lr_decay=0.01, initial_accumulator_value=0.1),
    **_every_form(optim.Adadelta),
    **_every_form(optim.Adafactor),
    **_every_form(optim.ASGD, t0=3.0, lambd=0.01),
    **_every_form(optim.Rprop),
    "Muon for a matrix": lambda: {"head.weight": optim.Muon(), "*": optim.AdamW()},
    "two algorithms": lambda: {"head.*": optim.SGD(momentum=0.9), "*": optim.Adam()},
    "two settings": lambda: {"*bias": optim.AdamW(weight_decay=0.0), "*": optim.AdamW(weight_decay=0.1)},
    "wrapped Adam": lambda: optim.wrap(torch.optim.Adam),
    "wrapped AdamW with capturable": lambda: optim.wrap(torch.optim.AdamW, capturable=True, foreach=True),
    "wrapped SGD": lambda: optim.wrap(torch.optim.SGD, momentum=0.9),
    "wrapped RMSprop": lambda: optim.wrap(torch.optim.RMSprop, centered=True),
    "wrapped and own": lambda: {"head.*": optim.wrap(torch.optim.Adagrad), "*": optim.AdamW()},
}

RATES = {
    "constant": lambda: 0.02,
    "constant schedule": lambda: schedule.constant(0.02),
    "cosine": lambda: schedule.cosine(0.02, warmup=2, end=1e-4),
    "cosine with restarts": lambda: schedule.cosine(0.02, updates=12, restarts=2, growth=1.5),
    "linear": lambda: schedule.linear(0.03, 0.0),
    "exponential": lambda: schedule.exponential(0.03, gamma=0.83),
    "step": lambda: schedule.step(0.03, every=2, gamma=0.7),
    "multistep": lambda: schedule.multistep(0.03, milestones=[2, 5], gamma=0.3),
    "polynomial": lambda: schedule.polynomial(0.03, power=1.7),
    "one cycle": lambda: schedule.one_cycle(0.05, updates=9),
    "inverse square root": lambda: schedule.inverse_sqrt(0.03, warmup=3),
    "noam": lambda: schedule.noam(64, warmup=3, scale=0.3),
    "trapezoid": lambda: schedule.warmup_stable_decay(0.03, warmup=2, decay=0.4, shape="sqrt"),
    "warmup": lambda: schedule.warmup(schedule.step(0.03, every=2, gamma=0.7), updates=3),
    "then": lambda: schedule.constant(0.01).then(schedule.linear(0.03, 0.001), at=4),
    "sum and product": lambda: 0.5 * schedule.linear(0.03, 0.01) + schedule.constant(0.003),
    "function": lambda: lambda update: 0.03 / (1 + update % 3),
    "torch LambdaLR": lambda: schedule.torch(lr_scheduler.LambdaLR, 0.03, lr_lambda=lambda step: 0.9**step),
    "torch restarts": lambda: schedule.torch(lr_scheduler.CosineAnnealingWarmRestarts, 0.03, T_0=3),
    "torch StepLR every epoch": lambda: schedule.torch(lr_scheduler.StepLR, 0.03, every="epoch", step_size=1),
    "groups of numbers": lambda: {"head.*": 0.03, "*": 0.011},
    "groups of schedules": lambda: {"head.*": schedule.cosine(0.03), "*bias": schedule.step(0.02, every=3), "*": 0.013},
}

WHOLE_FIT = {  # they take their length from the fit
    *("cosine", "linear", "polynomial", "trapezoid", "then", "sum and product", "torch StepLR every epoch"),
    "groups of schedules",
}
