"""Loads the weights of a file into a model."""

import hashlib
import os
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from stoker._select import Models, Selector, select_names
from stoker.distributed import copy_into, to_local
from stoker.errors import InvalidArgument, StateMismatch, WrongType, did_you_mean
from stoker.weights._file import Contents, open_weights, read_checked
from stoker.weights._header import Entry, Header, dtype_name
from stoker.weights._model_tensors import check_layout, first_names, model_tensors
from stoker.weights._precision import cast
from stoker.weights._reader import tensor_bytes
from stoker.weights._rename import Rename, rename_all

M = TypeVar("M", bound=Models)

_MAX_LISTED = 20  # names in each list of an error


def load(
    model: M,
    source: str | os.PathLike[str] | Mapping[str, Tensor],
    *,
    strict: bool = True,
    only: Selector | None = None,
    rename: Rename | None = None,
    limit: int | None = None,
) -> M:
    """Loads the weights of a file into a model, in place, and returns the model.

    >>> import tempfile
    >>> from torch import nn
    >>> from stoker.weights import load, save
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = save(nn.ModuleDict({"body": nn.Linear(2, 2), "head": nn.Linear(2, 1)}), f"{folder}/old")
    ...     model = nn.ModuleDict({"encoder": nn.Linear(2, 2), "head": nn.Linear(2, 5)})
    ...     print(load(model, path, only="encoder", rename={"body": "encoder"}) is model)
    True

    Format, precision and gzip are recognised by content; numbers are cast to the model's dtype and moved to its
    device. Everything is checked before anything is changed: missing and unexpected names (which `strict=False`
    allows), different shapes, numbers that the model's dtype cannot hold, damaged files. `only` selects a part of the
    model (by name, glob, module or parameter); the rest of the file is then ignored. `rename` maps names in the file
    to names in the model (`{"body": "encoder", "*.gamma": "*.weight", "module": "", "old": None}`, or a function).
    `source` may also be a mapping of tensors, such as `load_torch` returns.

    For a sharded model (FSDP2, TP) every process loads the same file and keeps its part of each tensor.

    A file cannot run code. `limit` is the number of bytes that a gzipped file may unpack to; the default is what the
    model could need (64 bytes per number, 4 KiB per name, and 1 MiB).
    """
    tensors = model_tensors(model)
    for name, tensor in tensors.items():
        if any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
            raise InvalidArgument(f"{name!r} is an expanded tensor that shares memory; clone() it before loading")
    if limit is None:
        limit = (1 << 20) + sum(64 * tensor.numel() + 4096 for tensor in tensors.values())
    with _open_source(source, tensors, limit) as (file, contents):
        header = contents.header
        stored = {**{name: name for name in header.tensors}, **header.aliases}
        offered = {new: stored[name] for name, new in rename_all(stored, rename).items()}
        wanted = set(tensors) if only is None else _select(only, tensors, model)
        plan = _match(tensors, wanted, offered, header.tensors, strict=strict, partial=only is not None, file=file)
        _check_values(file, contents, plan)
        with torch.no_grad():
            for name, tensor in read_checked(file, contents, plan.targets):
                for place, target in plan.targets[name].items():
                    copy_into(place, target, tensor.to(target.dtype))  # cast on the CPU, as checked, then moved
    return model


@contextmanager
def _open_source(source: object, tensors: Mapping[str, Tensor], limit: int) -> Iterator[tuple[str, Contents]]:
    if isinstance(source, Mapping):
        yield "the mapping", _MappingContents(source, tensors)
    elif isinstance(source, str | os.PathLike):
        with open_weights(Path(source), limit) as (reader, _, contents):
            yield reader.name, contents
    else:
        raise WrongType(f"expected a path, or a mapping of tensors; got {type(source).__name__}")


class _MappingContents:
    """Tensors in memory. Those that share memory with the model are copied, because loading overwrites them."""

    def __init__(self, source: Mapping[str, Tensor], targets: Mapping[str, Tensor]):
        for name, tensor in source.items():
            if not isinstance(name, str) or not isinstance(tensor, Tensor):
                raise WrongType(f"expected tensors by name; got {name!r}: a {type(tensor).__name__}")
            check_layout(name, tensor)
        own = {to_local(tensor).untyped_storage().data_ptr() for tensor in targets.values()}
        self._tensors = {
            name: tensor.detach().clone() if tensor.untyped_storage().data_ptr() in own else tensor.detach()
            for name, tensor in source.items()
        }
        self.header = Header({name: Entry(tensor.dtype, tuple(tensor.shape)) for name, tensor in source.items()})

    def tensors(self, wanted: Container[str]) -> Iterator[tuple[str, Tensor]]:
        return ((name, tensor.cpu()) for name, tensor in self._tensors.items() if name in wanted)


