"""stoker trains PyTorch models: gradients are values, and the learning rate is an argument of the step.

Data walks through the rooms in this order, and the names below stand in it:

    data ─▶ steps ─▶ gradients ─▶ schedule, optim        weights (module ⇄ file)

>>> import torch, stoker
>>> from stoker import data, optim
>>> x = torch.randn(64, 3)
>>> model = torch.nn.Linear(3, 1)
>>> optimizer = optim.AdamW().init(model)
>>> for inputs, targets in data.Loader((x, x.sum(1, keepdim=True)), batch_size=16, shuffle=0):
...     loss = torch.nn.functional.mse_loss(model(inputs), targets)
...     optimizer.step(stoker.backward(loss, model), lr=1e-2)

A name is loaded when it is first asked for, so that what only reads runs (`stoker.record`, `stoker watch`) needs no
torch.
"""

import gc
from typing import TYPE_CHECKING, Any

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
    PeerFailed,
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

if TYPE_CHECKING:
    from stoker import (
        callbacks,
        checkpoint,
        data,
        distributed,
        gradients,
        learner,
        loop,
        metrics,
        optim,
        program,
        record,
        schedule,
        steps,
        view,
        weights,
    )
    from stoker._select import freeze, select, unfreeze
    from stoker.callbacks import Callback
    from stoker.checkpoint import Checkpoint
    from stoker.config import Config
    from stoker.distributed import Parallel, barrier, rank_zero, world
    from stoker.gradients import Accumulator, Gradients, backward
    from stoker.learner import Fitted, Learner, load_for_inference, lr_find
    from stoker.record import Record
    from stoker.steps import (
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
    "Parallel",
    "PeerFailed",
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
    "barrier",
    "callbacks",
    "checkpoint",
    "data",
    "distributed",
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
    "program",
    "rank_zero",
    "record",
    "save",
    "schedule",
    "select",
    "steps",
    "summary",
    "unfreeze",
    "valid",
    "view",
    "weights",
    "world",
]

# Where the names live that are neither errors nor rooms.
_HOMES = {
    "_select": ("freeze", "select", "unfreeze"),
    "callbacks": ("Callback",),
    "checkpoint": ("Checkpoint",),
    "config": ("Config",),
    "distributed": ("Parallel", "barrier", "rank_zero", "world"),
    "gradients": ("Accumulator", "Gradients", "backward"),
    "learner": ("Fitted", "Learner", "load_for_inference", "lr_find"),
    "record": ("Record",),
    "steps": (
        "ClassificationOutput",
        "MultiLabelOutput",
        "Objective",
        "Output",
        "RegressionOutput",
        "SequenceOutput",
        "summary",
        "valid",
    ),
    "weights": ("load", "load_torch", "save"),
}


if not TYPE_CHECKING:  # to a type checker, a name that is not above is a mistake

    def __getattr__(name: str) -> Any:
        """A public name that nobody has asked for yet; from now on it is an ordinary one."""
        if name not in __all__:
            raise AttributeError(f"module 'stoker' has no attribute {name!r}")
        home = next((home for home, names in _HOMES.items() if name in names), None)
        module = _loaded(f"stoker.{home or name}", name)
        globals()[name] = found = getattr(module, name) if home else module
        return found

    def _loaded(module: str, name: str) -> Any:
        """A room and those before it; to search for garbage among all that torch has made would take as long again."""
        searching = gc.isenabled()
        gc.disable()
        try:
            return __import__(module, fromlist=[name])
        finally:
            if searching:
                gc.enable()

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
