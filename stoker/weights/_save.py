"""Saves the weights of a model to a file."""

import gzip
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from errno import EDQUOT, EFBIG, EIO, ENOSPC
from pathlib import Path
from typing import IO, TypeAlias

import torch
from torch import Tensor

from stoker._files import write_atomically
from stoker._select import Models
from stoker.distributed import full_tensor, is_dtensor, join
from stoker.errors import InvalidArgument, PeerFailed, StokerError, WrongType, did_you_mean
from stoker.weights._file import FORMATS
from stoker.weights._header import MAX_TENSORS, Header
from stoker.weights._safetensors import storage_order
from stoker.weights._tensors import (
    PRECISIONS,
    Entry,
    cast,
    checksum,
    dtype_at,
    dtype_name,
    first_names,
    model_tensors,
    tensor_bytes,
)

_DISK_ERRORS = {ENOSPC, EDQUOT, EFBIG, EIO}

Fetch: TypeAlias = Callable[[str], Tensor]  # the whole tensor of a name


def save(
    model: Models,
    path: str | os.PathLike[str],
    *,
    format: str = "safetensors",
    precision: str = "full",
    compress: bool = False,
    metadata: Mapping[str, str] | None = None,
) -> Path:
    """Writes the parameters and buffers of a model to a file and returns its path.

    >>> import tempfile
    >>> from torch import nn
    >>> from stoker.weights import load, save
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = save(nn.Linear(3, 2), f"{folder}/model", precision="half")
    ...     print(path.name, load(nn.Linear(3, 2), path).weight.dtype)
    model.safetensors torch.float32

    Formats are "safetensors", "msgpack" (tensors of less than 4 GiB) and "json" (readable, for small models). The path
    gets the suffix of the format, and ".gz" with `compress`. Precisions are "full" (unchanged), "half" (floats of 16
    bits, integers of at most 16) and "double" (64 bits). Floats are rounded to the nearest value of these bits (1e-9
    becomes 0 in half); a float that would become infinite, or an integer that does not fit, is an error. The file is
    written atomically and replaces an existing one.

    A sharded model (FSDP2, TP) is saved by all its processes together: tensors are gathered one at a time, and rank 0
    writes the same file as for a model that is not sharded.
    """
    _check_choice("format", format, FORMATS)
    _check_choice("precision", precision, PRECISIONS)
    for key, value in (metadata or {}).items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise WrongType(f"metadata maps strings to strings; got {key!r}: {value!r}, so convert it to text first")
        if key in ("stoker", "format"):
            raise InvalidArgument(f"the metadata key {key!r} is reserved for the file format; use another key")
    tensors = model_tensors(model)
    owners = first_names(tensors)
    stored = {name: tensor for name, tensor in tensors.items() if owners[name] == name}
    aliases = {name: owner for name, owner in owners.items() if name != owner}
    if len(stored) > MAX_TENSORS:
        raise InvalidArgument(f"the model has {len(stored):,} tensors; a weights file holds at most {MAX_TENSORS:,}")
    entries = {name: Entry(dtype_at(precision, each.dtype), tuple(each.shape)) for name, each in stored.items()}
    order = storage_order(entries) if format == "safetensors" else list(stored)

    def write(fetch: Fetch) -> Path:
        # A first pass over the tensors computes their checksums, which stand in the header.
        sums = {name: checksum(tensor_bytes(tensor)) for name, tensor in _convert_tensors(fetch, order, precision)}
        dtypes = {
            name: dtype_name(stored[name].dtype)
            for name, entry in entries.items()
            if entry.dtype != stored[name].dtype or entry.dtype == torch.complex128
        }
        crc32 = {name: sums[name] for name in entries}
        header = Header(entries, dict(metadata or {}), precision, aliases, dtypes, crc32)
        target = _target(Path(path), f".{format}", compress)
        pairs = _check_unchanged(sums, _convert_tensors(fetch, order, precision))
        with _explain_path(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(target, lambda file: _write(file, format, compress, header, pairs))
        return target

    return _save_on_rank_zero(stored, write)


def _write(file: IO[bytes], format: str, compress: bool, header: Header, tensors: Iterable[tuple[str, Tensor]]) -> None:
    if not compress:
        FORMATS[format].write(file, header, tensors)
        return
    # Without a name and a time, so that the same weights give the same file.
    with gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=6, mtime=0) as packed:
        FORMATS[format].write(packed, header, tensors)


def _save_on_rank_zero(tensors: Mapping[str, Tensor], write: Callable[[Fetch], Path]) -> Path:
    """Calls `write` on rank 0 if tensors are sharded; the other ranks help to gather each tensor that it fetches.

    If `write` fails on rank 0, the other ranks raise `PeerFailed`. Without sharded tensors every process writes.
    """
    if not any(map(is_dtensor, tensors.values())):
        return write(tensors.__getitem__)
    world = join()
    if not world.is_first:
        while (name := world.broadcast_object(None)) is not None:
            full_tensor(tensors[name])
        path, failure = world.broadcast_object(None)
        if failure is not None:
            raise PeerFailed(f"rank 0 could not save the model: {failure}")
        return Path(path)

    def fetch(name: str) -> Tensor:
        if is_dtensor(tensors[name]):
            world.broadcast_object(name)
        return full_tensor(tensors[name])

    try:
        written = write(fetch)
    except Exception as error:
        world.broadcast_object(None)
        world.broadcast_object((None, f"{type(error).__name__}: {error}"))
        raise
    world.broadcast_object(None)
    world.broadcast_object((str(written), None))
    return written


def _convert_tensors(fetch: Fetch, order: Iterable[str], precision: str) -> Iterator[tuple[str, Tensor]]:
    """Yields the tensors as the file stores them: contiguous, in CPU memory, one at a time."""
    for name in order:
        tensor = fetch(name).detach().cpu()
        made, problem = cast(tensor, dtype_at(precision, tensor.dtype))
        if problem:
            raise InvalidArgument(f"{name!r} cannot be saved with precision={precision!r}: {problem}; use 'full'")
        yield name, made.resolve_conj().resolve_neg().contiguous()


def _check_unchanged(sums: Mapping[str, str], tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Yields the tensors; raises if one has another checksum than before."""
    for name, tensor in tensors:
        if checksum(tensor_bytes(tensor)) != sums[name]:
            raise InvalidArgument(f"{name!r} changed while it was being saved; nothing was written")
        yield name, tensor


def _target(path: Path, suffix: str, compress: bool) -> Path:
    """The path with its suffixes."""
    if not path.name:
        raise InvalidArgument(f"{str(path)!r} is not a file name; expected a path such as 'run/model'")
    name = path.name.removesuffix(".gz") if compress else path.name
    name = name if name.endswith(suffix) else name + suffix
    return path.with_name(f"{name}.gz" if compress else name)


@contextmanager
def _explain_path(path: Path) -> Iterator[None]:
    """Raises `InvalidArgument` for a path that cannot be written; a full or broken disk is an `OSError`."""
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        if isinstance(error, StokerError) or getattr(error, "errno", None) in _DISK_ERRORS:
            raise
        reason = getattr(error, "strerror", None) or error
        if isinstance(error, FileExistsError | NotADirectoryError):
            reason = f"{str(path.parent)!r} is not a directory"
        raise InvalidArgument(f"cannot write {str(path)!r}: {reason}") from error


def _check_choice(what: str, word: str, choices: Iterable[str]) -> None:
    if word not in choices:
        expected = ", ".join(repr(each) for each in choices)
        raise InvalidArgument(f"{what}={word!r}: expected one of {expected}{did_you_mean(str(word), choices)}")
