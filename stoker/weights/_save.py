"""A model's weights to a file."""

import gzip
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from stoker._select import Models
from stoker.errors import InvalidArgument, WrongType, did_you_mean
from stoker.weights import _msgpack
from stoker.weights._atomic import write_atomically
from stoker.weights._cast import PRECISIONS, at_precision, cast
from stoker.weights._file import FORMATS
from stoker.weights._head import Entry, Head, Seal, checksum, dtype_name
from stoker.weights._safetensors import RESERVED, storage_order
from stoker.weights._source import raw
from stoker.weights._state import owners, state
from stoker.weights._together import Fetch, save_together


def save(
    model: Models,
    path: str | os.PathLike[str],
    *,
    format: str = "safetensors",
    precision: str = "full",
    compress: bool = False,
    metadata: Mapping[str, str] | None = None,
) -> Path:
    """Writes a model's parameters and buffers to a file, and returns where that is.

    >>> import tempfile
    >>> from torch import nn
    >>> from stoker.weights import load, save
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = save(nn.Linear(3, 2), f"{folder}/model", precision="half")
    ...     print(path.name, load(nn.Linear(3, 2), path).weight.dtype)
    model.safetensors torch.float32

    Formats are "safetensors", "msgpack" (a tensor of less than 4 GiB each) and "json" (for people, and small models);
    the path gets the format's suffix, and ".gz" where it is compressed. Precisions are "full" (as is), "half" (floats
    of 16 bits, integers of at most 16) and "double" (64 bits); a float becomes the nearest that these bits can
    hold (1e-9 becomes 0 in half), and one that is too large for them is an error, never an infinity; integers are exact
    or an error. The file appears whole or not at all; one that was there before is replaced.

    A sharded model (FSDP2, TP) is saved by all of its processes at once: its tensors are gathered one by one, and rank
    0 writes the same file as of a model that is not sharded.
    """
    _check_word("format", format, FORMATS)
    _check_word("precision", precision, PRECISIONS)
    places = state(model)
    names = owners(places)
    stored = {name: places[name] for name in places if names[name] == name}
    order = storage_order(_entries(stored, precision)) if format == "safetensors" else list(stored)
    aliases = {name: owner for name, owner in names.items() if name != owner}

    def write(fetch: Fetch) -> Path:
        head = _head(stored, precision, metadata, aliases, _converted(fetch, order, precision))
        _check_head(head, format)
        target = _with_suffix(Path(path), f".{format}", compress)
        tensors = _rewritten(head, _converted(fetch, order, precision))
        write_atomically(target, lambda file: _write(file, format, compress, head, tensors))
        return target

    return save_together(stored, write)


def _write(file: IO[bytes], format: str, compress: bool, head: Head, tensors: Iterable[tuple[str, Tensor]]) -> None:
    if not compress:
        FORMATS[format].write(file, head, tensors)
        return
    # No name and no time inside, so that the same weights give the same file.
    with gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=6, mtime=0) as packed:
        FORMATS[format].write(packed, head, tensors)


def _check_word(what: str, word: str, known: Iterable[str]) -> None:
    if word not in known:
        expected = ", ".join(repr(each) for each in known)
        raise InvalidArgument(f"{what}={word!r}: expected one of {expected}{did_you_mean(str(word), known)}")


def _with_suffix(path: Path, suffix: str, compress: bool) -> Path:
    if not path.name:
        raise InvalidArgument(f"{str(path)!r} names no file; expected a path like 'run/model'")
    name = path.name.removesuffix(".gz") if compress else path.name
    name = name if name.endswith(suffix) else name + suffix
    return path.with_name(f"{name}.gz" if compress else name)


def _entries(stored: Mapping[str, Tensor], precision: str) -> dict[str, Entry]:
    return {name: Entry(at_precision(each.dtype, precision), tuple(each.shape)) for name, each in stored.items()}


def _converted(fetch: Fetch, order: Iterable[str], precision: str) -> Iterator[tuple[str, Tensor]]:
    """The tensors as the file will hold them: contiguous, in CPU memory, one at a time."""
    for name in order:
        tensor = fetch(name).detach().cpu()
        made, problem = cast(tensor, at_precision(tensor.dtype, precision))
        if problem:
            raise InvalidArgument(f"{name!r} can't be saved with precision={precision!r}: {problem}; use 'full'")
        yield name, made.resolve_conj().resolve_neg().contiguous()


def _head(
    stored: Mapping[str, Tensor],
    precision: str,
    metadata: Mapping[str, str] | None,
    aliases: dict[str, str],
    tensors: Iterable[tuple[str, Tensor]],
) -> Head:
    """The head, with every tensor's checksum: a first walk over all of them, before anything is written."""
    entries = _entries(stored, precision)
    changed = {
        name: dtype_name(stored[name].dtype)
        for name, entry in entries.items()
        if entry.dtype != stored[name].dtype or entry.dtype == torch.complex128
    }
    sums = {name: checksum(raw(tensor)) for name, tensor in tensors}
    return Head(
        entries, dict(metadata or {}), Seal(precision, aliases, changed, {name: sums[name] for name in entries})
    )


def _rewritten(head: Head, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """The same tensors once more, making sure that they are the same."""
    assert head.seal is not None
    for name, tensor in tensors:
        if checksum(raw(tensor)) != head.seal.crc32[name]:
            raise InvalidArgument(f"{name!r} changed while it was being saved; nothing was written")
        yield name, tensor


def _check_head(head: Head, format: str) -> None:
    for key, value in head.metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise WrongType(f"metadata is strings by strings; got {key!r}: {value!r}, so turn it into text first")
        if key.startswith("stoker") or key in RESERVED:
            raise InvalidArgument(f"the metadata key {key!r} is taken by the file itself; use another word")
    for text in (*head.tensors, *head.metadata, *head.metadata.values()):
        if not _is_text(text):
            raise InvalidArgument(f"{text!r} can't be written as text (UTF-8)")
    if format == "safetensors" and "__metadata__" in head.tensors:
        raise InvalidArgument(
            "a safetensors file can't hold a tensor called '__metadata__'; use another format or name"
        )
    for name, entry in head.tensors.items():
        if format == "msgpack" and entry.bytes > _msgpack.LARGEST_TENSOR:
            raise InvalidArgument(
                f"{name!r} has {entry.bytes:,} bytes; msgpack holds less than 4 GiB each, use 'safetensors'"
            )


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
