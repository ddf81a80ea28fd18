"""Loads the weights of a file into a model."""

import os
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from stoker._select import Models, Selector, select_names
from stoker.distributed import copy_into, to_local
from stoker.errors import InvalidArgument, NoSuchParameter, StateMismatch, WrongType, did_you_mean
from stoker.weights._file import Contents, open_weights, read_checked
from stoker.weights._header import Header
from stoker.weights._tensors import (
    Entry,
    cast,
    check_layout,
    checksum,
    dtype_name,
    first_names,
    model_tensors,
    tensor_bytes,
)

M = TypeVar("M", bound=Models)
Rename = Mapping[str, str | None] | Callable[[str], str | None]
Targets = dict[str, dict[str, Tensor]]  # stored name -> name in the model -> tensor that it is copied into

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

    A file cannot run code. `limit` is the number of bytes that a gzipped file may unpack to, and a JSON file may have;
    the default is what the model could need (64 bytes per number, 4 KiB per name, and 1 MiB).
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
        offered = {new: stored[name] for name, new in _rename_all(stored, rename).items()}
        wanted = set(tensors) if only is None else _select(only, tensors, model)
        targets, ties = _match(
            tensors, wanted, offered, header.tensors, strict=strict, partial=only is not None, file=file
        )
        _check_values(file, contents, targets, ties)
        with torch.no_grad():
            for name, tensor in read_checked(file, contents, targets):
                for place, target in targets[name].items():
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


def _match(
    tensors: dict[str, Tensor],
    wanted: set[str],
    offered: Mapping[str, str],
    entries: Mapping[str, Entry],
    *,
    strict: bool,
    partial: bool,
    file: str,
) -> tuple[Targets, list[list[str]]]:
    """Finds the stored tensor for each tensor of the model; `offered` maps the model's names to stored names.

    Also returns the lists of stored names that are one tied tensor in the model, which have to be equal.
    """
    groups: dict[str, list[str]] = {}
    for name, owner in first_names(tensors).items():
        groups.setdefault(owner, []).append(name)
    targets: Targets = {}
    ties: list[list[str]] = []
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
            targets.setdefault(source, {})
            if entries[source].shape != tuple(target.shape):
                found = list(entries[source].shape)
                shapes.append(f"{owner!r} is {found} in the file, {list(target.shape)} in the model")
        targets[sources[0]][owner] = target
        if len(sources) > 1:
            ties.append(sources)
    extra = [name for name in offered if name not in tensors]
    unexpected = [] if partial else extra
    if shapes or (strict and (missing or unexpected)) or (wanted and not targets):
        if not strict and targets:  # then only the shapes are wrong
            missing, unexpected = [], []
        raise StateMismatch(_describe_mismatch(file, missing, unexpected, shapes, extra, strict=strict))
    return targets, ties


def _describe_mismatch(
    file: str, missing: list[str], unexpected: list[str], shapes: list[str], extra: list[str], *, strict: bool
) -> str:
    lines = [f"{file} does not match the model"]
    if missing:
        hints = [(name, did_you_mean(name, extra).removeprefix("; ")) for name in missing[:_MAX_LISTED]]
        texts = [f"{name!r} ({hint})" if hint else repr(name) for name, hint in hints]
        lines.append(f"not in the file: {_list(texts, len(missing))}")
    if unexpected:
        lines.append(f"not in the model: {_list(list(map(repr, unexpected)), len(unexpected))}")
    if shapes:
        lines.append(f"different shape: {_list(shapes, len(shapes))}")
    prefixes = {name.partition(".")[0] for name in unexpected}
    if missing and len(prefixes) == 1 and {name.partition(".")[2] for name in unexpected} >= set(missing):
        lines.append(f"the names match with rename={{{prefixes.pop()!r}: ''}}")
    elif strict and (missing or unexpected):
        lines.append(
            "rename= maps the file's names to the model's, only= loads a part, "
            "strict=False ignores missing and unexpected names"
        )
    elif shapes:
        lines.append("strict=False allows missing and unexpected names, but not other shapes; only= loads a part")
    else:
        lines.append("there is nothing to load; rename= maps the file's names to the model's")
    return "\n  ".join(lines)


