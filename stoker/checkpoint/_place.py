"""Where a training stands: when it is saved, once it is saved, and when somebody asks whether it should be."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the training stands, and why it is saved there."""

    epoch: int
    batch: int  # batches of this epoch that are done
    update: int
    minutes: float = 0.0  # of training so far, in the whole run
    reason: str = ""
    ended: str | None = None  # why the fit is over; None while it goes on
    resumable: bool = True  # False for the outcome of a fit that was cut short: an earlier one is gone on from
    values: Mapping[str, float] = field(default_factory=dict)  # of exactly these weights; empty unless just validated


@dataclass(frozen=True, kw_only=True)
class Saved(Place):
    """A checkpoint on disk."""

    name: str
    run: str
    time: float  # seconds since 1970
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Moment(Place):
    """A place that policies are asked about."""

    epoch_ended: bool = False


def fields_of(place: Place) -> dict[str, Any]:
    """What makes a place, of a checkpoint or a moment too.

    >>> Place(**fields_of(Moment(epoch=1, batch=2, update=3, epoch_ended=True)))
    Place(epoch=1, batch=2, update=3, minutes=0.0, reason='', ended=None, resumable=True, values={})
    """
    return {each.name: getattr(place, each.name) for each in fields(Place)}
