"""What a weights file says about itself before any tensor is read: names, dtypes, shapes, metadata and checksums."""

import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from stoker.errors import BadFile

VERSION = 1
MOST_DIMENSIONS = 64  # more than torch can index, few enough that a forged list of them stays small

# Every dtype that a file may hold, by the name it has in MessagePack and JSON files.
DTYPES: dict[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.bool, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
        *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz, torch.float8_e8m0fnu),
    )
}


def dtype_name(dtype: torch.dtype) -> str:
    """`float32` for `torch.float32`."""
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True)
class Entry:
    """The dtype and shape of one stored tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.size * self.dtype.itemsize

    def __repr__(self) -> str:
        return f"{dtype_name(self.dtype)} {list(self.shape)}"


@dataclass(frozen=True)
class Seal:
    """What stoker adds of its own; a file made by others has none."""

    precision: str
    aliases: dict[str, str]  # the other names of a tied tensor, and the name it is stored by
    dtypes: dict[str, str]  # what a tensor was in the model, where the file holds something else
    crc32: dict[str, str]  # of each tensor's bytes, as eight hexadecimal digits


@dataclass(frozen=True)
class Head:
    tensors: dict[str, Entry]
    metadata: dict[str, str] = field(default_factory=dict)
    seal: Seal | None = None

    def sealed(self) -> dict[str, Any]:
        """The seal as plain values, with a checksum over everything that the head says."""
        assert self.seal is not None
        return {"version": VERSION, **vars(self.seal), "head": self._checksum()}

    def _checksum(self) -> str:
        tensors = {name: repr(entry) for name, entry in self.tensors.items()}
        seal = vars(self.seal) if self.seal else None
        return checksum(json.dumps([VERSION, tensors, self.metadata, seal], sort_keys=True).encode())


def checksum(data: bytes | memoryview) -> str:
    """CRC-32 of some bytes, as eight hexadecimal digits."""
    return f"{zlib.crc32(data):08x}"


def read_entry(file: str, name: str, dtype: torch.dtype | None, said: Any, shape: Any) -> Entry:
    """A checked entry: a dtype that we know, and a shape of a few whole numbers that are not negative."""
    if dtype is None:
        raise BadFile(f"{file}: the tensor {short(name)} has the dtype {short(said)}, which torch can't hold")
    if not isinstance(shape, list) or len(shape) > MOST_DIMENSIONS:
        raise BadFile(f"{file}: the tensor {short(name)} has the shape {short(shape)}; expected a list of sizes")
    if not all(type(size) is int and 0 <= size < 2**63 for size in shape):
        raise BadFile(
            f"{file}: the tensor {short(name)} has the shape {short(shape)}; sizes are whole and not negative"
        )
    entry = Entry(dtype, tuple(shape))
    if math.prod(max(size, 1) for size in shape) >= 2**60:  # also of an empty tensor: torch counts its strides
        raise BadFile(f"{file}: the tensor {short(name)} has the shape {short(shape)}, which torch can't hold")
    return entry


def read_texts(file: str, what: str, found: Any) -> dict[str, str]:
    """A checked mapping of strings to strings."""
    if not isinstance(found, dict) or not all(type(each) is str for pair in found.items() for each in pair):
        raise BadFile(f"{file}: {what} is no mapping of strings to strings")
    return found


def read_seal(file: str, found: Any, tensors: Mapping[str, Entry]) -> Seal:
    """A checked seal; whether it belongs to the head is `check_head`'s question."""
    if not isinstance(found, dict):
        raise BadFile(f"{file}: what stoker noted in it is damaged")
    if type(found.get("version")) is int and found["version"] > VERSION:
        raise BadFile(
            f"{file} was written by a newer stoker (weights version {found['version']}, this one reads {VERSION}); "
            "install a newer stoker to read it"
        )
    if set(found) != {"version", "precision", "aliases", "dtypes", "crc32", "head"} or found["version"] != VERSION:
        raise BadFile(f"{file}: what stoker noted in it is damaged")
    if type(found["precision"]) is not str or type(found["head"]) is not str:
        raise BadFile(f"{file}: what stoker noted in it is damaged")
    texts = {field: read_texts(file, f"the list of {field}", found[field]) for field in ("aliases", "dtypes", "crc32")}
    if texts["crc32"].keys() != tensors.keys() or not texts["dtypes"].keys() <= tensors.keys():
        raise BadFile(f"{file}: the checksums are not those of its tensors")
    if not tensors.keys() >= set(texts["aliases"].values()) or texts["aliases"].keys() & tensors.keys():
        raise BadFile(f"{file}: its tied names point to tensors that it doesn't hold")
    return Seal(found["precision"], **texts)


def check_head(file: str, head: Head, said: str) -> Head:
    """The head itself, where its checksum is the one it was written with."""
    if head._checksum() != said:
        raise BadFile(f"{file} is damaged: its names, shapes or metadata are not those that were written (checksum)")
    return head


def unique(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """A dict of a parsed map's pairs; a key that comes twice is a `ValueError`."""
    made = dict(pairs)
    if len(made) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {short(twice)} comes twice")
    return made


def short(thing: Any) -> str:
    """A value out of a file for an error's text, cut where a damaged file would fill the screen."""
    try:
        text = repr(thing)
    except RecursionError:
        return "something nested too deeply"
    return text if len(text) <= 80 else f"{text[:77]}..."
