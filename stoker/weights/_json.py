"""JSON files: a map of `stoker`, `metadata` and `tensors`, with the numbers in nested lists that people can read.

Numbers are written so that they are read back to the bit. Non-finite floats are strings: `"Infinity"`, `"-Infinity"`,
`"NaN"`, and a NaN with unusual bits as `"NaN:0xffc00000"`. A file may be written by hand: only `tensors` is required.
"""

import json
import math
from collections.abc import Container, Iterable, Iterator
from typing import IO, Any

import numpy
import torch
from torch import Tensor

from stoker._files import parse_json
from stoker.errors import BadFile
from stoker.weights._header import Header, Reader, parse_header, shorten
from stoker.weights._tensors import DTYPES, Entry, dtype_name, tensor_bytes


def write(file: IO[bytes], header: Header, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Writes the header and the tensors, one per line."""
    info, metadata = json.dumps(header.to_info()), json.dumps(header.metadata)
    file.write(f'{{"stoker": {info},\n"metadata": {metadata},\n"tensors": {{'.encode())
    for number, (name, tensor) in enumerate(tensors):
        entry = header.tensors[name]
        start = f'"dtype": "{dtype_name(entry.dtype)}", "shape": {json.dumps(entry.shape)}'
        file.write(f'{"," if number else ""}\n{json.dumps(name)}: {{{start}, "values": '.encode())
        values = _to_lists(torch.view_as_real(tensor) if tensor.is_complex() else tensor)
        file.write(json.dumps(values, allow_nan=False).encode() + b"}")
    file.write(b"\n}}\n")


def _to_lists(tensor: Tensor) -> Any:
    if not tensor.is_floating_point():
        return tensor.tolist()
    numbers = tensor.double()  # exact for every float dtype
    if bool(numbers.isfinite().all()):
        return numbers.tolist()
    width, raw = tensor.element_size(), bytes(tensor_bytes(tensor))
    usual_nan = bytes(tensor_bytes(torch.tensor([math.nan], dtype=tensor.dtype)))
    values: list[Any] = numbers.flatten().tolist()
    for index, number in enumerate(values):
        bits = raw[index * width : (index + 1) * width]
        if math.isinf(number):
            values[index] = "Infinity" if number > 0 else "-Infinity"
        elif math.isnan(number):
            values[index] = "NaN" if bits == usual_nan else f"NaN:0x{bits[::-1].hex()}"
    return numpy.array(values, dtype=object).reshape(tensor.shape).tolist()


class Contents:
    """An open JSON file. It is parsed as a whole, so this format is for small models."""

    def __init__(self, reader: Reader):
        self._file = reader.name
        reader.seek(0)
        content = parse_json(reader.read_rest(), reader.name)
        if not isinstance(content, dict) or not {"tensors"} <= set(content) <= {"stoker", "metadata", "tensors"}:
            raise BadFile(f"{reader.name} is JSON, but not weights: expected a map of stoker, metadata and tensors")
        tensors, metadata, info = content["tensors"], content.get("metadata", {}), content.get("stoker")
        keys = ("dtype", "shape", "values")
        self.header = parse_header(reader.name, tensors, metadata, info, dtypes=DTYPES, keys=keys)
        self._values = {name: described["values"] for name, described in tensors.items()}

    def tensors(self, wanted: Container[str]) -> Iterator[tuple[str, Tensor]]:
        """The wanted tensors, in the order in which they are stored."""
        for name, entry in self.header.tensors.items():
            if name in wanted:
                yield name, _parse_tensor(self._file, name, entry, self._values[name])


def _parse_tensor(file: str, name: str, entry: Entry, values: Any) -> Tensor:
    shape = (*entry.shape, 2) if entry.dtype.is_complex else entry.shape
    flat = [values]
    for size in shape:
        if not all(isinstance(part, list) and len(part) == size for part in flat):
            raise BadFile(f"{file}: the values of {shorten(name)} do not have the shape {list(entry.shape)}")
        flat = [item for part in flat for item in part]
    try:
        if entry.dtype.is_complex:
            return torch.view_as_complex(_parse_floats(flat, entry.dtype.to_real()).reshape(shape))
        parse = _parse_floats if entry.dtype.is_floating_point else _parse_integers
        return parse(flat, entry.dtype).reshape(shape)
    except (ValueError, OverflowError) as error:
        raise BadFile(
            f"{file}: the values of {shorten(name)} do not fit the dtype {dtype_name(entry.dtype)}: {error}"
        ) from error


def _parse_integers(flat: list[Any], dtype: torch.dtype) -> Tensor:
    kind = bool if dtype == torch.bool else int
    for item in flat:
        if type(item) is not kind:
            raise ValueError(f"{shorten(item)} is not {'a bool' if kind is bool else 'an integer'}")
    if kind is int and flat:
        limits = torch.iinfo(dtype)
        for item in (min(flat), max(flat)):
            if not limits.min <= item <= limits.max:
                raise ValueError(f"{shorten(item)} is out of range")
    return torch.tensor(flat, dtype=dtype)


def _parse_floats(flat: list[Any], dtype: torch.dtype) -> Tensor:
    for item in flat:
        if type(item) not in (int, float, str):
            raise ValueError(f"{shorten(item)} is not a number")
    numbers = [0.0 if type(item) is str else float(item) for item in flat]
    tensor = torch.tensor(numbers, dtype=torch.float64).to(dtype)
    if not bool(tensor.double().isfinite().all()):
        raise ValueError("a number is too large")
    memory = tensor_bytes(tensor)
    for index, item in enumerate(flat):
        if type(item) is str:
            memory[index * dtype.itemsize : (index + 1) * dtype.itemsize] = _parse_non_finite(item, dtype)
    return tensor


def _parse_non_finite(word: str, dtype: torch.dtype) -> bytes:
    """The bytes of a word such as `"-Infinity"` or `"NaN:0xffc00000"`."""
    if word in ("Infinity", "-Infinity", "NaN"):
        return bytes(tensor_bytes(torch.tensor([float(word)], dtype=dtype)))  # conversions may give another NaN
    if not word.startswith("NaN:0x") or len(word) != 6 + 2 * dtype.itemsize:
        raise ValueError(f"{shorten(word)} is not a number")
    bits = bytes.fromhex(word[6:])[::-1]
    if len(bits) != dtype.itemsize or not math.isnan(torch.frombuffer(bytearray(bits), dtype=dtype).item()):
        raise ValueError(f"{shorten(word)} does not have the bits of a NaN")
    return bits
