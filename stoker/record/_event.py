"""One event of a run, the line of JSON that it is on disk, and decoding lines that may be damaged or hostile."""

import functools
import json
import math
import numbers
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from typing import Annotated, Any

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


_LARGEST = 2**62
_OPTIONAL = ("epoch", "batch", "update", "values", "text", "extra")  # fields that are left out if they are empty


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
    fields = {name: to_json_value(value) for name in _OPTIONAL if (value := getattr(event, name))}
    data = {"kind": event.kind, "time": event.time, **fields}
    return json.dumps(data, separators=(",", ":")).encode() + b"\n"  # ASCII, so no character can break the line


def from_line(line: bytes) -> Event:
    """Decodes a line that `to_line` wrote; raises `ValueError` for anything else. Unknown fields are ignored."""
    try:
        data = json.loads(line)
    except RecursionError as error:
        raise ValueError("the JSON is nested too deeply") from error
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
    if any(abs(position) > _LARGEST for position in (event.epoch, event.batch, event.update)):
        raise ValueError("expected an epoch, a batch and an update of at most 2**62")
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
        return {str(key): to_json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_json_value(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return to_json_value(asdict(value))
    if isinstance(value, numbers.Integral):
        return int(value)
    return to_json_value(float(value)) if isinstance(value, numbers.Real) else str(value)


# --- Decoding lines that other processes wrote

_LAST_TIME = 2.5e11  # seconds since 1970 (the year 9892); calendars end soon after
_FIRST_TIME = -6e10  # the year 68; a clock can be wrong
# What summaries and viewers read of `extra`, and the types that they rely on.
_NUMBERS = {"epochs", "updates", "minutes", "batches", "seconds", "samples_per_second"}
_TYPES = {
    **dict.fromkeys(("monitor", "phase", "name", "reason", "traceback"), str),
    **dict.fromkeys(("losses", "plan"), (list, tuple)),
    "metrics": dict,
}


def decode_lines(block: bytes) -> Sequence[Event | None]:
    """Decodes all lines of a block; `None` stands for a damaged one."""
    decode = _msgspec_decoder()
    if decode is not None:
        try:
            events = decode(block)
            if len(events) == block.count(b"\n"):  # otherwise an object spans two lines, or two share one
                return events
        except (ValueError, RecursionError):
            pass
    return [decode_line(line) for line in block.split(b"\n") if line.strip()]


def decode_line(line: bytes) -> Event | None:
    """Decodes one line; `None` if it is damaged or its time is outside the calendar."""
    try:
        event = from_line(line)
    except ValueError:
        return None
    if not _FIRST_TIME <= event.time <= _LAST_TIME:
        return None
    if b"\\ud" not in line:
        return event

    # Lone surrogates (U+D800 …), which JSON can hold but no terminal or web page can be sent.
    def clean(text: str) -> str:
        return text.encode("utf-8", "replace").decode()

    values = {clean(name): value for name, value in event.values.items()}
    extra = json.loads(clean(json.dumps(event.extra, ensure_ascii=False)))
    return replace(event, kind=clean(event.kind), text=clean(event.text), values=values, extra=extra)


def drop_unexpected(event: Event) -> Event:
    """The event without entries of `extra` that have an unexpected type."""
    extra = {name: value for name, value in event.extra.items() if _has_expected_type(name, value)}
    return Event(event.kind, event.time, event.epoch, event.batch, event.update, event.values, event.text, extra)


def _has_expected_type(name: str, value: Any) -> bool:
    if name in _NUMBERS:
        return isinstance(value, int | float) and 0 <= value <= _LARGEST
    return name not in _TYPES or isinstance(value, _TYPES[name])


@functools.cache
def _msgspec_decoder() -> Callable[[bytes], list[Any]] | None:
    """Decodes a block of valid lines into objects with the fields of `Event`, several times faster than `from_line`.

    `None` if msgspec is not installed.
    """
    try:
        import msgspec
    except ImportError:
        return None
    seconds = Annotated[float, msgspec.Meta(ge=_FIRST_TIME, le=_LAST_TIME)]
    position = Annotated[int, msgspec.Meta(ge=-_LARGEST, le=_LARGEST)]
    fields = [
        ("kind", str),
        ("time", seconds),
        *((name, position, 0) for name in ("epoch", "batch", "update")),
        ("values", dict[str, float], msgspec.field(default_factory=dict)),
        ("text", str, ""),
        ("extra", dict[str, Any], msgspec.field(default_factory=dict)),
    ]
    line = msgspec.defstruct("Line", fields, gc=False, frozen=True)
    return msgspec.json.Decoder(line, strict=False).decode_lines  # not strict: the string "NaN" is a float
