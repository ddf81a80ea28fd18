"""Gradients and a learning rate in, changed parameters out: torch's algorithms, driven by values.

The one type to know is `Optimizer`; a config (`Adam()`, `SGD(momentum=0.9)`, `wrap(SomeOptimizer)`) or a mapping of
selectors to configs makes it for a model. The room writes parameters; it sees neither data nor forward passes.
"""

from stoker.optim._adam import Adam, Adamax, AdamW, NAdam, RAdam
from stoker.optim._adaptive import Adadelta, Adafactor, Adagrad, RMSprop
from stoker.optim._algorithm import Algorithm
from stoker.optim._optimizer import Optimizer, init
from stoker.optim._sgd import ASGD, SGD, Muon, Rprop
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
