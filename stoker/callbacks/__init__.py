"""Callbacks: a milestone of training comes, and what the user wants done there is done.

Takes a `Context` (where training stands, and what can be changed there) and gives it to every callback that has a
method for the milestone, in the order of the list. The one type to know is `Callback`: its methods are the milestones.
"""

from stoker.callbacks._callback import MILESTONES, Callback
from stoker.callbacks._context import Context
from stoker.callbacks._csv import CSV
from stoker.callbacks._early_stopping import EarlyStopping
from stoker.callbacks._freeze import FreezeUntil
from stoker.callbacks._hooks import Hooks
from stoker.callbacks._mix import CutMix, MixUp
from stoker.callbacks._mixed_loss import mixed_loss
from stoker.callbacks._mlflow import MLflow
from stoker.callbacks._on import on
from stoker.callbacks._plateau import ReduceLROnPlateau
from stoker.callbacks._profile import Profile
from stoker.callbacks._sink import Ending, Known, Sink, Tracked
from stoker.callbacks._tensorboard import TensorBoard
from stoker.callbacks._time import StopOnTime
from stoker.callbacks._tracker import Tracker
from stoker.callbacks._trackio import Trackio
from stoker.callbacks._wandb import WandB

__all__ = [
    "CSV",
    "MILESTONES",
    "Callback",
    "Context",
    "CutMix",
    "EarlyStopping",
    "Ending",
    "FreezeUntil",
    "Hooks",
    "Known",
    "MLflow",
    "MixUp",
    "Profile",
    "ReduceLROnPlateau",
    "Sink",
    "StopOnTime",
    "TensorBoard",
    "Tracked",
    "Tracker",
    "Trackio",
    "WandB",
    "mixed_loss",
    "on",
]
