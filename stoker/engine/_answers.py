"""From the answers of a model for single batches to one answer per sample."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stoker._tree import is_namedtuple
from stoker.errors import BadData

_CACHES = ("past_key_values", "cache_params")  # what generation with Transformers reuses


def to_plain(answer: Any) -> Any:
    """Copies an answer to the CPU, as tensors and plain values in dicts, tuples and lists.

    A copy, because a model may write its next output into the same memory. 16-bit floats become float32: predictions do
    not depend on the precision of the fit. The losses of the batch and caches are left out: they answer for no sample.
    """
    if isinstance(answer, Tensor) and answer.is_nested:
        return [to_plain(row) for row in answer.unbind()]
    if isinstance(answer, Tensor):
        if answer.layout not in (torch.strided, torch.sparse_coo):
            answer = answer.to_dense()  # torch can't join others
        dtype = torch.float32 if answer.dtype in (torch.float16, torch.bfloat16) else answer.dtype
        return answer.detach().to("cpu", dtype, copy=True)
    if isinstance(answer, np.ndarray):
        return torch.from_numpy(answer.copy()) if answer.dtype.kind in "biufc" else answer.tolist()
    if isinstance(answer, Mapping):
        return {name: to_plain(part) for name, part in answer.items() if not _is_left_out(name, part)}
    if _is_dataclass(answer):
        parts = {field.name: getattr(answer, field.name) for field in dataclasses.fields(answer) if field.init}
        return {name: to_plain(part) for name, part in parts.items() if not _is_left_out(name, part)}
    if isinstance(answer, tuple | list):
        parts = [to_plain(part) for part in answer]
        return parts if isinstance(answer, list) else tuple(parts)
    return answer


def _is_left_out(name: Any, part: Any) -> bool:
    numbers = list(part.values()) if isinstance(part, Mapping) else [part]
    is_loss = "loss" in str(name) and all(isinstance(each, Tensor) and each.dim() == 0 for each in numbers)
    return name in _CACHES or is_loss


def join_answers(answers: list[Any], sizes: list[int], like: Any, name: str = "the output") -> Any:
    """Joins plain answers for batches of so many samples, in the containers of `like`, an answer of the model.

    Raises `BadData` unless there is one answer per sample: rows of a tensor, or entries of a list.
    """
    if all(answer is None for answer in answers):
        return None
    if isinstance(like, Tensor | np.ndarray) and all(isinstance(answer, Tensor) for answer in answers):
        return _join_tensors(answers, sizes, name)
    if isinstance(like, Mapping) or _is_dataclass(like):
        parts = {}
        for key in answers[0]:
            if any(key not in answer for answer in answers):
                raise BadData(f"{name} has {key!r} for some batches only; return the same parts for every batch")
            part = like[key] if isinstance(like, Mapping) else getattr(like, key)
            parts[key] = join_answers([answer[key] for answer in answers], sizes, part, f"{name}[{key!r}]")
        return _rebuild(like, parts)
    if isinstance(like, tuple | list):
        return _join_sequences(answers, sizes, like, name)
    if isinstance(like, np.ndarray | Tensor) and all(
        len(answer) == size for answer, size in zip(answers, sizes, strict=True)
    ):
        return [entry for answer in answers for entry in answer]
    if all(size == 1 for size in sizes) and not any(answer is None for answer in answers):
        return answers
    raise _wrong_count(name, sizes[0], f"{type(answers[0]).__name__}")


def _join_tensors(tensors: list[Tensor], sizes: list[int], name: str) -> Tensor:
    for tensor, size in zip(tensors, sizes, strict=True):
        if not _has_rows(tensor, size):
            raise _wrong_count(name, size, f"a tensor of shape {list(tensor.shape)}")
    if any(tensor.dim() == 0 for tensor in tensors):  # a single sample, squeezed
        tensors = [tensor.reshape(size, *tensor.shape[1:]) for tensor, size in zip(tensors, sizes, strict=True)]
    if len({tensor.shape[1:] for tensor in tensors}) > 1:
        shapes = " and ".join(sorted({str(list(tensor.shape)) for tensor in tensors})[:2])
        raise BadData(
            f"{name} has other shapes in other batches ({shapes}), which can't be joined to one tensor; pad them to "
            "one shape, or give a predict_step that returns a list with one answer per sample"
        )
    return torch.cat(tensors)


def _join_sequences(answers: list[Any], sizes: list[int], like: Any, name: str) -> Any:
    """Joins tuples and lists: of parts, each with one answer per sample, or of one entry per sample."""
    pairs = list(zip(answers, sizes, strict=True))
    is_parts = len(set(map(len, answers))) == 1 and all(_has_rows(part, size) for each, size in pairs for part in each)
    is_entries = all(len(answer) == size for answer, size in pairs) and not is_namedtuple(like)
    if is_entries and isinstance(like, list) and all(isinstance(part, Mapping) or _is_dataclass(part) for part in like):
        is_parts = False  # a list of dicts has one for each sample, such as the boxes in an image
    if is_parts and is_entries and isinstance(like, list) and len(answers) > 1:
        raise BadData(
            f"{name} is a list of {len(like)} for batches of {sizes[0]} samples, and each entry has as many rows: it "
            "is not clear whether an entry is the answer for a sample; return a tuple of parts, or use another "
            "batch_size"
        )
    if is_parts or is_namedtuple(like):
        columns = [
            join_answers([answer[place] for answer in answers], sizes, part, f"{name}[{place}]")
            for place, part in enumerate(like)
        ]
        return type(like)(*columns) if is_namedtuple(like) else type(like)(columns)
    if is_entries:
        return [_restore(entry, like[0] if like else entry) for answer in answers for entry in answer]
    answer, size = next(((answer, size) for answer, size in pairs if len(answer) != size), pairs[0])
    raise _wrong_count(name, size, f"a {type(like).__name__} of {len(answer)}")


def _restore(entry: Any, like: Any) -> Any:
    """A plain entry in the containers of another one."""
    if isinstance(entry, Mapping) and _is_dataclass(like) and not isinstance(like, Mapping):
        return _rebuild(like, {key: _restore(part, getattr(like, key)) for key, part in entry.items()})
    if isinstance(entry, tuple | list) and is_namedtuple(like):
        return type(like)(*map(_restore, entry, like))
    return entry


def _rebuild(like: Any, parts: dict[str, Any]) -> Any:
    """A dataclass with these parts, and None for those that were left out; a dict in place of another mapping."""
    if not _is_dataclass(like):
        return parts
    if isinstance(like, Mapping):  # Transformers' ModelOutput, whose parts are None unless they are given
        return type(like)(**parts)
    missing = [field.name for field in dataclasses.fields(like) if field.init and field.name not in parts]
    return dataclasses.replace(like, **parts, **dict.fromkeys(missing))


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _has_rows(answer: Any, size: int) -> bool:
    """Whether all tensors in a plain answer have one row per sample, and all other values are lists with one entry."""
    if isinstance(answer, Tensor):
        return len(answer) == size if answer.dim() else size == 1
    if isinstance(answer, Mapping):
        return all(_has_rows(part, size) for part in answer.values())
    if isinstance(answer, tuple | list):
        return len(answer) == size or (len(answer) > 0 and all(_has_rows(part, size) for part in answer))
    return answer is None


def _wrong_count(name: str, size: int, found: str) -> BadData:
    return BadData(
        f"predict returns one answer per sample, but for a batch of {size} samples {name} is {found}; the first "
        "dimension has to be the samples. Give a predict_step that returns one answer per sample"
    )
