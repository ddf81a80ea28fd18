"""The manifest of a checkpoint: where the training stood, and the size and checksum of every file beside it."""

import json
import math
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, NamedTuple

from stoker.checkpoint._json import from_json, to_json
from stoker.checkpoint._names import MANIFEST, STATE, is_shards, order_of, part_of
from stoker.checkpoint._place import Place, Saved
from stoker.errors import BadFile, InvalidArgument

VERSION = 2  # 1 where nothing is sharded: without `ranks`
LARGEST = {MANIFEST: 1 << 20, STATE: 1 << 28}  # bytes; tensors may be as large as their file is

_LAST_SECOND = 253_402_300_799  # of the year 9999, since 1970
_CRC32 = re.compile(r"[0-9a-f]{8}", re.ASCII)
_ODD_NUMBERS = ("nan", "inf", "-inf")  # which JSON has no word for


class Sum(NamedTuple):
    """What a file has to be: so many bytes, with this CRC-32 in eight hexadecimal digits."""

    bytes: int
    crc32: str


class Manifest(NamedTuple):
    saved: Saved
    files: dict[str, Sum]
    ranks: int | None = None  # that have written it, each its shards; None where nothing is sharded

    @property
    def shards(self) -> list[str]:
        """The files that hold shards of tensors."""
        return [name for name in self.files if is_shards(name)]


def checksum(crc32: int) -> str:
    return f"{crc32:08x}"


def check_place(place: Place) -> None:
    """An `InvalidArgument` for a place that a manifest couldn't say."""
    found = _plain(place)
    for name in (each.name for each in fields(Place)):
        fits, expected = _EXPECTED[name]
        if not fits(found[name]):
            raise InvalidArgument(f"a checkpoint's {name} is {expected}; got {getattr(place, name)!r}")


def to_text(manifest: Manifest) -> bytes:
    """The manifest as it is written."""
    files = {name: each._asdict() for name, each in manifest.files.items()}
    sharded = {"version": 1} if manifest.ranks is None else {"version": 2, "ranks": manifest.ranks}
    found = {**sharded, **_plain(manifest.saved), "files": files}
    text = to_json({**found, "crc32": _own_checksum(found)})
    if len(text) > LARGEST[MANIFEST]:
        raise InvalidArgument(
            f"the checkpoint's manifest would have {len(text):,} bytes, at most {LARGEST[MANIFEST]:,} are read; "
            "give it a shorter reason and fewer values"
        )
    return text


def from_text(text: bytes | bytearray, where: object) -> Manifest:
    """The manifest that a file says, every part of it checked; `BadFile` otherwise."""
    found = from_json(text, where)
    if not isinstance(found, dict):
        raise BadFile(f"{where} is a {type(found).__name__}; expected a mapping")
    version = found.get("version")
    if type(version) is int and version > VERSION:
        raise BadFile(
            f"{where} was written by a newer stoker (checkpoint version {str(version)[:9]}, this one reads {VERSION}); "
            "install a newer stoker to read it"
        )
    crc32 = found.pop("crc32", None)
    if crc32 != _own_checksum(found):
        raise BadFile(f"{where} is damaged: it doesn't say what was written (checksum)")
    version = found.pop("version", None)
    ranks = {"ranks": found.pop("ranks", None)} if version == 2 else {}
    if found.keys() != set(_EXPECTED) or version not in (1, 2):
        raise BadFile(f"{where} is no manifest of version 1 or 2: it has other fields")
    for name, (fits, expected) in _EXPECTED.items():
        if not fits(found[name]):
            raise BadFile(f"{where} is damaged: its {name} is not {expected}")
    files = {name: Sum(**each) for name, each in found.pop("files").items()}
    values = {name: float(value) for name, value in found.pop("values").items()}
    saved = Saved(**found, values=values)
    if saved.bytes != sum(each.bytes for each in files.values()):
        raise BadFile(f"{where} is damaged: its bytes are not the sum of its files'")
    if (order_of(saved.name) or [None])[0] != saved.update:
        raise BadFile(f"{where} is damaged: its name is not its update's")
    manifest = Manifest(saved, files, **ranks)
    if bool(manifest.shards) != (version == 2) or (version == 2 and not _is_positive(manifest.ranks)):
        raise BadFile(f"{where} is damaged: its shards are not those of its ranks")
    return manifest


def _plain(place: Place) -> dict[str, Any]:
    """What JSON can say of a place, or of a checkpoint."""
    found = {each.name: getattr(place, each.name) for each in fields(place)}
    return {**found, "values": {name: _said(value) for name, value in place.values.items()}}


def _said(value: Any) -> Any:
    if not isinstance(value, int | float):
        return value  # and `check_place` says so
    return float(value) if math.isfinite(value) else str(float(value))


def _own_checksum(found: Mapping[str, Any]) -> str:
    """Of everything else that a manifest says, with its keys in order."""
    return checksum(zlib.crc32(json.dumps(found, sort_keys=True).encode()))


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 10**18


def _is_positive(value: Any) -> bool:
    return _is_count(value) and value > 0


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= _LAST_SECOND


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_number(value: Any) -> bool:
    return value in _ODD_NUMBERS if type(value) is str else type(value) is float and math.isfinite(value)


def _is_file(name: str, value: Any) -> bool:
    known = name == STATE or part_of(name) is not None or is_shards(name)
    if not known or not isinstance(value, dict) or value.keys() != {"bytes", "crc32"}:
        return False
    size, crc32 = value["bytes"], value["crc32"]
    return _is_count(size) and size <= LARGEST.get(name, size) and _is_text(crc32) and bool(_CRC32.fullmatch(crc32))


# What each field has to be, as a question and in words.
_EXPECTED: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("epoch", "batch", "update", "bytes"), (_is_count, "a whole number from 0 on, below 10**18")),
    **dict.fromkeys(("minutes", "time"), (_is_time, "a number from 0 on, before the year 10000")),
    **dict.fromkeys(("reason", "run"), (_is_text, "a text")),
    "ended": (lambda value: value is None or _is_text(value), "a text or None"),
    "resumable": (lambda value: type(value) is bool, "True or False"),
    "name": (lambda value: _is_text(value) and order_of(value) is not None, "a checkpoint's name"),
    "values": (
        lambda value: isinstance(value, dict) and all(map(_is_text, value)) and all(map(_is_number, value.values())),
        "numbers by name",
    ),
    "files": (
        lambda value: isinstance(value, dict) and STATE in value and all(_is_file(*each) for each in value.items()),
        f"{STATE} and files of tensors, each with its bytes and crc32",
    ),
}
