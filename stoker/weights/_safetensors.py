"""safetensors files: eight bytes of length, a JSON header, then the bytes of the tensors without gaps.

Read and written here because the safetensors package holds a whole model in memory, supports neither gzip nor
complex128, and does not sync. Tests check that it reads these files and the other way round.
"""

import json
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import IO, Any

import torch
from torch import Tensor

from stoker._files import parse_json
from stoker.errors import BadFile, InvalidArgument
from stoker.weights._header import MAX_TENSORS, Header, Reader, parse_header, shorten
from stoker.weights._tensors import DTYPES, Entry, check_tensor, tensor_bytes

MAX_HEADER = 100_000_000  # bytes; the same bound as the safetensors package

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


def storage_order(tensors: Mapping[str, Entry]) -> list[str]:
    """Wide dtypes first, so that every tensor starts at a multiple of its item size."""
    return sorted(tensors, key=lambda name: -tensors[name].dtype.itemsize)


def write(file: IO[bytes], header: Header, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Writes the header and the tensors, which come in `storage_order`."""
    _write_header(file, header.tensors, {**header.metadata, "format": "pt", "stoker": json.dumps(header.to_info())})
    for _, tensor in tensors:
        file.write(tensor_bytes(tensor))


def write_tensors(file: IO[bytes], tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Writes tensors as a safetensors file; tensors on other devices are copied to the CPU one at a time.

    >>> import io
    >>> file = io.BytesIO()
    >>> write_tensors(file, {"weight": torch.ones(2)})
    >>> size = file.tell()
    >>> file.seek(0)
    0
    >>> read_tensors(file, name="memory", size=size)
    {'weight': tensor([1., 1.])}
    """
    for name, tensor in tensors.items():
        check_tensor(name, tensor)
    entries = {name: Entry(tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}
    pairs = [name for name, entry in entries.items() if entry.dtype == torch.complex128]
    complex128 = {"complex128": json.dumps(pairs)} if pairs else {}
    _write_header(file, entries, {"format": "pt", **complex128, **(metadata or {})})
    for name in storage_order(entries):
        file.write(tensor_bytes(tensors[name].detach().cpu().resolve_conj().resolve_neg().contiguous()))


def read_tensors(file: IO[bytes], *, name: str, size: int) -> dict[str, Tensor]:
    """Reads all tensors of a safetensors file of `size` bytes; error texts call it `name`."""
    contents = Contents(Reader(name, file, size=size), max_tensors=None)
    tensors = dict(contents.tensors(contents.header.tensors))
    pairs = parse_json(contents.header.metadata.get("complex128", "[]").encode(errors="replace"), name)
    if not isinstance(pairs, list) or not all(isinstance(key, str) for key in pairs):
        raise BadFile(f"{name}: the list of complex tensors is damaged")
    for key in pairs:
        if key not in tensors or tensors[key].dtype != torch.float64 or tensors[key].shape[-1:] != (2,):
            raise BadFile(f"{name}: the header calls {key!r} complex, but it does not hold pairs of float64")
        tensors[key] = torch.view_as_complex(tensors[key])
    return {key: tensors[key] for key in contents.header.tensors}


def _write_header(file: IO[bytes], tensors: Mapping[str, Entry], metadata: dict[str, str]) -> None:
    if "__metadata__" in tensors:
        raise InvalidArgument("safetensors reserves the name '__metadata__'; give the tensor another name")
    offsets: dict[str, int] = {}
    end = 0
    for name in storage_order(tensors):
        offsets[name] = end
        end += tensors[name].nbytes
    header: dict[str, Any] = {"__metadata__": metadata}
    for name, entry in tensors.items():
        code, shape = _CODES.get(entry.dtype), list(entry.shape)
        if code is None:  # the format has no complex128: it is stored as pairs of float64
            code, shape = "F64", [*shape, 2]
        header[name] = {"dtype": code, "shape": shape, "data_offsets": [offsets[name], offsets[name] + entry.nbytes]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little"))
    file.write(text)


class Contents:
    """An open safetensors file: its header, and its tensors one at a time."""

    def __init__(self, reader: Reader, *, max_tensors: int | None = MAX_TENSORS):
        self._reader = reader
        reader.seek(0)
        length = int.from_bytes(reader.read_exactly(8), "little")
        if length > MAX_HEADER:
            raise BadFile(f"{reader.name}: the header claims {length:,} bytes; at most {MAX_HEADER:,} are read")
        text = reader.read_exactly(length)
        if max_tensors is not None and text.count(b"{") > max_tensors + 100:  # parsing it would take minutes
            raise BadFile(f"{reader.name}: the header describes more than {max_tensors:,} tensors")
        found = parse_json(text, f"{reader.name}: the header")
        if not isinstance(found, dict):
            raise BadFile(f"{reader.name}: the header is {shorten(found)}; expected a mapping of tensors")
        self._start = 8 + length
        metadata = found.pop("__metadata__", {})
        info = None
        if isinstance(metadata, dict) and isinstance(text := metadata.get("stoker"), str):
            info = parse_json(text.encode(errors="replace"), f"{reader.name}: stoker's entry in the header is damaged")
            metadata = {key: value for key, value in metadata.items() if key not in ("stoker", "format")}
        keys = ("dtype", "shape", "data_offsets")
        self.header = parse_header(reader.name, found, metadata, info, dtypes=_DTYPES, keys=keys)
        offsets = {name: described["data_offsets"] for name, described in found.items()}
        self._order = _check_offsets(reader, self._start, self.header.tensors, offsets)

    def tensors(self, wanted: Container[str]) -> Iterator[tuple[str, Tensor]]:
        """The wanted tensors, in the order in which they are stored."""
        self._reader.seek(self._start)
        for name in self._order:
            entry = self.header.tensors[name]
            if name in wanted:
                yield name, self._reader.read_tensor(entry)
            else:
                self._reader.skip(entry.nbytes)
        self._reader.check_end()


def _check_offsets(reader: Reader, start: int, tensors: Mapping[str, Entry], offsets: Mapping[str, Any]) -> list[str]:
    """The names in the order of their bytes; raises unless these follow each other up to the end of the file."""
    for name, entry in tensors.items():
        match offsets[name]:
            case [int(first), int(end)] if first >= 0 and end - first == entry.nbytes:
                pass
            case wrong:
                raise BadFile(
                    f"{reader.name}: the tensor {shorten(name)} is {entry}, {entry.nbytes:,} bytes, "
                    f"but has the offsets {shorten(wrong)}"
                )
    order = sorted(offsets, key=lambda name: offsets[name])
    end = 0
    for name in order:
        if offsets[name][0] != end:
            problem = "overlaps the tensor before it" if offsets[name][0] < end else "has a gap before it"
            raise BadFile(f"{reader.name}: the tensor {shorten(name)} {problem}")
        end = offsets[name][1]
    reader.check_size(start + end)
    return order
