"""JSON: a map of `stoker`, `metadata` and `tensors`; a tensor's numbers stand nested in lists, for people to read.

Numbers are written so that they come back to the bit. What JSON has no number for is a string: `"Infinity"`,
`"-Infinity"`, `"NaN"`, and a NaN with other bits than the usual ones as `"NaN:0xffc00000"`.
"""

import json
import math
from collections.abc import Container, Iterable, Iterator
from typing import IO, Any

import torch
from torch import Tensor

from stoker.errors import BadFile
from stoker.weights._head import (
    DTYPES,
    Entry,
    Head,
    check_head,
    dtype_name,
    read_entry,
    read_seal,
    read_texts,
    short,
    unique,
)
from stoker.weights._source import Source

_PIECE = 1 << 16  # numbers that are made into text at a time
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def write(file: IO[bytes], head: Head, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Writes the head, and then the tensors, one to a line."""
    file.write(f'{{"stoker": {json.dumps(head.sealed())},\n"metadata": {json.dumps(head.metadata)},\n'.encode())
    file.write(b'"tensors": {')
    for number, (name, tensor) in enumerate(tensors):
        entry = head.tensors[name]
        said = f'"dtype": "{dtype_name(entry.dtype)}", "shape": {json.dumps(entry.shape)}'
        file.write(f'{"," if number else ""}\n{json.dumps(name)}: {{{said}, "values": '.encode())
        for piece in _texts(torch.view_as_real(tensor) if tensor.is_complex() else tensor):
            file.write(piece.encode())
        file.write(b"}")
    file.write(b"\n}}\n")


def _texts(tensor: Tensor) -> Iterator[str]:
    if tensor.ndim < 2 or tensor.numel() <= _PIECE:
        yield json.dumps(_plain(tensor), allow_nan=False)
        return
    for number, part in enumerate(tensor):
        yield ", " if number else "["
        yield from _texts(part)
    yield "]"


def _plain(tensor: Tensor) -> Any:
    """Nested lists of what JSON can say."""
    if not tensor.is_floating_point():
        return tensor.tolist()
    numbers = tensor.double()  # exact: every float has a double of the same value
    if bool(numbers.isfinite().all()):
        return numbers.tolist()
    usual = _bits(torch.tensor(math.nan, dtype=tensor.dtype)).item()
    said = [
        number if math.isfinite(number) else _word(number, bits, usual, tensor.element_size())
        for number, bits in zip(numbers.flatten().tolist(), _bits(tensor).flatten().tolist(), strict=True)
    ]
    return _nest(said, tensor.shape)


def _bits(tensor: Tensor) -> Tensor:
    return tensor.view(_BITS[tensor.element_size()])


def _word(number: float, bits: int, usual: int | float, width: int) -> str:
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    return "NaN" if bits == usual else f"NaN:0x{bits & (256**width - 1):0{2 * width}x}"


def _nest(flat: list[Any], shape: torch.Size) -> Any:
    for size in reversed(shape):
        flat = [flat[start : start + size] for start in range(0, len(flat), size)]
    return flat[0]


class Contents:
    """An open JSON file; text has to be read whole, so this format is for small models."""

    def __init__(self, source: Source):
        self._file = source.name
        source.seek(0)
        try:
            found = json.loads(source.rest().decode(), object_pairs_hook=unique, parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            raise BadFile(f"{source.name} is not the JSON that it should be: {error}") from error
        if not isinstance(found, dict) or not {"tensors"} <= set(found) <= {"stoker", "metadata", "tensors"}:
            raise BadFile(f"{source.name} is JSON, but no weights: expected a map of stoker, metadata and tensors")
        self._values, self.head = _head(source.name, found)

    def tensors(self, wanted: Container[str]) -> Iterator[tuple[str, Tensor]]:
        """The wanted tensors, in the order in which they are stored."""
        for name, entry in self.head.tensors.items():
            if name in wanted:
                yield name, _tensor(self._file, name, entry, self._values[name])


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is no JSON; write it as a string")


def _head(file: str, found: dict[str, Any]) -> tuple[dict[str, Any], Head]:
    if not isinstance(found["tensors"], dict):
        raise BadFile(f"{file}: its list of tensors is {short(found['tensors'])}")
    tensors, values = {}, {}
    for name, each in found["tensors"].items():
        if not isinstance(each, dict) or set(each) != {"dtype", "shape", "values"}:
            raise BadFile(f"{file}: the tensor {short(name)} is {short(each)}; expected dtype, shape and values")
        dtype = each["dtype"]
        known = DTYPES.get(dtype) if isinstance(dtype, str) else None
        tensors[name], values[name] = read_entry(file, name, known, dtype, each["shape"]), each["values"]
    metadata = read_texts(file, "its metadata", found.get("metadata", {}))
    if "stoker" not in found:  # written by hand, or by another program
        return values, Head(tensors, metadata)
    head = Head(tensors, metadata, read_seal(file, found["stoker"], tensors))
    return values, check_head(file, head, found["stoker"]["head"])


def _tensor(file: str, name: str, entry: Entry, values: Any) -> Tensor:
    shape = (*entry.shape, 2) if entry.dtype.is_complex else entry.shape
    flat = [values]
    for size in shape:
        if not all(isinstance(each, list) and len(each) == size for each in flat):
            raise BadFile(f"{file}: the values of {short(name)} are not nested as its shape {list(entry.shape)} says")
        flat = [each for part in flat for each in part]
    try:
        if entry.dtype.is_complex:
            return torch.view_as_complex(_floats(flat, entry.dtype.to_real()).reshape(shape))
        if entry.dtype.is_floating_point:
            return _floats(flat, entry.dtype).reshape(shape)
        return _whole(flat, entry.dtype).reshape(shape)
    except (ValueError, OverflowError) as error:
        raise BadFile(
            f"{file}: the values of {short(name)} don't fit its dtype {dtype_name(entry.dtype)}: {error}"
        ) from error


def _whole(flat: list[Any], dtype: torch.dtype) -> Tensor:
    kind = bool if dtype == torch.bool else int
    for each in flat:
        if type(each) is not kind:
            raise ValueError(f"{short(each)} is no {kind.__name__}")
    if dtype != torch.bool and flat:
        limits = torch.iinfo(dtype)
        for each in (min(flat), max(flat)):
            if not limits.min <= each <= limits.max:
                raise ValueError(f"{short(each)} is too large")
    return torch.tensor(flat, dtype=dtype)


def _floats(flat: list[Any], dtype: torch.dtype) -> Tensor:
    for each in flat:
        if type(each) not in (int, float, str):
            raise ValueError(f"{short(each)} is no number")
    words = [place for place, each in enumerate(flat) if type(each) is str]
    numbers = [0.0 if type(each) is str else float(each) for each in flat]
    tensor = torch.tensor(numbers, dtype=torch.float64).to(dtype)
    if not bool(tensor.double().isfinite().all()):
        raise ValueError("a number is too large")
    for place in words:
        _put(tensor, place, flat[place])
    return tensor


def _put(tensor: Tensor, place: int, word: str) -> None:
    if word in ("Infinity", "-Infinity", "NaN"):
        tensor[place] = float(word)
        return
    width = tensor.element_size()
    if not word.startswith("NaN:0x") or len(word) != 6 + 2 * width:
        raise ValueError(f"{short(word)} is no number")
    bits = int(word[6:], 16)
    _bits(tensor)[place] = bits if width == 1 or bits < 256**width // 2 else bits - 256**width
    if not math.isnan(tensor[place].item()):
        raise ValueError(f"{short(word)} is not the bits of a NaN")
