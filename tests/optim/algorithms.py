"""The list that every algorithm joins: its config, its twin in torch, and the settings worth a run of their own."""

import torch

from stoker import optim

# name: (settings to try, whether torch has a fused form, whether it has a foreach form)
SETTINGS = {
    "SGD": (
        [{}, {"momentum": 0.9}, {"momentum": 0.9, "dampening": 0.1, "weight_decay": 0.1}]
        + [{"momentum": 0.9, "nesterov": True, "maximize": True}],
        True,
        True,
    ),
    "Adam": (
        [{}, {"amsgrad": True, "weight_decay": 0.1}, {"maximize": True, "decoupled_weight_decay": True}],
        True,
        True,
    ),
    "AdamW": ([{}, {"amsgrad": True, "betas": (0.5, 0.9)}, {"maximize": True}], True, True),
    "Adamax": ([{}, {"weight_decay": 0.1, "maximize": True}], False, True),
    "NAdam": ([{}, {"weight_decay": 0.1, "decoupled_weight_decay": True, "momentum_decay": 0.01}], False, True),
    "RAdam": ([{}, {"weight_decay": 0.1, "decoupled_weight_decay": True}], False, True),
    "RMSprop": ([{}, {"momentum": 0.9, "centered": True, "weight_decay": 0.1, "alpha": 0.9}], False, True),
    "Adagrad": ([{}, {"lr_decay": 0.1, "initial_accumulator_value": 0.2, "weight_decay": 0.1}], True, True),
    "Adadelta": ([{}, {"rho": 0.8, "weight_decay": 0.1, "maximize": True}], False, True),
    "Adafactor": ([{}, {"eps": (1e-8, 1e-2), "d": 2.0, "weight_decay": 0.1}], False, True),
    "Rprop": ([{}, {"etas": (0.4, 1.3), "step_sizes": (1e-5, 1.0)}], False, True),
    "ASGD": ([{}, {"t0": 5, "weight_decay": 0.1, "lambd": 1e-2}], False, True),
    "Muon": ([{}, {"nesterov": False, "adjust_lr_fn": "match_rms_adamw"}], False, False),
}


def cases(names=tuple(SETTINGS)):
    """(name, settings, way) for every algorithm, each of its settings, and each way torch has to run it."""
    for name in names:
        settings, fused, foreach = SETTINGS[name]
        for each in settings:
            yield name, each, {}
            if foreach:
                yield name, each, {"foreach": True}
            if foreach:
                yield name, each, {"foreach": False}
            if fused:
                yield name, each, {"fused": True}


def label(case):
    name, settings, way = case
    return " ".join([name, *(f"{key}={value}" for key, value in {**settings, **way}.items())])


def config(case):
    name, settings, way = case
    return getattr(optim, name)(**settings, **way)


def twin(case, parameters, lr):
    name, settings, way = case
    return getattr(torch.optim, name)(parameters, lr=lr, **settings, **way)
