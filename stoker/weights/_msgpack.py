"""MessagePack: one map of `stoker`, `metadata`, `tensors` (dtype and shape by name) and `data` (bytes by name)."""

from collections.abc import Container, Iterable, Iterator
from typing import IO, Any

from torch import Tensor

from stoker.errors import BadFile
from stoker.weights._head import (
    DTYPES,
    MOST_DIMENSIONS,
    Head,
    check_head,
    dtype_name,
    read_entry,
    read_seal,
    read_texts,
    short,
    unique,
)
from stoker.weights._source import Source, blank, raw

LARGEST_TENSOR = 2**32 - 1  # bytes; what a length of 32 bits can say

_LARGEST_HEADER = 100_000_000  # bytes
_MOST_TENSORS = 1_000_000
_LENGTHS = {0xC4: 1, 0xC5: 2, 0xC6: 4}  # the width of a length, by the first byte of a `bin`


def write(file: IO[bytes], head: Head, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Writes the head, and then the tensors, which have to come in the head's order."""
    pack = _msgpack().Packer()
    entries = {
        name: {"dtype": dtype_name(entry.dtype), "shape": list(entry.shape)} for name, entry in head.tensors.items()
    }
    file.write(pack.pack_map_header(4))
    for key, value in (("stoker", head.sealed()), ("metadata", head.metadata), ("tensors", entries)):
        file.write(pack.pack(key) + pack.pack(value))
    file.write(pack.pack("data") + pack.pack_map_header(len(head.tensors)))
    for name, tensor in tensors:
        file.write(pack.pack(name) + b"\xc6" + head.tensors[name].bytes.to_bytes(4, "big"))
        file.write(raw(tensor))


class Contents:
    """An open MessagePack file: its head, and its tensors one at a time."""

    def __init__(self, source: Source):
        self._source = source
        source.seek(0)
        unpacker = _unpacker(source)
        try:
            found: dict[str, Any] = {}
            if unpacker.read_map_header() == 4:
                found = unique([(unpacker.unpack(), unpacker.unpack()) for _ in range(3)])
            complete = set(found) == {"stoker", "metadata", "tensors"} and unpacker.unpack() == "data"
            if not complete or unpacker.read_map_header() != len(found["tensors"]):
                raise ValueError("it is no map of stoker, metadata, tensors and data")
        except (ValueError, TypeError, _msgpack().UnpackException) as error:
            raise BadFile(f"{source.name} is no MessagePack file of weights: {_said(error)}") from error
        self._start = unpacker.tell()
        self.head = _head(source.name, found)

    def tensors(self, wanted: Container[str]) -> Iterator[tuple[str, Tensor]]:
        """The wanted tensors, in the order in which they are stored."""
        source = self._source
        source.seek(self._start)
        for name, entry in self.head.tensors.items():
            self._open_tensor(name, entry.bytes)
            if name not in wanted:
                source.skip(entry.bytes)
                continue
            tensor, memory = blank(entry.shape, entry.dtype)
            source.fill(memory)
            yield name, tensor
        source.finish()

    def _open_tensor(self, name: str, count: int) -> None:
        """Reads a name and the start of its bytes, by hand: an unpacker would hold all of them, several times."""
        source, key = self._source, _msgpack().Packer().pack(name)
        same = source.exactly(len(key)) == key
        width = _LENGTHS.get(source.exactly(1)[0], 0)
        if not same or not width or int.from_bytes(source.exactly(width), "big") != count:
            raise BadFile(f"{source.name}: where the tensor {short(name)} should be is something else")


def _msgpack() -> Any:
    """The library, from when it is used: it takes as long to load as all of stoker."""
    import msgpack

    return msgpack


def _unpacker(source: Source) -> Any:
    """For the head only, where the only lists are shapes; so nothing forged can ask for much memory."""
    return _msgpack().Unpacker(
        source,
        read_size=1 << 14,
        max_buffer_size=_LARGEST_HEADER,
        max_array_len=MOST_DIMENSIONS,
        max_map_len=_MOST_TENSORS,
        max_bin_len=0,
        max_ext_len=0,
        object_pairs_hook=unique,
    )


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__


def _head(file: str, found: dict[str, Any]) -> Head:
    if not isinstance(found["tensors"], dict):
        raise BadFile(f"{file}: its list of tensors is {short(found['tensors'])}")
    tensors = {}
    for name, entry in found["tensors"].items():
        if type(name) is not str or not isinstance(entry, dict) or set(entry) != {"dtype", "shape"}:
            raise BadFile(f"{file}: the tensor {short(name)} is described by {short(entry)}; expected dtype and shape")
        dtype = entry["dtype"]
        known = DTYPES.get(dtype) if isinstance(dtype, str) else None
        tensors[name] = read_entry(file, name, known, dtype, entry["shape"])
    seal = read_seal(file, found["stoker"], tensors)
    head = Head(tensors, read_texts(file, "its metadata", found["metadata"]), seal)
    return check_head(file, head, found["stoker"]["head"])