def _select(selector: Selector, tensors: dict[str, Tensor], model: Models) -> set[str]:
    """The names that a selector chooses, including buffers."""
    if isinstance(selector, nn.Module):
        inside = {id(tensor) for tensor in model_tensors(selector).values()}
        chosen = {name for name, tensor in tensors.items() if id(tensor) in inside}
        return chosen or select_names(selector, tensors, model)  # which raises the error
    if isinstance(selector, Sequence) and not isinstance(selector, str):
        return set().union(*(_select(each, tensors, model) for each in selector))
    return select_names(selector, tensors, model)


@dataclass(frozen=True)
class _Plan:
    """Which stored tensor is copied where."""

    targets: dict[str, dict[str, Tensor]] = field(default_factory=dict)  # stored name -> model name -> tensor
    twins: list[list[str]] = field(default_factory=list)  # stored names of one tied tensor: they have to be equal


def _match(
    tensors: dict[str, Tensor],
    wanted: set[str],
    offered: Mapping[str, str],
    entries: Mapping[str, Entry],
    *,
    strict: bool,
    partial: bool,
    file: str,
) -> _Plan:
    """Finds the stored tensor for each tensor of the model; `offered` maps the model's names to stored names."""
    groups: dict[str, list[str]] = {}
    for name, owner in first_names(tensors).items():
        groups.setdefault(owner, []).append(name)
    plan = _Plan()
    missing: list[str] = []
    shapes: list[str] = []
    for owner, names in groups.items():
        if not wanted.intersection(names):
            continue
        sources = list(dict.fromkeys(offered[name] for name in names if name in offered))
        if not sources:
            missing.append(owner)
            continue
        target = tensors[owner]
        for source in sources:
            plan.targets.setdefault(source, {})
            if entries[source].shape != tuple(target.shape):
                found = list(entries[source].shape)
                shapes.append(f"{owner!r} is {found} in the file, {list(target.shape)} in the model")
        plan.targets[sources[0]][owner] = target
        if len(sources) > 1:
            plan.twins.append(sources)
    extra = [name for name in offered if name not in tensors]
    unexpected = [] if partial else extra
    if shapes or (strict and (missing or unexpected)) or (wanted and not plan.targets):
        if not strict and plan.targets:  # then only the shapes are wrong
            missing, unexpected = [], []
        raise StateMismatch(_describe_mismatch(file, missing, unexpected, shapes, extra, strict=strict))
    return plan


def _describe_mismatch(
    file: str, missing: list[str], unexpected: list[str], shapes: list[str], extra: list[str], *, strict: bool
) -> str:
    lines = [f"{file} does not match the model"]
    if missing:
        hints = [did_you_mean(name, extra).removeprefix("; ") for name in missing[:_MAX_LISTED]]
        texts = [f"{name!r} ({hint})" if hint else repr(name) for name, hint in zip(missing, hints, strict=False)]
        lines.append(f"not in the file: {_list(texts, len(missing))}")
    if unexpected:
        lines.append(f"not in the model: {_list(list(map(repr, unexpected[:_MAX_LISTED])), len(unexpected))}")
    if shapes:
        lines.append(f"different shape: {_list(shapes[:_MAX_LISTED], len(shapes))}")
    if missing or unexpected:
        lines.append(_suggest(missing, unexpected, strict=strict))
    if shapes and not strict:
        lines.append("strict=False allows missing and unexpected names, but not other shapes; only= loads a part")
    return "\n  ".join(lines)


def _list(texts: list[str], count: int) -> str:
    return ", ".join(texts) + (f", and {count - _MAX_LISTED} more" if count > _MAX_LISTED else "")


def _suggest(missing: list[str], unexpected: list[str], *, strict: bool) -> str:
    prefixes = {name.partition(".")[0] for name in unexpected}
    if missing and len(prefixes) == 1 and {name.partition(".")[2] for name in unexpected} >= set(missing):
        return f"the names match with rename={{{prefixes.pop()!r}: ''}}"
    if not strict:
        return "there is nothing to load; rename= maps the file's names to the model's"
    return (
        "rename= maps the file's names to the model's, only= loads a part, "
        "strict=False ignores missing and unexpected names"
    )


def _check_values(file: str, contents: Contents, plan: _Plan) -> None:
    """Reads every tensor once and checks it, because a copy that fails halfway cannot be undone."""
    digests: dict[str, bytes] = {}
    twins = {name for names in plan.twins for name in names}
    for name, tensor in read_checked(file, contents, plan.targets):
        for place, target in plan.targets[name].items():
            _, problem = cast(tensor, target.dtype)
            if problem:
                raise StateMismatch(
                    f"{file}: {name!r} is {dtype_name(tensor.dtype)}, {place!r} in the model is "
                    f"{dtype_name(target.dtype)}, and {problem}"
                )
        if name in twins:
            digests[name] = hashlib.sha256(tensor_bytes(tensor.contiguous())).digest()
    for first, *others in plan.twins:
        for other in others:
            if digests[first] != digests[other]:
                raise StateMismatch(
                    f"{file}: {first!r} and {other!r} differ, but are one tied tensor in the model; "
                    f"choose with rename={{{other!r}: None}}"
                )
