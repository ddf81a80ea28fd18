"""What identifies a checkpoint: the names of its directory and files, its place in the training, its manifest.

The manifest is a JSON file with the place, and the size and checksum of every other file.
"""

import json
import math
import re
import secrets
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from stoker._files import parse_json
from stoker.errors import BadFile, InvalidArgument

VERSION = 2  # written as 1, without `ranks`, if nothing is sharded
MANIFEST, STATE = "manifest.json", "state.json"
MAX_SIZE = {MANIFEST: 1 << 20, STATE: 1 << 28}  # bytes; files of tensors have no limit

# --- Names. Nothing else in the directory belongs to stoker.

_NAME = re.compile(r"([0-9]{8,18})(?:\.([1-9][0-9]{0,8}))?", re.ASCII)
_LEFTOVER = re.compile(r"\.(?:part|gone)-([0-9.]+)-[0-9a-f]{8}", re.ASCII)
_PART = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}", re.ASCII)
_SHARD = re.compile(r"shard-[0-9]{5,}-model-[0-9]{5,}-of-[0-9]{5,}", re.ASCII)  # the file names of torch's DCP
_TENSORS = ".safetensors"


def checkpoint_name(update: int, number: int) -> str:
    """`00000120`, and `00000120.1` for the second checkpoint at this update."""
    return f"{update:08d}.{number}" if number else f"{update:08d}"


def sort_key(name: str) -> tuple[int, int] | None:
    """The update of a checkpoint and its number at that update; `None` if this is not the name of a checkpoint.

    >>> sort_key("00000120"), sort_key("00000120.1"), sort_key("notes.txt")
    ((120, 0), (120, 1), None)
    """
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    key = int(match[1]), int(match[2] or 0)
    return key if checkpoint_name(*key) == name else None


def temporary_name(kind: str, name: str) -> str:
    """The name of a checkpoint while it is being written ("part") or deleted ("gone")."""
    return f".{kind}-{name}-{secrets.token_hex(4)}"


def is_leftover(name: str) -> bool:
    """Whether a name is one of `temporary_name`."""
    match = _LEFTOVER.fullmatch(name)
    return match is not None and sort_key(match[1]) is not None


def tensors_file(part: str) -> str:
    return part + _TENSORS


def part_name(file: str) -> str | None:
    """The part of the state whose tensors a file holds; `None` for any other file."""
    part = file.removesuffix(_TENSORS)
    return part if part != file and _PART.fullmatch(part) and not _SHARD.fullmatch(part) else None


def shard_file(rank: int) -> str:
    return f"shard-{rank + 1:05d}-model-00001-of-00001{_TENSORS}"


def is_shard_file(file: str) -> bool:
    return file.endswith(_TENSORS) and _SHARD.fullmatch(file.removesuffix(_TENSORS)) is not None


def is_checkpoint_file(file: str) -> bool:
    """Whether a file of this name may belong to a checkpoint."""
    return file in (MANIFEST, STATE) or part_name(file) is not None or is_shard_file(file)


# --- Places in the training


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the training is when it is saved, and why."""

    epoch: int
    batch: int  # completed batches of this epoch
    update: int
    minutes: float = 0.0  # of training in the whole run
    reason: str = ""
    ended: str | None = None  # why the fit ended; None while it is running
    resumable: bool = True  # False for the result of a fit that was cut short: resuming uses an earlier checkpoint
    # Metrics of exactly these weights; empty if they were not validated.
    values: Mapping[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The fields of a `Place`, also of a subclass.

        >>> Place(**Moment(epoch=1, batch=2, update=3, epoch_ended=True).as_dict())
        Place(epoch=1, batch=2, update=3, minutes=0.0, reason='', ended=None, resumable=True, values={})
        """
        return {each.name: getattr(self, each.name) for each in fields(Place)}


@dataclass(frozen=True, kw_only=True)
class Saved(Place):
    """A checkpoint on disk."""

    name: str
    run: str
    time: float  # seconds since 1970
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Moment(Place):
    """A place for which a policy decides whether to save."""

    epoch_ended: bool = False


# --- The manifest


class Checksum(NamedTuple):
    """The size of a file and its CRC-32 as eight hexadecimal digits."""

    bytes: int
    crc32: str


class Manifest(NamedTuple):
    saved: Saved
    files: dict[str, Checksum]
    ranks: int | None = None  # number of ranks that wrote shards; None if nothing is sharded

    @property
    def shards(self) -> list[str]:
        return [name for name in self.files if is_shard_file(name)]


def check_place(place: Place) -> None:
    """Raises `InvalidArgument` for a place that a manifest cannot hold."""
    found = _to_plain(place)
    for each in fields(Place):
        is_valid, expected = _EXPECTED[each.name]
        if not is_valid(found[each.name]):
            raise InvalidArgument(f"{each.name} of a checkpoint is {expected}; got {getattr(place, each.name)!r}")


