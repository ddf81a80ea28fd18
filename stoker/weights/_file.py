"""Which of the formats a file is, going by its content."""

from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Protocol

from torch import Tensor

from stoker.errors import BadFile
from stoker.weights import _json, _msgpack, _safetensors
from stoker.weights._head import Head, checksum
from stoker.weights._source import Source, open_source, raw

FORMATS: dict[str, ModuleType] = {"safetensors": _safetensors, "msgpack": _msgpack, "json": _json}


class Contents(Protocol):
    """What can be loaded: a head, and tensors that can be asked for more than once."""

    head: Head

    def tensors(self, wanted: Container[str], /) -> Iterator[tuple[str, Tensor]]:
        """The wanted tensors one at a time, in an order of its own."""
        ...


@contextmanager
def open_weights(path: Path, limit: int) -> Iterator[tuple[Source, str, Contents]]:
    """Opens a weights file and reads its head; gives the file, its format, and what is in it."""
    with open_source(path, limit) as source:
        format = _detect(source)
        yield source, format, FORMATS[format].Contents(source)


def checked(file: str, contents: Contents, wanted: Container[str]) -> Iterator[tuple[str, Tensor]]:
    """The wanted tensors, each compared with its checksum where the file has them."""
    seal = contents.head.seal
    for name, tensor in contents.tensors(wanted):
        if seal is not None and checksum(raw(tensor)) != seal.crc32[name]:
            raise BadFile(f"{file} is damaged: the numbers of {name!r} are not those that were written (checksum)")
        yield name, tensor


def _detect(source: Source) -> str:
    start = source.read(64)
    if not start:
        raise BadFile(f"{source.name} is empty")
    if start[:4] == b"PK\x03\x04" or (start[0] == 0x80 and start[1:2] in (b"\x01", b"\x02", b"\x03", b"\x04", b"\x05")):
        raise BadFile(
            f"{source.name} is a file of torch.save (a pickle, which could run code when read); "
            "stoker.load_torch reads the tensors of one safely, and load takes what it gives"
        )
    if start.startswith(b"version https://git-lfs"):
        raise BadFile(f"{source.name} is a Git LFS pointer, not the weights themselves; fetch them with git lfs pull")
    if len(start) >= 9 and start[8:9] == b"{" and start[5:8] == b"\0\0\0":
        return "safetensors"
    if start.lstrip()[:1] == b"{":
        return "json"
    if start[0] in (0x84, 0xDE, 0xDF):  # a MessagePack map of four, or of a number that follows
        return "msgpack"
    raise BadFile(f"{source.name} is no weights file: it starts with {start[:16]!r}; expected {', '.join(FORMATS)}")
