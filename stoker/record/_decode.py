"""Lines of a file of events, read fast (with msgspec, where that is installed) and without trust."""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Protocol

from stoker.record._event import Event, from_line, kept_by

_LAST_DAY = 2.5e11  # seconds since 1970: the year 9892; no calendar goes much further
_LARGEST = 2**62
_NUMBERS = {"epochs", "updates", "minutes", "batches", "seconds", "samples_per_second"}
_TYPES = {
    **dict.fromkeys(("monitor", "phase", "name", "reason", "traceback"), str),
    **dict.fromkeys(("losses", "plan"), list),
    "metrics": dict,
}


class Line(Protocol):
    """What the columns take of a line: an `Event`, but that nobody has looked into its `extra` yet."""

    @property
    def kind(self) -> str: ...
    @property
    def time(self) -> float: ...
    @property
    def epoch(self) -> int: ...
    @property
    def batch(self) -> int: ...
    @property
    def update(self) -> int: ...
    @property
    def values(self) -> Mapping[str, float]: ...
    @property
    def text(self) -> str: ...
    @property
    def extra(self) -> Any: ...


def lines_in(block: bytes) -> Sequence[Line | None]:
    r"""The lines of a block, in order; `None` for one that is damaged.

    >>> [line and line.kind for line in lines_in(b'{"kind":"begin","time":1.5}\nnonsense\n')]
    ['begin', None]
    """
    decode = _fast()
    if decode is not None:
        try:
            found = decode(block)
            if len(found) == block.count(b"\n"):  # else a line holds two of them, or one of them two lines
                return found
        except (ValueError, RecursionError):
            pass
    return [line_in(line) for line in block.split(b"\n") if line.strip()]


def line_in(line: bytes) -> Line | None:
    """The event of one line, by the rules of `from_line`; `None` where it is damaged, or beyond all measure."""
    try:
        event = from_line(line)
    except (ValueError, RecursionError):
        return None
    places = (event.epoch, event.batch, event.update)
    if not 0 <= event.time <= _LAST_DAY or any(abs(place) > _LARGEST for place in places):
        return None
    return _speakable(event) if b"\\ud" in line else event


def whole(line: Line) -> Event:
    """A line as an event, without what its `extra` holds of an unexpected type; `ValueError` for a broken resume."""
    extra = line.extra if isinstance(line.extra, Mapping) else _extra_in(bytes(line.extra))
    if line.kind == "resume":
        kept_by(Event("resume", extra=extra))
    extra = {name: value for name, value in extra.items() if _is_expected(name, value)}
    return Event(line.kind, line.time, line.epoch, line.batch, line.update, line.values, line.text, extra)


def _extra_in(text: bytes) -> Mapping[str, Any]:
    """What msgspec has passed over unread; nothing where that can't be read: no UTF-8, or an endless integer."""
    try:
        found = json.loads(text or b"{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, Mapping) else {}


def _is_expected(name: str, value: Any) -> bool:
    """Whether what the summary and the status go by is of the type that the loop writes."""
    if name in _NUMBERS:
        return isinstance(value, int | float) and 0 <= value <= _LARGEST
    return name not in _TYPES or isinstance(value, _TYPES[name])


def _speakable(event: Event) -> Event:
    """Without halves of letters (U+D800 and so on), which JSON can say and no terminal or web page can be sent."""

    def mended(text: str) -> str:
        return text.encode("utf-8", "replace").decode()

    values = {mended(name): value for name, value in event.values.items()}
    extra = json.loads(mended(json.dumps(event.extra, ensure_ascii=False)))
    return replace(event, kind=mended(event.kind), text=mended(event.text), values=values, extra=extra)


@functools.cache
def _fast() -> Callable[[bytes], list[Any]] | None:
    """Decodes a block of well-formed lines in one go, some ten times faster than `from_line`."""
    try:
        import msgspec
    except ImportError:
        return None
    time = Annotated[float, msgspec.Meta(ge=0, le=_LAST_DAY)]
    place = Annotated[int, msgspec.Meta(ge=-_LARGEST, le=_LARGEST)]
    fields = [
        ("kind", str),
        ("time", time),
        *((name, place, 0) for name in ("epoch", "batch", "update")),
        ("values", dict[str, float], msgspec.field(default_factory=dict)),
        ("text", str, ""),
        ("extra", msgspec.Raw, msgspec.Raw(b"")),  # left as bytes: nearly all of them are never asked for
    ]
    line = msgspec.defstruct("Line", fields, gc=False, frozen=True)
    return msgspec.json.Decoder(line, strict=False).decode_lines  # not strict: "NaN" is a float