def format_manifest(manifest: Manifest) -> bytes:
    files = {name: each._asdict() for name, each in manifest.files.items()}
    version = {"version": 1} if manifest.ranks is None else {"version": 2, "ranks": manifest.ranks}
    found = {**version, **_to_plain(manifest.saved), "files": files}
    return to_json({**found, "crc32": _own_checksum(found)})


def parse_manifest(text: bytes | bytearray, where: object) -> Manifest:
    """Parses and checks a manifest; raises `BadFile`, which names `where`."""
    found = parse_json(text, where)
    if not isinstance(found, dict):
        raise BadFile(f"{where} holds a {type(found).__name__}; expected a mapping")
    version = found.get("version")
    if type(version) is int and version > VERSION:
        raise BadFile(
            f"{where} was written by a newer stoker (checkpoint version {str(version)[:9]}, this one reads {VERSION}); "
            "install a newer stoker to read it"
        )
    crc32 = found.pop("crc32", None)
    if crc32 != _own_checksum(found):
        raise BadFile(f"{where} is damaged: its checksum does not match")
    found.pop("version", None)
    ranks = found.pop("ranks", None) if version == 2 else None
    if found.keys() != set(_EXPECTED) or version not in (1, 2):
        raise BadFile(f"{where} is not a manifest of version 1 or 2: it has other fields")
    for name, (is_valid, expected) in _EXPECTED.items():
        if not is_valid(found[name]):
            raise BadFile(f"{where} is damaged: {name} is not {expected}")
    files = {name: Checksum(**each) for name, each in found.pop("files").items()}
    values = {name: float(value) for name, value in found.pop("values").items()}
    manifest = Manifest(Saved(**found, values=values), files, ranks)
    if manifest.saved.bytes != sum(each.bytes for each in files.values()):
        raise BadFile(f"{where} is damaged: bytes is not the sum of its files")
    if (sort_key(manifest.saved.name) or [None])[0] != manifest.saved.update:
        raise BadFile(f"{where} is damaged: the name does not match the update")
    if bool(manifest.shards) != (version == 2) or (version == 2 and not (_is_count(ranks) and ranks)):
        raise BadFile(f"{where} is damaged: the shards do not match the number of ranks")
    return manifest


def to_json(value: Any) -> bytes:
    """Plain values as one line of JSON; floats are restored to the bit."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


def _to_plain(place: Place) -> dict[str, Any]:
    """The fields as values that JSON can hold; non-finite values become text."""

    def number(value: Any) -> Any:
        if not isinstance(value, int | float):
            return value  # `check_place` reports it
        return float(value) if math.isfinite(value) else str(float(value))

    found = {each.name: getattr(place, each.name) for each in fields(place)}
    return {**found, "values": {name: number(value) for name, value in place.values.items()}}


def _own_checksum(found: Mapping[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(found, sort_keys=True).encode()):08x}"


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 10**18


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= 253_402_300_799  # the end of the year 9999


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_values(value: Any) -> bool:
    def is_number(each: Any) -> bool:
        return each in ("nan", "inf", "-inf") if type(each) is str else type(each) is float and math.isfinite(each)

    return isinstance(value, dict) and all(map(_is_text, value)) and all(map(is_number, value.values()))


def _is_files(value: Any) -> bool:
    def is_file(name: str, each: Any) -> bool:
        if name == MANIFEST or not is_checkpoint_file(name):
            return False
        if not isinstance(each, dict) or each.keys() != {"bytes", "crc32"} or not _is_text(each["crc32"]):
            return False
        size = each["bytes"]
        is_sized = _is_count(size) and size <= MAX_SIZE.get(name, size)
        return is_sized and re.fullmatch(r"[0-9a-f]{8}", each["crc32"], re.ASCII) is not None

    return isinstance(value, dict) and STATE in value and all(is_file(*each) for each in value.items())


# What each field has to be: a check, and the same in words.
_EXPECTED: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("epoch", "batch", "update", "bytes"), (_is_count, "an integer from 0 to 10**18")),
    **dict.fromkeys(("minutes", "time"), (_is_time, "a number from 0 to the year 10000")),
    **dict.fromkeys(("reason", "run"), (_is_text, "a string")),
    "ended": (lambda value: value is None or _is_text(value), "a string or None"),
    "resumable": (lambda value: type(value) is bool, "True or False"),
    "name": (lambda value: _is_text(value) and sort_key(value) is not None, "the name of a checkpoint"),
    "values": (_is_values, "a mapping of names to numbers"),
    "files": (_is_files, f"{STATE} and files of tensors, each with its bytes and crc32"),
}
