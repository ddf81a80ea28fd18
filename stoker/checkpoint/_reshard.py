"""Tensors that were sharded over some ranks, out of their files for others: whole, or the part that is needed here."""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stoker.distributed import from_local as with_local
from stoker.distributed import local_region as region_of
from stoker.distributed import to_local as local_of
from stoker.errors import BadFile

Region = tuple[slice, ...]


class _Chunk(NamedTuple):
    """A part of a tensor: where it stands in the whole, and the open file that has it."""

    region: Region
    piece: Any  # of safetensors: it is read where it is indexed

    @property
    def numbers(self) -> int:
        return prod(each.stop - each.start for each in self.region)


def read_shards(folder: Path, files: list[str], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Every tensor of these files by "part/name", in CPU memory, sharded as the one that `like` has for it.

    Of such a one only what belongs here is read; where there is none, or one of another shape, it is all of it.
    """
    chunks: dict[str, dict[str, _Chunk]] = {}
    with _opened(folder, files) as opened:
        for file, found in opened.items():
            for key, chunk in _chunks(folder / file, found):
                chunks.setdefault(key, {})[repr(chunk.region)] = chunk  # copies of one part are one
        return {key: _assembled(folder, key, list(own.values()), like.get(key)) for key, own in chunks.items()}


@contextmanager
def _opened(folder: Path, files: list[str]) -> Iterator[Mapping[str, Any]]:
    from safetensors import SafetensorError, safe_open

    with ExitStack() as stack:
        try:
            yield {file: stack.enter_context(safe_open(folder / file, framework="pt")) for file in files}
        except SafetensorError as error:
            raise BadFile(f"{folder} can't be read: {error}") from error


def _chunks(where: Path, found: Any) -> Iterator[tuple[str, _Chunk]]:
    try:
        starts = json.loads(found.metadata()["DCP_SHARDING_INFO"])
        for key in found.keys():  # noqa: SIM118  it is no mapping
            piece, start = found.get_slice(key), starts[key]["saved_offsets"]
            places = [slice(int(at), int(at) + size) for at, size in zip(start, piece.get_shape(), strict=True)]
            yield key, _Chunk(tuple(places), piece)
    except (KeyError, TypeError, ValueError) as error:
        raise BadFile(f"{where} doesn't say where its tensors belong: {error!r}") from error


def _assembled(folder: Path, key: str, chunks: list[_Chunk], like: Tensor | None) -> Tensor:
    dimensions = len(chunks[0].region)
    if any(len(chunk.region) != dimensions for chunk in chunks):
        raise BadFile(f"{folder}: the parts of {key!r} are not of one tensor")
    shape = torch.Size(max(chunk.region[each].stop for chunk in chunks) for each in range(dimensions))
    if sum(chunk.numbers for chunk in chunks) != shape.numel():
        raise BadFile(f"{folder}: the parts of {key!r} don't make a whole tensor {list(shape)}")
    dtype = chunks[0].piece[(slice(0, 0),) * dimensions].dtype  # which of one without dimensions reads the number
    if like is None or like.shape != shape:
        return _read(chunks, tuple(slice(0, size) for size in shape), torch.empty(shape, dtype=dtype))
    return with_local(_read(chunks, region_of(key, like), torch.empty(local_of(like).shape, dtype=dtype)), like)


def _read(chunks: list[_Chunk], region: Region, into: Tensor) -> Tensor:
    """Fills a tensor, which is a region of a whole one, with what the chunks have of it."""
    for chunk in chunks:
        both = [
            slice(max(mine.start, its.start), min(mine.stop, its.stop))
            for mine, its in zip(region, chunk.region, strict=True)
        ]
        if all(each.start < each.stop for each in both):
            into[_within(both, region)] = chunk.piece[_within(both, chunk.region)]
    return into


def _within(places: list[slice], region: Region) -> Region:
    """The same places, counted from where a region starts."""
    return tuple(slice(each.start - own.start, each.stop - own.start) for each, own in zip(places, region, strict=True))
