"""Callbacks: your own code at named points of training, and callbacks for common tasks.

A `Callback` defines hooks (`on_epoch_end`, ...), each of which is called with a `Context`. Trackers are callbacks that
send a run's metrics to other programs.
"""

from typing import TYPE_CHECKING

from stoker._lazy import import_on_use
from stoker.callbacks._callback import HOOK_NAMES, Callback, Hooks, on
from stoker.callbacks._context import Context, Requests
from stoker.callbacks._stopping import EarlyStopping, ReduceLROnPlateau, StopOnTime

if TYPE_CHECKING:
    from stoker.callbacks._csv import CSV
    from stoker.callbacks._freeze import FreezeUntil
    from stoker.callbacks._mix import CutMix, MixUp, mixed_loss
    from stoker.callbacks._profile import Profile
    from stoker.callbacks._tracker import MediaItem, Sink, Tracked, Tracker
    from stoker.callbacks._trackers import MLflow, TensorBoard, Trackio, WandB
else:  # what a plain fit does not use
    __getattr__, __dir__ = import_on_use(
        __name__,
        {
            "_csv": "CSV",
            "_freeze": "FreezeUntil",
            "_mix": "CutMix MixUp mixed_loss",
            "_profile": "Profile",
            "_tracker": "MediaItem Sink Tracked Tracker",
            "_trackers": "MLflow TensorBoard Trackio WandB",
        },
    )

__all__ = [
    "CSV",
    "Callback",
    "Context",
    "CutMix",
    "EarlyStopping",
    "FreezeUntil",
    "MLflow",
    "MediaItem",
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
