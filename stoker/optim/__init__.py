"""Optimizers: torch's algorithms, driven by gradients and a learning rate as arguments.

A config (`Adam()`, `SGD(momentum=0.9)`, `wrap(SomeOptimizer)`) or a mapping of selectors to configs makes an
`Optimizer` for a model; its `step(grads, lr=...)` changes the parameters in place.
"""

from stoker.optim._algorithms import (
    ASGD,
    SGD,
    Adadelta,
    Adafactor,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    Algorithm,
    Muon,
    NAdam,
    RAdam,
    RMSprop,
    Rprop,
)
from stoker.optim._optimizer import Optimizer, init
from stoker.optim._wrap import Wrapped, wrap

__all__ = [
    "ASGD",
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Algorithm",
    "Muon",
    "NAdam",
    "Optimizer",
    "RAdam",
    "RMSprop",
    "Rprop",
    "Wrapped",
    "init",
    "wrap",
]
