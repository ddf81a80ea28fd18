"""stoker trains PyTorch models: gradients are values, and the learning rate is an argument of the optimizer step.

>>> import torch, stoker
>>> from stoker import data, optim
>>> x = torch.randn(64, 3)
>>> model = torch.nn.Linear(3, 1)
>>> optimizer = optim.AdamW().init(model)
>>> for inputs, targets in data.Loader((x, x.sum(1, keepdim=True)), batch_size=16, shuffle=0):
...     loss = torch.nn.functional.mse_loss(model(inputs), targets)
...     optimizer.step(stoker.backward(loss, model), lr=1e-2)

Names are imported on first use, so that programs that only read runs (`stoker.record`, `stoker watch`) do not import
torch.
"""

from typing import TYPE_CHECKING

from stoker import errors as _errors
from stoker._lazy import import_on_use as _import_on_use
from stoker.errors import *  # noqa: F403

if TYPE_CHECKING:  # what a type checker sees; a test compares it with _MODULES
    from stoker import burn as burn
    from stoker import callbacks as callbacks
    from stoker import checkpoint as checkpoint
    from stoker import data as data
    from stoker import distributed as distributed
    from stoker import gradients as gradients
    from stoker import hub as hub
    from stoker import learner as learner
    from stoker import lightning as lightning
    from stoker import metrics as metrics
    from stoker import optim as optim
    from stoker import optuna as optuna
    from stoker import record as record
    from stoker import schedule as schedule
    from stoker import sklearn as sklearn
    from stoker import steps as steps
    from stoker import view as view
    from stoker import weights as weights
    from stoker._export import export as export
    from stoker._select import freeze as freeze
    from stoker._select import select as select
    from stoker._select import unfreeze as unfreeze
    from stoker.callbacks import Callback as Callback
    from stoker.checkpoint import Checkpoint as Checkpoint
    from stoker.config import Config as Config
    from stoker.distributed import Parallel as Parallel
    from stoker.distributed import barrier as barrier
    from stoker.distributed import rank_zero as rank_zero
    from stoker.distributed import world as world
    from stoker.gradients import Accumulator as Accumulator
    from stoker.gradients import Gradients as Gradients
    from stoker.gradients import backward as backward
    from stoker.learner import Fitted as Fitted
    from stoker.learner import Learner as Learner
    from stoker.learner import load_for_inference as load_for_inference
    from stoker.learner import lr_find as lr_find
    from stoker.record import Record as Record
    from stoker.steps import ClassificationOutput as ClassificationOutput
    from stoker.steps import MultiLabelOutput as MultiLabelOutput
    from stoker.steps import Objective as Objective
    from stoker.steps import Output as Output
    from stoker.steps import RegressionOutput as RegressionOutput
    from stoker.steps import SequenceOutput as SequenceOutput
    from stoker.steps import summary as summary
    from stoker.steps import valid as valid
    from stoker.weights import load as load
    from stoker.weights import load_torch as load_torch
    from stoker.weights import save as save

__version__ = "0.1.0"

_MODULES = {
    "_export": "export",
    "_select": "freeze select unfreeze",
    "burn": "burn",
    "callbacks": "callbacks Callback",
    "checkpoint": "checkpoint Checkpoint",
    "config": "Config",
    "data": "data",
    "distributed": "distributed Parallel barrier rank_zero world",
    "gradients": "gradients Accumulator Gradients backward",
    "hub": "hub",
    "learner": "learner Fitted Learner load_for_inference lr_find",
    "lightning": "lightning",
    "metrics": "metrics",
    "optim": "optim",
    "optuna": "optuna",
    "record": "record Record",
    "schedule": "schedule",
    "sklearn": "sklearn",
    "steps": (
        "steps ClassificationOutput MultiLabelOutput Objective Output RegressionOutput SequenceOutput summary valid"
    ),
    "view": "view",
    "weights": "weights load load_torch save",
}

# Without `sklearn`, which imports scikit-learn: `from stoker import *` has to work where that is not installed.
__all__ = sorted({*_errors.__all__, *" ".join(_MODULES.values()).split()} - {"sklearn"})  # pyright: ignore[reportUnsupportedDunderAll]

if not TYPE_CHECKING:  # so that a type checker reports misspelt names
    __getattr__, __dir__ = _import_on_use(__name__, _MODULES)
