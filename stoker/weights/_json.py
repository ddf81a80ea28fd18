"""JSON files: a map of `stoker`, `metadata` and `tensors`, with the numbers in nested lists that people can read.

Numbers are written so that they are read back to the bit. Non-finite floats are strings: `"Infinity"`, `"-Infinity"`,
`"NaN"`, and a NaN with unusual bits as `"NaN:0xffc00000"`.
"""

import json
import math
from collections.abc import Container, Iterable, Iterator
from typing import IO, Any

import torch
from torch import Tensor

from stoker._files import parse_json
from stoker.errors import BadFile
from stoker.weights._header import Header, Reader, parse_document, shorten
from stoker.weights._tensors import Entry, dtype_name

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by size in bytes


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
    usual_nan = int(_bits(torch.tensor(math.nan, dtype=tensor.dtype)))
    values: list[Any] = numbers.flatten().tolist()
    for place, bits in enumerate(_bits(tensor).flatten().tolist()):
        if not math.isfinite(values[place]):
            values[place] = _format_non_finite(values[place], bits, usual_nan, tensor.element_size())
    for size in reversed(tensor.shape):
        values = [values[start : start + size] for start in range(0, len(values), size)]
    return values[0]


def _format_non_finite(number: float, bits: int, usual_nan: int, width: int) -> str:
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    return "NaN" if bits == usual_nan else f"NaN:0x{bits & (256**width - 1):0{2 * width}x}"


def _bits(tensor: Tensor) -> Tensor:
    return tensor.view(_INTEGERS[tensor.element_size()])


class Contents:
    """An open JSON file. It is parsed as a whole, so this format is for small models."""

    def __init__(self, reader: Reader):
        self._file = reader.name
        reader.seek(0)
        found = parse_json(reader.read_rest(), reader.name)
        if not isinstance(found, dict) or not {"tensors"} <= set(found) <= {"stoker", "metadata", "tensors"}:
            raise BadFile(f"{reader.name} is JSON, but not weights: expected a map of stoker, metadata and tensors")
        self.header = parse_document(reader.name, found, ("dtype", "shape", "values"))
        self._values = {name: each["values"] for name, each in found["tensors"].items()}

    def tensors(self, wanted: Container[str]) -> Iterator[tuple[str, Tensor]]:
        """The wanted tensors, in the order in which they are stored."""
        for name, entry in self.header.tensors.items():
            if name in wanted:
                yield name, _parse_tensor(self._file, name, entry, self._values[name])


def _parse_tensor(file: str, name: str, entry: Entry, values: Any) -> Tensor:
    shape = (*entry.shape, 2) if entry.dtype.is_complex else entry.shape
    flat = [values]
    for size in shape:
        if not all(isinstance(each, list) and len(each) == size for each in flat):
            raise BadFile(f"{file}: the values of {shorten(name)} do not have the shape {list(entry.shape)}")
        flat = [each for part in flat for each in part]
    try:
        if entry.dtype.is_complex:
            return torch.view_as_complex(_parse_floats(flat, entry.dtype.to_real()).reshape(shape))
        if entry.dtype.is_floating_point:
            return _parse_floats(flat, entry.dtype).reshape(shape)
        return _parse_integers(flat, entry.dtype).reshape(shape)
    except (ValueError, OverflowError) as error:
        raise BadFile(
            f"{file}: the values of {shorten(name)} do not fit the dtype {dtype_name(entry.dtype)}: {error}"
        ) from error


def _parse_integers(flat: list[Any], dtype: torch.dtype) -> Tensor:
    kind = bool if dtype == torch.bool else int
    for each in flat:
        if type(each) is not kind:
            raise ValueError(f"{shorten(each)} is not {'a bool' if kind is bool else 'an integer'}")
    if dtype != torch.bool and flat:
        limits = torch.iinfo(dtype)
        for each in (min(flat), max(flat)):
            if not limits.min <= each <= limits.max:
                raise ValueError(f"{shorten(each)} is out of range")
    return torch.tensor(flat, dtype=dtype)


def _parse_floats(flat: list[Any], dtype: torch.dtype) -> Tensor:
    for each in flat:
        if type(each) not in (int, float, str):
            raise ValueError(f"{shorten(each)} is not a number")
    numbers = [0.0 if type(each) is str else float(each) for each in flat]
    tensor = torch.tensor(numbers, dtype=torch.float64).to(dtype)
    if not bool(tensor.double().isfinite().all()):
        raise ValueError("a number is too large")
    for place, each in enumerate(flat):
        if type(each) is str:
            _parse_non_finite(tensor, place, each)
    return tensor


def _parse_non_finite(tensor: Tensor, place: int, word: str) -> None:
    """Writes the value of a word such as `"-Infinity"` or `"NaN:0xffc00000"` into one place of the tensor."""
    if word in ("Infinity", "-Infinity", "NaN"):
        tensor[place] = float(word)
        return
    width = tensor.element_size()
    if not word.startswith("NaN:0x") or len(word) != 6 + 2 * width:
        raise ValueError(f"{shorten(word)} is not a number")
    bits = int(word[6:], 16)
    _bits(tensor)[place] = bits if width == 1 or bits < 256**width // 2 else bits - 256**width
    if not math.isnan(tensor[place].item()):
        raise ValueError(f"{shorten(word)} does not have the bits of a NaN")
