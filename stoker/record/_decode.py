"""Decodes lines of an events file that may be damaged or hostile; fast if msgspec is installed."""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from stoker.record._event import Event, from_line, kept_count

Line = Any  # an `Event`, or an object with its fields whose `extra` is still JSON (msgspec's struct)

_LAST_TIME = 2.5e11  # seconds since 1970 (the year 9892); calendars end soon after
_LARGEST = 2**62
# What summaries and viewers read of `extra`, and the types that they rely on.
_NUMBERS = {"epochs", "updates", "minutes", "batches", "seconds", "samples_per_second"}
_TYPES = {
    **dict.fromkeys(("monitor", "phase", "name", "reason", "traceback"), str),
    **dict.fromkeys(("losses", "plan"), (list, tuple)),
    "metrics": dict,
}


def decode_lines(block: bytes) -> Sequence[Line | None]:
    r"""Decodes all lines of a block; `None` stands for a damaged one.

    >>> [line and line.kind for line in decode_lines(b'{"kind":"begin","time":1.5}\nnonsense\n')]
    ['begin', None]
    """
    decode = _msgspec_decoder()
    if decode is not None:
        try:
            lines = decode(block)
            if len(lines) == block.count(b"\n"):  # otherwise an object spans two lines, or two share one
                return lines
        except (ValueError, RecursionError):
            pass
    return [decode_line(line) for line in block.split(b"\n") if line.strip()]


def decode_line(line: bytes) -> Event | None:
    """Decodes one line; `None` if it is damaged or its time or position is out of range."""
    try:
        event = from_line(line)
    except (ValueError, RecursionError):
        return None
    positions = (event.epoch, event.batch, event.update)
    if not 0 <= event.time <= _LAST_TIME or any(abs(position) > _LARGEST for position in positions):
        return None
    return _replace_surrogates(event) if b"\\ud" in line else event


def to_event(line: Line) -> Event:
    """The event of a decoded line, without entries of `extra` that have an unexpected type.

    Raises `ValueError` for a "resume" that does not say how many events it keeps.
    """
    extra = line.extra if isinstance(line.extra, Mapping) else _parse_extra(bytes(line.extra))
    if line.kind == "resume":
        kept_count(Event("resume", extra=extra))
    extra = {name: value for name, value in extra.items() if _has_expected_type(name, value)}
    return Event(line.kind, line.time, line.epoch, line.batch, line.update, line.values, line.text, extra)


def _parse_extra(text: bytes) -> Mapping[str, Any]:
    """The `extra` that msgspec left as JSON; empty if it can't be parsed (not UTF-8, an integer without end)."""
    try:
        found = json.loads(text or b"{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, Mapping) else {}


def _has_expected_type(name: str, value: Any) -> bool:
    if name in _NUMBERS:
        return isinstance(value, int | float) and 0 <= value <= _LARGEST
    return name not in _TYPES or isinstance(value, _TYPES[name])


def _replace_surrogates(event: Event) -> Event:
    """Replaces lone surrogates (U+D800 …), which JSON can hold but no terminal or web page can be sent."""

    def clean(text: str) -> str:
        return text.encode("utf-8", "replace").decode()

    values = {clean(name): value for name, value in event.values.items()}
    extra = json.loads(clean(json.dumps(event.extra, ensure_ascii=False)))
    return replace(event, kind=clean(event.kind), text=clean(event.text), values=values, extra=extra)


@functools.cache
def _msgspec_decoder() -> Callable[[bytes], list[Any]] | None:
    """Decodes a block of valid lines about ten times faster than `from_line`; `None` without msgspec."""
    try:
        import msgspec
    except ImportError:
        return None
    time = Annotated[float, msgspec.Meta(ge=0, le=_LAST_TIME)]
    position = Annotated[int, msgspec.Meta(ge=-_LARGEST, le=_LARGEST)]
    fields = [
        ("kind", str),
        ("time", time),
        *((name, position, 0) for name in ("epoch", "batch", "update")),
        ("values", dict[str, float], msgspec.field(default_factory=dict)),
        ("text", str, ""),
        ("extra", msgspec.Raw, msgspec.Raw(b"")),  # left as bytes: nearly all of them are never needed
    ]
    line = msgspec.defstruct("Line", fields, gc=False, frozen=True)
    return msgspec.json.Decoder(line, strict=False).decode_lines  # not strict: the string "NaN" is a float
