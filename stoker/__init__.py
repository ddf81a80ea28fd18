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

from stoker import (
    callbacks,
    checkpoint,
    data,
    gradients,
    learner,
    loop,
    metrics,
    optim,
    record,
    schedule,
    show,
    step,
    weights,
)
from stoker._select import freeze, select, unfreeze
from stoker.callbacks import Callback
from stoker.checkpoint import Checkpoint
from stoker.config import Config
from stoker.errors import (
    BadData,
    BadFile,
    CheckpointFailed,
    ConfigError,
    GradientsConsumed,
    InvalidArgument,
    MissingExtra,
    MissingFile,
    NoSuchMetric,
    NoSuchParameter,
    NotDifferentiable,
    NotFinite,
    RunExists,
    SampleFailed,
    StateMismatch,
    StokerError,
    UnknownHook,
    UnmatchedParameter,
    UnsupportedGradient,
    WorkerDied,
    WrongType,
)
from stoker.gradients import Accumulator, Gradients, backward
from stoker.learner import Fitted, Learner, load_for_inference, lr_find
from stoker.record import Record
from stoker.step import (
    ClassificationOutput,
    MultiLabelOutput,
    Objective,
    Output,
    RegressionOutput,
    SequenceOutput,
    summary,
    valid,
)
from stoker.weights import load, load_torch, save

__version__ = "0.1.0"

__all__ = [
    "Accumulator",
    "BadData",
    "BadFile",
    "Callback",
    "Checkpoint",
    "CheckpointFailed",
    "ClassificationOutput",
    "Config",
    "ConfigError",
    "Fitted",
    "Gradients",
    "GradientsConsumed",
    "InvalidArgument",
    "Learner",
    "MissingExtra",
    "MissingFile",
    "MultiLabelOutput",
    "NoSuchMetric",
    "NoSuchParameter",
    "NotDifferentiable",
    "NotFinite",
    "Objective",
    "Output",
    "Record",
    "RegressionOutput",
    "RunExists",
    "SampleFailed",
    "SequenceOutput",
    "StateMismatch",
    "StokerError",
    "UnknownHook",
    "UnmatchedParameter",
    "UnsupportedGradient",
    "WorkerDied",
    "WrongType",
    "backward",
    "callbacks",
    "checkpoint",
    "data",
    "freeze",
    "gradients",
    "learner",
    "load",
    "load_for_inference",
    "load_torch",
    "loop",
    "lr_find",
    "metrics",
    "optim",
    "record",
    "save",
    "schedule",
    "select",
    "show",
    "step",
    "summary",
    "unfreeze",
    "valid",
    "weights",
]
