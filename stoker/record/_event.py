"""One event of a run, and the line of JSON that it is on disk."""

import json
import math
import numbers
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from typing import Any

from stoker.errors import InvalidArgument, WrongType


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in a run: its kind, its time, its place in the training, and its numbers.

    >>> Event("valid", 1.5, epoch=2, update=80, values={"valid/loss": 0.25}).values["valid/loss"]
    0.25

    `time` is in seconds since 1970. `epoch` counts from 1; `batch` is the number of batches done in this epoch and
    `update` the number of updates done so far. `values` holds numbers, `extra` anything that JSON can hold.
    """

    kind: str
    time: float = field(default_factory=time.time)
    epoch: int = 0
    batch: int = 0
    update: int = 0
    values: Mapping[str, float] = field(default_factory=dict)
    text: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)


def float_values(event: Event) -> dict[str, float]:
    """The values of an event as Python floats; raises `WrongType` for anything that is not a real number."""
    for name, value in event.values.items():
        if not isinstance(value, numbers.Real):
            raise WrongType(
                f"the value of {name!r} is a {type(value).__name__}; expected a number (read a tensor with .item())"
            )
    return {name: float(value) for name, value in event.values.items()}


def kept_count(event: Event) -> int:
    """How many of the events before a "resume" event are still valid; the later ones are void."""
    kept = event.extra.get("kept")
    if type(kept) is not int or kept < 0:
        raise InvalidArgument(f'a "resume" event has kept={kept!r}; expected the number of valid events before it')
    return kept


def to_line(event: Event) -> bytes:
    r"""Encodes an event as one line of JSON; empty fields are left out.

    >>> to_line(Event("valid", 1.5, epoch=2, values={"valid/loss": float("nan")}))
    b'{"kind":"valid","time":1.5,"epoch":2,"values":{"valid/loss":"NaN"}}\n'
    """
    data: dict[str, Any] = {"kind": event.kind, "time": event.time}
    for name in ("epoch", "batch", "update"):
        if position := getattr(event, name):
            data[name] = position
    if event.values:
        data["values"] = to_json_value(event.values)
    if event.text:
        data["text"] = event.text
    if event.extra:
        data["extra"] = to_json_value(event.extra)
    return json.dumps(data, separators=(",", ":")).encode() + b"\n"  # ASCII, so no character can break the line


def from_line(line: bytes) -> Event:
    """Decodes a line that `to_line` wrote; raises `ValueError` for anything else. Unknown fields are ignored."""
    data = json.loads(line)
    if not isinstance(data, dict) or not isinstance(data.get("kind"), str):
        raise ValueError('expected an object with a "kind"')
    try:
        event = Event(
            kind=data["kind"],
            time=float(data["time"]),
            epoch=int(data.get("epoch", 0)),
            batch=int(data.get("batch", 0)),
            update=int(data.get("update", 0)),
            values={name: float(value) for name, value in data.get("values", {}).items()},
            text=str(data.get("text", "")),
            extra=dict(data.get("extra", {})),
        )
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    if event.kind == "resume":
        kept_count(event)
    return event


def to_json_value(value: Any) -> Any:
    """Converts a value to what JSON can hold: NaN and infinities become strings, unknown objects their `str`.

    >>> to_json_value({"best": float("inf"), "betas": (0.9, 0.99)})
    {'best': 'Infinity', 'betas': [0.9, 0.99]}
    """
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): to_json_value(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_json_value(each) for each in value]
    if is_dataclass(value) and not isinstance(value, type):
        return to_json_value(asdict(value))
    if isinstance(value, numbers.Integral):
        return int(value)
    return to_json_value(float(value)) if isinstance(value, numbers.Real) else str(value)
