"""safetensors: eight bytes of length, a JSON header, then the tensors' bytes, one after the other without gaps.

Read and written here rather than by the safetensors package, which holds a whole model at a time, knows no gzip and no
complex128, and doesn't sync. The package reads our files and we read its files; the tests hold us to it.
"""

import json
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import IO, Any, Protocol

import torch
from torch import Tensor

from stoker.errors import BadFile
from stoker.weights._head import DTYPES, Entry, Head, check_head, read_entry, read_seal, read_texts, short, unique
from stoker.weights._source import Source, blank, raw

LARGEST_HEADER = 100_000_000  # bytes; the package's own bound
RESERVED = {"stoker", "format"}  # keys of the metadata that are not the user's

_DTYPES = {
    code: DTYPES[name]
    for code, name in (
        *(("BOOL", "bool"), ("I8", "int8"), ("I16", "int16"), ("I32", "int32"), ("I64", "int64")),
        *(("U8", "uint8"), ("U16", "uint16"), ("U32", "uint32"), ("U64", "uint64")),
        *(("F16", "float16"), ("BF16", "bfloat16"), ("F32", "float32"), ("F64", "float64"), ("C64", "complex64")),
        *(("F8_E4M3", "float8_e4m3fn"), ("F8_E4M3FNUZ", "float8_e4m3fnuz"), ("F8_E5M2", "float8_e5m2")),
        *(("F8_E5M2FNUZ", "float8_e5m2fnuz"), ("F8_E8M0", "float8_e8m0fnu")),
    )
}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}


class Writable(Protocol):
    """What tensors are written to: a file, or something that looks on while they pass."""

    def write(self, data: bytes | memoryview, /) -> object:
        """Takes all of `data`."""
        ...


def storage_order(tensors: Mapping[str, Entry]) -> list[str]:
    """Wide dtypes first, so that every tensor starts at a multiple of its own width."""
    return sorted(tensors, key=lambda name: -tensors[name].dtype.itemsize)


def write(file: IO[bytes], head: Head, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Writes the head, and then the tensors, which have to come in `storage_order`."""
    write_header(file, head.tensors, {**head.metadata, "format": "pt", "stoker": json.dumps(head.sealed())})
    for _, tensor in tensors:
        file.write(raw(tensor))


def write_header(file: Writable, tensors: Mapping[str, Entry], metadata: dict[str, str]) -> None:
    """Writes everything up to the first tensor's bytes."""
    offsets: dict[str, int] = {}
    end = 0
    for name in storage_order(tensors):
        offsets[name] = end
        end += tensors[name].bytes
    header: dict[str, Any] = {"__metadata__": metadata}
    for name, entry in tensors.items():
        code, shape = _CODES.get(entry.dtype), list(entry.shape)
        if code is None:  # complex128, which the format doesn't know, as pairs of real numbers
            code, shape = "F64", [*shape, 2]
        header[name] = {"dtype": code, "shape": shape, "data_offsets": [offsets[name], offsets[name] + entry.bytes]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little"))
    file.write(text)


class Contents:
    """An open safetensors file: its head, and its tensors one at a time."""

    def __init__(self, source: Source):
        self._source = source
        source.seek(0)
        length = int.from_bytes(source.exactly(8), "little")
        if length > LARGEST_HEADER:
            raise BadFile(f"{source.name}: its header claims {length:,} bytes; at most {LARGEST_HEADER:,} are read")
        header = _parse(source.name, source.exactly(length))
        self._start = 8 + length
        metadata = read_texts(source.name, "its metadata", header.pop("__metadata__", {}))
        stored = {name: _entry(source.name, name, found) for name, found in header.items()}
        self._order = _in_a_row(source, self._start, {name: offsets for name, (_, offsets) in stored.items()})
        self.head = _head(source.name, {name: entry for name, (entry, _) in stored.items()}, metadata)

    def tensors(self, wanted: Container[str]) -> Iterator[tuple[str, Tensor]]:
        """The wanted tensors, in the order in which they are stored."""
        self._source.seek(self._start)
        for name in self._order:
            entry = self.head.tensors[name]
            if name not in wanted:
                self._source.skip(entry.bytes)
                continue
            tensor, memory = blank(entry.shape, entry.dtype)
            self._source.fill(memory)
            yield name, tensor
        self._source.finish()


def _parse(file: str, text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise BadFile(f"{file}: its header is not the JSON that it should be: {error}") from error
    if not isinstance(header, dict):
        raise BadFile(f"{file}: its header is {short(header)}; expected the names of tensors")
    return header


def _entry(file: str, name: str, found: Any) -> tuple[Entry, tuple[int, int]]:
    if not isinstance(found, dict) or set(found) != {"dtype", "shape", "data_offsets"}:
        raise BadFile(
            f"{file}: the tensor {short(name)} is described by {short(found)}; expected dtype, shape and place"
        )
    code, offsets = found["dtype"], found["data_offsets"]
    entry = read_entry(file, name, _DTYPES.get(code) if isinstance(code, str) else None, code, found["shape"])
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(type(each) is int for each in offsets):
        raise BadFile(f"{file}: the tensor {short(name)} lies at {short(offsets)}; expected where it starts and ends")
    start, end = offsets
    if start < 0 or end - start != entry.bytes:
        raise BadFile(
            f"{file}: the tensor {short(name)} is {entry}, {entry.bytes:,} bytes, but lies at {short(offsets)}"
        )
    return entry, (start, end)


def _in_a_row(source: Source, start: int, offsets: dict[str, tuple[int, int]]) -> list[str]:
    """The names as their bytes lie, each where the one before ends, up to the end of the file."""
    order = sorted(offsets, key=lambda name: offsets[name])
    end = 0
    for name in order:
        if offsets[name][0] != end:
            kind = "overlaps with the one before it" if offsets[name][0] < end else "leaves a gap before it"
            raise BadFile(f"{source.name}: the tensor {short(name)} {kind}")
        end = offsets[name][1]
    if source.size is not None and source.size != start + end:
        if source.size < start + end:
            source.ends_early()
        raise BadFile(f"{source.name} goes on after its last tensor; it is damaged, or more than one file in one")
    return order


def _head(file: str, tensors: dict[str, Entry], metadata: dict[str, str]) -> Head:
    if "stoker" not in metadata:
        if any(key.startswith("stoker") for key in metadata):
            raise BadFile(f"{file}: what stoker noted in it is damaged")
        return Head(tensors, metadata)
    try:
        noted = json.loads(metadata["stoker"], object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise BadFile(f"{file}: what stoker noted in it is damaged: {error}") from error
    seal = read_seal(file, noted, tensors)
    for name, entry in tensors.items():  # pairs of real numbers, back to the complex ones that they were
        original = DTYPES.get(seal.dtypes.get(name, ""), entry.dtype)
        if original.is_complex and entry.dtype == torch.float64 and entry.shape[-1:] == (2,):
            tensors[name] = Entry(torch.complex128, entry.shape[:-1])
    rest = {key: value for key, value in metadata.items() if key not in RESERVED}
    return check_head(file, Head(tensors, rest, seal), noted["head"])
