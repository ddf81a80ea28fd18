"""stoker trains PyTorch models: gradients are values, and the learning rate is an argument of the step.

Data walks through the rooms in this order, and the names below stand in it:

    data ─▶ step ─▶ gradients ─▶ schedule, optim        weights (module ⇄ file)

>>> import torch, stoker
>>> from stoker import data, optim
>>> x = torch.randn(64, 3)
>>> model = torch.nn.Linear(3, 1)
>>> optimizer = optim.AdamW().init(model)
>>> for inputs, targets in data.Loader((x, x.sum(1, keepdim=True)), batch_size=16, shuffle=0):
...     loss = torch.nn.functional.mse_loss(model(inputs), targets)
...     optimizer.step(stoker.backward(loss, model), lr=1e-2)
"""

from stoker import data, gradients, optim, schedule, step, weights
from stoker._select import freeze, select, unfreeze
from stoker.config import Config
from stoker.errors import (
    BadData,
    BadFile,
    ConfigError,
    GradientsConsumed,
    InvalidArgument,
    MissingExtra,
    NoSuchParameter,
    NotDifferentiable,
    SampleFailed,
    StateMismatch,
    StokerError,
    UnmatchedParameter,
    UnsupportedGradient,
    WorkerDied,
    WrongType,
)
from stoker.gradients import Accumulator, Gradients, backward
from stoker.step import ClassificationOutput, MultiLabelOutput, Output, RegressionOutput, SequenceOutput, valid
from stoker.weights import load, load_torch, save

__version__ = "0.1.0"

__all__ = [
    "Accumulator",
    "BadData",
    "BadFile",
    "ClassificationOutput",
    "Config",
    "ConfigError",
    "Gradients",
    "GradientsConsumed",
    "InvalidArgument",
    "MissingExtra",
    "MultiLabelOutput",
    "NoSuchParameter",
    "NotDifferentiable",
    "Output",
    "RegressionOutput",
    "SampleFailed",
    "SequenceOutput",
    "StateMismatch",
    "StokerError",
    "UnmatchedParameter",
    "UnsupportedGradient",
    "WorkerDied",
    "WrongType",
    "backward",
    "data",
    "freeze",
    "gradients",
    "load",
    "load_torch",
    "optim",
    "save",
    "schedule",
    "select",
    "step",
    "unfreeze",
    "valid",
    "weights",
]
