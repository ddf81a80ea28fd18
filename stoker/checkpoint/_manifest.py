"""What identifies a checkpoint: the names of its directory and files, its place in the training, its manifest.

The manifest is a JSON file with the place, and the size and checksum of every other file.
"""

import json
import math
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from os import urandom
from typing import Any, NamedTuple

from stoker._files import parse_json
from stoker.errors import BadFile, InvalidArgument

VERSION = 1  # of a checkpoint: this manifest, and the state and the tensors that it lists
MANIFEST, STATE = "manifest.json", "state.json"
MAX_MANIFEST, MAX_STATE = 1 << 20, 1 << 28  # bytes; files of tensors have no limit

# --- Names. Nothing else in the directory belongs to stoker.

_NAME = re.compile(r"([0-9]{8,18})(?:\.([1-9][0-9]{0,8}))?", re.ASCII)
_LEFTOVER = re.compile(r"\.(?:part|gone)-([0-9.]+)-[0-9a-f]{8}", re.ASCII)
_TENSORS = re.compile(r"([A-Za-z_][A-Za-z0-9_-]{0,63})\.safetensors", re.ASCII)
_SHARD = re.compile(r"shard-[0-9]{5,}-model-[0-9]{5,}-of-[0-9]{5,}\.safetensors", re.ASCII)  # the names of torch's DCP


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
    return f".{kind}-{name}-{urandom(4).hex()}"


def is_leftover(name: str) -> bool:
    """Whether a name is one of `temporary_name`."""
    match = _LEFTOVER.fullmatch(name)
    return match is not None and sort_key(match[1]) is not None


def part_name(file: str) -> str | None:
    """The part of the state whose tensors a file holds; `None` for any other file."""
    match = _TENSORS.fullmatch(file)
    return None if match is None or is_shard_file(file) else match[1]


def shard_file(rank: int) -> str:
    return f"shard-{rank + 1:05d}-model-00001-of-00001.safetensors"


def is_shard_file(file: str) -> bool:
    return _SHARD.fullmatch(file) is not None


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
    for name, value in place.as_dict().items():
        is_valid, expected = _EXPECTED[name]
        if not is_valid(_values_to_json(value) if name == "values" else value):
            raise InvalidArgument(f"{name} of a checkpoint is {expected}; got {value!r}")


def format_manifest(manifest: Manifest) -> bytes:
    content = {"version": VERSION, "ranks": manifest.ranks, **asdict(manifest.saved)}
    content["values"] = _values_to_json(manifest.saved.values)
    content["files"] = {name: each._asdict() for name, each in manifest.files.items()}
    return to_json({**content, "crc32": _checksum_of(content)})


def parse_manifest(text: bytes | bytearray, path: object) -> Manifest:
    """Parses and checks a manifest; raises `BadFile`, which names `path`."""
    content = parse_json(text, path)
    if not isinstance(content, dict):
        raise BadFile(f"{path} holds a {type(content).__name__}; expected a mapping")
    version = content.get("version")
    if type(version) is int and version > VERSION:
        raise BadFile(
            f"{path} was written by a newer stoker (checkpoint version {str(version)[:9]}, this one reads {VERSION}); "
            "install a newer stoker to read it"
        )
    crc32 = content.pop("crc32", None)
    if crc32 != _checksum_of(content):
        raise BadFile(f"{path} is damaged: its checksum does not match")
    content.pop("version", None)
    if content.keys() != set(_EXPECTED) or version != VERSION:
        raise BadFile(f"{path} is not a manifest of version {VERSION}: it has other fields")
    for name, (is_valid, expected) in _EXPECTED.items():
        if not is_valid(content[name]):
            raise BadFile(f"{path} is damaged: {name} is not {expected}")
    files = {name: Checksum(**entry) for name, entry in content.pop("files").items()}
    values = {name: float(value) for name, value in content.pop("values").items()}
    ranks = content.pop("ranks")
    manifest = Manifest(Saved(**content, values=values), files, ranks)
    if manifest.saved.bytes != sum(each.bytes for each in files.values()):
        raise BadFile(f"{path} is damaged: bytes is not the sum of its files")
    if (sort_key(manifest.saved.name) or [None])[0] != manifest.saved.update:
        raise BadFile(f"{path} is damaged: the name does not match the update")
    if bool(manifest.shards) != (ranks is not None):
        raise BadFile(f"{path} is damaged: the shards do not match the number of ranks")
    return manifest


def to_json(value: Any) -> bytes:
    """Plain values as one line of JSON; floats are restored to the bit."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


def _checksum_of(content: Mapping[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(content, sort_keys=True).encode()):08x}"


def _values_to_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with text for non-finite numbers; what is not a number stays, and `check_place` reports it."""

    def convert(value: Any) -> Any:
        if not isinstance(value, int | float):
            return value
        return float(value) if math.isfinite(value) else str(float(value))

    return {name: convert(value) for name, value in values.items()}


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 10**18


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_values(value: Any) -> bool:
    def is_number(item: Any) -> bool:
        return item in ("nan", "inf", "-inf") if type(item) is str else type(item) is float and math.isfinite(item)

    return isinstance(value, dict) and all(map(_is_text, value)) and all(map(is_number, value.values()))


def _is_files(value: Any) -> bool:
    def is_file(name: str, entry: Any) -> bool:
        if name == MANIFEST or not is_checkpoint_file(name):
            return False
        if not isinstance(entry, dict) or entry.keys() != {"bytes", "crc32"} or not _is_text(entry["crc32"]):
            return False
        has_size = _is_count(entry["bytes"]) and (name != STATE or entry["bytes"] <= MAX_STATE)
        return has_size and re.fullmatch(r"[0-9a-f]{8}", entry["crc32"], re.ASCII) is not None

    return isinstance(value, dict) and STATE in value and all(is_file(name, entry) for name, entry in value.items())


def _is_number_up_to(low: float, high: float) -> Callable[[Any], bool]:
    return lambda value: type(value) in (int, float) and low <= value <= high


# What each field has to be: a check, and the same in words.
_EXPECTED: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("epoch", "batch", "update", "bytes"), (_is_count, "an integer from 0 to 10**18")),
    "minutes": (_is_number_up_to(0, 1e12), "a number from 0 to 10**12"),
    # A clock may be wrong, so any time that a calendar can show is allowed.
    "time": (_is_number_up_to(-62_135_596_800, 253_402_300_799), "seconds since 1970 in the years 1 to 9999"),
    **dict.fromkeys(("reason", "run"), (_is_text, "a string")),
    "ended": (lambda value: value is None or _is_text(value), "a string or None"),
    "resumable": (lambda value: type(value) is bool, "True or False"),
    "name": (lambda value: _is_text(value) and sort_key(value) is not None, "the name of a checkpoint"),
    "values": (_is_values, "a mapping of names to numbers"),
    "ranks": (lambda value: value is None or (_is_count(value) and value > 0), "a number of ranks, or null"),
    "files": (_is_files, f"{STATE} and files of tensors, each with its bytes and crc32"),
}
