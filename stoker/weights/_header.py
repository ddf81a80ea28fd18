"""The header of a weights file: names, dtypes, shapes, metadata and checksums, all read before any tensor is."""

import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from stoker.errors import BadFile

VERSION = 1
MAX_DIMENSIONS = 64  # torch indexes fewer; the bound keeps a forged list small

# Every dtype that a file can hold, by its name in MessagePack and JSON files.
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
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.itemsize

    def __repr__(self) -> str:
        return f"{dtype_name(self.dtype)} {list(self.shape)}"


@dataclass(frozen=True)
class StokerInfo:
    """What stoker adds to a file; a file that another program wrote has none."""

    precision: str
    aliases: dict[str, str]  # other names of tied tensors -> the name under which the tensor is stored
    dtypes: dict[str, str]  # the dtype in the model, for tensors that are stored in another one
    crc32: dict[str, str]  # of each tensor's bytes, as eight hexadecimal digits


@dataclass(frozen=True)
class Header:
    tensors: dict[str, Entry]
    metadata: dict[str, str] = field(default_factory=dict)
    info: StokerInfo | None = None

    @property
    def aliases(self) -> dict[str, str]:
        return self.info.aliases if self.info else {}

    def info_dict(self) -> dict[str, Any]:
        """`info` as plain values, with a checksum of the whole header."""
        assert self.info is not None
        return {"version": VERSION, **vars(self.info), "head": self.checksum()}

    def checksum(self) -> str:
        tensors = {name: repr(entry) for name, entry in self.tensors.items()}
        info = vars(self.info) if self.info else None
        return checksum(json.dumps([VERSION, tensors, self.metadata, info], sort_keys=True).encode())


def checksum(data: bytes | memoryview) -> str:
    """CRC-32 as eight hexadecimal digits."""
    return f"{zlib.crc32(data):08x}"


def parse_entry(file: str, name: str, dtypes: Mapping[str, torch.dtype], dtype: Any, shape: Any) -> Entry:
    """An entry with a known dtype and a valid shape; raises `BadFile` otherwise."""
    known = dtypes.get(dtype) if isinstance(dtype, str) else None
    if known is None:
        raise BadFile(f"{file}: the tensor {shorten(name)} has the unknown dtype {shorten(dtype)}")
    if not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS:
        raise BadFile(f"{file}: the tensor {shorten(name)} has the shape {shorten(shape)}; expected a list of sizes")
    if not all(type(size) is int and 0 <= size < 2**63 for size in shape):
        raise BadFile(
            f"{file}: the tensor {shorten(name)} has the shape {shorten(shape)}; expected integers of at least 0"
        )
    if math.prod(max(size, 1) for size in shape) >= 2**60:  # torch computes strides of empty tensors too
        raise BadFile(f"{file}: the tensor {shorten(name)} has the shape {shorten(shape)}, which is too large")
    return Entry(known, tuple(shape))


def parse_strings(file: str, what: str, found: Any) -> dict[str, str]:
    """Checks that `found` maps strings to strings."""
    if not isinstance(found, dict) or not all(type(each) is str for pair in found.items() for each in pair):
        raise BadFile(f"{file}: {what} is not a mapping of strings to strings")
    return found


def parse_info(file: str, found: Any, tensors: Mapping[str, Entry]) -> StokerInfo:
    """Checks stoker's own part of the header; `check_header` compares its checksum afterwards."""
    if isinstance(found, dict) and type(found.get("version")) is int and found["version"] > VERSION:
        raise BadFile(
            f"{file} was written by a newer stoker (weights version {found['version']}, this one reads {VERSION}); "
            "install a newer stoker to read it"
        )
    fields = {"version", "precision", "aliases", "dtypes", "crc32", "head"}
    if (
        not isinstance(found, dict)
        or set(found) != fields
        or found["version"] != VERSION
        or not all(type(found[field]) is str for field in ("precision", "head"))
    ):
        raise BadFile(f"{file}: stoker's entry in the header is damaged")
    texts = {field: parse_strings(file, f"{field!r}", found[field]) for field in ("aliases", "dtypes", "crc32")}
    if texts["crc32"].keys() != tensors.keys() or not texts["dtypes"].keys() <= tensors.keys():
        raise BadFile(f"{file}: the checksums and the tensors have different names")
    if not tensors.keys() >= set(texts["aliases"].values()) or texts["aliases"].keys() & tensors.keys():
        raise BadFile(f"{file}: the tied names refer to tensors that are not in the file")
    return StokerInfo(found["precision"], **texts)


def check_header(file: str, header: Header, expected: str) -> Header:
    """Returns the header; raises `BadFile` if its checksum is not the one that was written."""
    if header.checksum() != expected:
        raise BadFile(f"{file} is damaged: the checksum of its names, shapes and metadata does not match")
    return header


def parse_document(file: str, found: Mapping[str, Any], keys: tuple[str, ...]) -> Header:
    """The header of a MessagePack or JSON file: a map of `stoker`, `metadata` and `tensors`, each tensor with `keys`.

    Only `tensors` has to be there: a JSON file may be written by hand.
    """
    described = found["tensors"]
    if not isinstance(described, dict):
        raise BadFile(f"{file}: the list of tensors is {shorten(described)}; expected a mapping")
    tensors: dict[str, Entry] = {}
    for name, each in described.items():
        if type(name) is not str or not isinstance(each, dict) or set(each) != set(keys):
            raise BadFile(
                f"{file}: the tensor {shorten(name)} is described by {shorten(each)}; expected {', '.join(keys)}"
            )
        tensors[name] = parse_entry(file, name, DTYPES, each["dtype"], each["shape"])
    metadata = parse_strings(file, "the metadata", found.get("metadata", {}))
    if "stoker" not in found:
        return Header(tensors, metadata)
    info = parse_info(file, found["stoker"], tensors)
    return check_header(file, Header(tensors, metadata, info), found["stoker"]["head"])


def shorten(thing: Any) -> str:
    """The repr of a value from a file, cut so that a damaged file cannot fill the screen."""
    try:
        text = repr(thing)
    except RecursionError:
        return "a deeply nested value"
    return text if len(text) <= 80 else f"{text[:77]}..."