def _list(texts: list[str], count: int) -> str:
    return ", ".join(texts[:_MAX_LISTED]) + (f", and {count - _MAX_LISTED} more" if count > _MAX_LISTED else "")


def _check_values(file: str, contents: Contents, targets: Targets, ties: list[list[str]]) -> None:
    """Reads every tensor once and checks it, because a copy that fails halfway cannot be undone."""
    sums: dict[str, str] = {}
    tied = {name for names in ties for name in names}
    for name, tensor in read_checked(file, contents, targets):
        for place, target in targets[name].items():
            _, problem = cast(tensor, target.dtype)
            if problem:
                raise StateMismatch(
                    f"{file}: {name!r} is {dtype_name(tensor.dtype)}, {place!r} in the model is "
                    f"{dtype_name(target.dtype)}, and {problem}"
                )
        if name in tied:
            sums[name] = checksum(tensor_bytes(tensor.contiguous()))
    for first, *others in ties:
        for other in others:
            if sums[first] != sums[other]:
                raise StateMismatch(
                    f"{file}: {first!r} and {other!r} differ, but are one tied tensor in the model; "
                    f"choose with rename={{{other!r}: None}}"
                )


# --- Renaming


def _rename_all(names: Iterable[str], rename: Rename | None) -> dict[str, str]:
    """The new name of every name, in order, without those that `rename` drops (`None`).

    A dotted name also renames everything below it, and each `*` of a new name stands for what the `*` of the old name
    matched. The first rule that matches a name wins.

    >>> _rename_all(["net.0.gamma", "net.0.beta", "old.w"], {"net.*.gamma": "*.weight", "net": "", "old": None})
    {'net.0.gamma': '0.weight', 'net.0.beta': '0.beta'}
    """
    names = list(names)
    if rename is None:
        return {name: name for name in names}
    if isinstance(rename, Mapping):
        made = _apply_rules(names, rename)
    elif callable(rename):
        made = {name: rename(name) for name in names}
    else:
        raise WrongType(f"rename is a mapping of names or globs, or a function; got {type(rename).__name__}")
    renamed = {name: new for name, new in made.items() if new is not None}
    previous: dict[str, str] = {}
    for name, new in renamed.items():
        if not isinstance(new, str):
            raise WrongType(f"rename gives {name!r} the name {new!r}; expected a string, or None to leave it out")
        if previous.setdefault(new, name) != name:
            raise InvalidArgument(f"rename gives both {previous[new]!r} and {name!r} the name {new!r}")
    return renamed


def _apply_rules(names: list[str], rules: Mapping[str, str | None]) -> dict[str, str | None]:
    made: dict[str, str | None] = {}
    for pattern, new in rules.items():
        if isinstance(new, str) and new.count("*") > pattern.count("*"):
            raise InvalidArgument(f"rename: {new!r} has more '*' than {pattern!r}, so their values are not defined")
        stars = "(.*)".join(re.escape(piece) for piece in pattern.split("*"))
        expression = re.compile(f"(?s:{stars}(\\..*)?)")  # a group per `*`, and one for everything below the name
        matches = {name: match for name in names if (match := expression.fullmatch(name))}
        if not matches:
            words = [".".join(name.split(".")[:depth]) for name in names for depth in range(1, name.count(".") + 2)]
            raise NoSuchParameter(f"rename: {pattern!r} matches no name in the file{did_you_mean(pattern, words)}")
        for name, match in matches.items():
            made.setdefault(name, _substitute(new, match) if isinstance(new, str) else new)
    return {name: made.get(name, name) for name in names}


def _substitute(new: str, match: re.Match[str]) -> str:
    *stars, below = match.groups(default="")
    pieces = new.split("*")
    made = pieces[0] + "".join(star + piece for star, piece in zip(stars, pieces[1:], strict=False)) + below
    return made if new else made.removeprefix(".")
