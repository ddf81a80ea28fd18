"""MessagePack files: a map of `stoker`, `metadata`, `tensors` (dtypes and shapes) and `data` (bytes), by name."""

from collections.abc import Container, Iterable, Iterator
from typing import IO, Any

from torch import Tensor

from stoker._files import reject_duplicates
from stoker.errors import BadFile, InvalidArgument
from stoker.weights._header import MAX_DIMENSIONS, MAX_TENSORS, Header, Reader, parse_header, shorten
from stoker.weights._tensors import DTYPES, dtype_name, tensor_bytes

_MAX_HEADER = 100_000_000  # bytes
_LENGTH_BYTES = {0xC4: 1, 0xC5: 2, 0xC6: 4}  # size of the length field, by the first byte of a `bin`


def write(file: IO[bytes], header: Header, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Writes the header and the tensors, which come in the header's order."""
    pack = _msgpack().Packer()
    for name, entry in header.tensors.items():
        if entry.nbytes >= 2**32:
            raise InvalidArgument(
                f"{name!r} has {entry.nbytes:,} bytes; msgpack holds less than 4 GiB per tensor, use 'safetensors'"
            )
    entries = {
        name: {"dtype": dtype_name(entry.dtype), "shape": list(entry.shape)} for name, entry in header.tensors.items()
    }
    file.write(pack.pack_map_header(4))
    for key, value in (("stoker", header.to_info()), ("metadata", header.metadata), ("tensors", entries)):
        file.write(pack.pack(key) + pack.pack(value))
    file.write(pack.pack("data") + pack.pack_map_header(len(header.tensors)))
    for name, tensor in tensors:
        file.write(pack.pack(name) + b"\xc6" + header.tensors[name].nbytes.to_bytes(4, "big"))
        file.write(tensor_bytes(tensor))


class Contents:
    """An open MessagePack file: its header, and its tensors one at a time."""

    def __init__(self, reader: Reader):
        self._reader = reader
        reader.seek(0)
        # The unpacker reads the header only, whose longest list is a shape: forged lengths cannot claim much memory.
        unpacker = _msgpack().Unpacker(
            reader,
            read_size=1 << 14,
            max_buffer_size=_MAX_HEADER,
            max_array_len=MAX_DIMENSIONS,
            max_map_len=MAX_TENSORS,
            max_bin_len=0,
            max_ext_len=0,
            object_pairs_hook=reject_duplicates,
        )
        try:
            found: dict[str, Any] = {}
            if unpacker.read_map_header() == 4:
                found = reject_duplicates([(unpacker.unpack(), unpacker.unpack()) for _ in range(3)])
            complete = set(found) == {"stoker", "metadata", "tensors"} and unpacker.unpack() == "data"
            if not complete or unpacker.read_map_header() != len(found["tensors"]):
                raise ValueError("expected a map of stoker, metadata, tensors and data")
        except (ValueError, TypeError, _msgpack().UnpackException) as error:
            problem = str(error) or type(error).__name__
            raise BadFile(f"{reader.name} is not a MessagePack file of weights: {problem}") from error
        self._start = unpacker.tell()
        tensors, metadata, info = found["tensors"], found["metadata"], found["stoker"]
        self.header = parse_header(reader.name, tensors, metadata, info or {}, dtypes=DTYPES, keys=("dtype", "shape"))

    def tensors(self, wanted: Container[str]) -> Iterator[tuple[str, Tensor]]:
        """The wanted tensors, in the order in which they are stored."""
        self._reader.seek(self._start)
        for name, entry in self.header.tensors.items():
            self._read_start(name, entry.nbytes)
            if name in wanted:
                yield name, self._reader.read_tensor(entry)
            else:
                self._reader.skip(entry.nbytes)
        self._reader.check_end()

    def _read_start(self, name: str, count: int) -> None:
        """Reads a tensor's name and length without the unpacker, which would hold several copies of the bytes."""
        key = _msgpack().Packer().pack(name)
        same = self._reader.read_exactly(len(key)) == key
        width = _LENGTH_BYTES.get(self._reader.read_exactly(1)[0], 0)
        if not same or not width or int.from_bytes(self._reader.read_exactly(width), "big") != count:
            raise BadFile(f"{self._reader.name}: expected the tensor {shorten(name)} of {count:,} bytes, found others")


def _msgpack() -> Any:
    """The msgpack package, imported at first use because that takes as long as importing all of stoker."""
    import msgpack

    return msgpack
