"""A file's weights into a model."""

import hashlib
import os
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from stoker._select import Models, Selector
from stoker.errors import InvalidArgument, StateMismatch, WrongType
from stoker.weights._cast import cast
from stoker.weights._file import Contents, checked, open_weights
from stoker.weights._head import Entry, Head, dtype_name
from stoker.weights._match import Fit, match
from stoker.weights._rename import Rename, renamed
from stoker.weights._sharded import fill, local_of
from stoker.weights._source import raw
from stoker.weights._state import refuse_odd, state

M = TypeVar("M", bound=Models)


def load(
    model: M,
    source: str | os.PathLike[str] | Mapping[str, Tensor],
    *,
    strict: bool = True,
    only: Selector | None = None,
    rename: Rename | None = None,
    limit: int | None = None,
) -> M:
    """Fills a model with the weights of a file, in place, and returns it.

    >>> import tempfile
    >>> from torch import nn
    >>> from stoker.weights import load, save
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = save(nn.ModuleDict({"body": nn.Linear(2, 2), "head": nn.Linear(2, 1)}), f"{folder}/old")
    ...     model = nn.ModuleDict({"encoder": nn.Linear(2, 2), "head": nn.Linear(2, 5)})
    ...     print(load(model, path, only="encoder", rename={"body": "encoder"}) is model)
    True

    The format, the precision and gzip are found from the content; numbers are cast to the model's dtype and go to its
    device. Everything is checked before anything is changed: a name that is missing or unexpected (`strict=False`
    allows these, and only these), a shape that differs, a number that the model's dtype can't hold, a damaged file.
    `only` chooses places in the model (by name, glob, module or parameter), and the rest of the file is then no
    concern; `rename` maps names in the file to names in the model (`{"body": "encoder", "*.gamma": "*.weight",
    "module": "", "old": None}`, or a function). `source` may also be a mapping of tensors, as `load_torch` gives.

    Into a sharded model (FSDP2, TP) every process loads the same file, and keeps its part of each tensor.

    No file can run code. `limit` is the most bytes that a gzipped file may unpack to; by default that is what the
    model could need (64 for each of its numbers, 4 KiB for each name, and a MiB).
    """
    places = state(model)
    _refuse_overlapping(places)
    if limit is None:
        limit = (1 << 20) + sum(64 * tensor.numel() + 4096 for tensor in places.values())
    with _opened(source, places, limit) as (file, contents):
        stored = {**{name: name for name in contents.head.tensors}, **_aliases(contents.head)}
        offered = {new: stored[name] for name, new in renamed(stored, rename).items()}
        fit = match(model, places, offered, contents.head.tensors, strict=strict, only=only, file=file)
        _check(file, contents, fit)
        _copy(file, contents, fit)
    return model


@contextmanager
def _opened(source: object, places: Mapping[str, Tensor], limit: int) -> Iterator[tuple[str, Contents]]:
    if isinstance(source, Mapping):
        yield "the mapping", _Given(source, places)
    elif isinstance(source, str | os.PathLike):
        with open_weights(Path(source), limit) as (opened, _, contents):
            yield opened.name, contents
    else:
        raise WrongType(f"expected a path, or a mapping of tensors; got {type(source).__name__}")


class _Given:
    """Tensors in memory; those that are the model's own are copied, as they change while it is filled."""

    def __init__(self, tensors: Mapping[str, Tensor], places: Mapping[str, Tensor]):
        for name, tensor in tensors.items():
            if not isinstance(name, str) or not isinstance(tensor, Tensor):
                raise WrongType(f"expected tensors by name; got {name!r}: a {type(tensor).__name__}")
            refuse_odd(name, tensor)
        own = {local_of(tensor).untyped_storage().data_ptr() for tensor in places.values()}
        self._tensors = {
            name: tensor.detach().clone() if tensor.untyped_storage().data_ptr() in own else tensor.detach()
            for name, tensor in tensors.items()
        }
        self.head = Head({name: Entry(tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()})

    def tensors(self, wanted: Container[str]) -> Iterator[tuple[str, Tensor]]:
        return ((name, tensor.cpu()) for name, tensor in self._tensors.items() if name in wanted)


def _aliases(head: Head) -> dict[str, str]:
    return head.seal.aliases if head.seal else {}


def _refuse_overlapping(places: Mapping[str, Tensor]) -> None:
    for name, tensor in places.items():
        if any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
            raise InvalidArgument(f"{name!r} holds one number in many places (expand); clone() it before loading")


def _check(file: str, contents: Contents, fit: Fit) -> None:
    """Reads every tensor once, one at a time, and keeps none: a copy that stopped halfway can't be taken back."""
    digests: dict[str, bytes] = {}
    twins = {name for names in fit.twins for name in names}
    for name, tensor in checked(file, contents, fit.targets):
        for place, target in fit.targets[name].items():
            _, problem = cast(tensor, target.dtype)
            if problem:
                raise StateMismatch(
                    f"{file}: {name!r} is {dtype_name(tensor.dtype)}, {place!r} in the model is "
                    f"{dtype_name(target.dtype)}, and {problem}"
                )
        if name in twins:
            digests[name] = hashlib.sha256(raw(tensor.contiguous())).digest()
    for first, *others in fit.twins:
        for other in others:
            if digests[first] != digests[other]:
                raise StateMismatch(
                    f"{file}: {first!r} and {other!r} differ, but are one tied tensor in the model; "
                    f"choose with rename={{{other!r}: None}}"
                )


def _copy(file: str, contents: Contents, fit: Fit) -> None:
    with torch.no_grad():
        for name, tensor in checked(file, contents, fit.targets):
            for place, target in fit.targets[name].items():
                fill(place, target, tensor.to(target.dtype))  # cast as it was checked, then moved
