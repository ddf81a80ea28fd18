"""Joins the predictions of a model for single batches to one prediction per sample."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stoker._tree import is_namedtuple
from stoker.errors import BadData

_CACHES = ("past_key_values", "cache_params")  # what generation with Transformers reuses


def to_plain(prediction: Any) -> Any:
    """Copies an prediction to the CPU, as tensors and plain values in dicts, tuples and lists.

    A copy, because a model may write its next output into the same memory. 16-bit floats become float32: predictions do
    not depend on the precision of the fit. Losses of the batch and caches are left out: they do not belong to samples.
    """
    if isinstance(prediction, Tensor):
        if prediction.is_nested:
            return [to_plain(row) for row in prediction.unbind()]
        if prediction.layout not in (torch.strided, torch.sparse_coo):
            prediction = prediction.to_dense()  # torch can't join others
        if prediction.dtype in (torch.float16, torch.bfloat16):
            return prediction.detach().to("cpu", torch.float32, copy=True)
        return prediction.detach().clone() if prediction.is_cpu else prediction.detach().cpu()
    if isinstance(prediction, np.ndarray):
        return torch.from_numpy(prediction.copy()) if prediction.dtype.kind in "biufc" else prediction.tolist()
    if isinstance(prediction, Mapping):
        return {name: to_plain(part) for name, part in prediction.items() if not _is_left_out(name, part)}
    if _is_dataclass(prediction):
        parts = {field.name: getattr(prediction, field.name) for field in dataclasses.fields(prediction) if field.init}
        return {name: to_plain(part) for name, part in parts.items() if not _is_left_out(name, part)}
    if isinstance(prediction, tuple | list):
        parts = [to_plain(part) for part in prediction]
        return parts if isinstance(prediction, list) else tuple(parts)
    return prediction


def _is_left_out(name: Any, part: Any) -> bool:
    numbers = list(part.values()) if isinstance(part, Mapping) else [part]
    is_loss = "loss" in str(name) and all(isinstance(each, Tensor) and each.dim() == 0 for each in numbers)
    return name in _CACHES or is_loss


def join_predictions(predictions: list[Any], sizes: list[int], like: Any, name: str = "the output") -> Any:
    """Joins plain predictions for batches of so many samples, in the containers of `like`, an prediction of the model.

    Raises `BadData` unless there is one prediction per sample: rows of a tensor, or entries of a list.
    """
    if all(prediction is None for prediction in predictions):
        return None
    if isinstance(like, Tensor | np.ndarray) and all(isinstance(prediction, Tensor) for prediction in predictions):
        return _join_tensors(predictions, sizes, name)
    if isinstance(like, Mapping) or _is_dataclass(like):
        parts = {}
        for key in predictions[0]:
            if any(key not in prediction for prediction in predictions):
                raise BadData(f"{name} has {key!r} for some batches only; return the same parts for every batch")
            part = like[key] if isinstance(like, Mapping) else getattr(like, key)
            parts[key] = join_predictions([each[key] for each in predictions], sizes, part, f"{name}[{key!r}]")
        return _rebuild(like, parts)
    if isinstance(like, tuple | list):
        return _join_sequences(predictions, sizes, like, name)
    if isinstance(like, np.ndarray | Tensor) and all(
        len(prediction) == size for prediction, size in zip(predictions, sizes, strict=True)
    ):
        return [entry for prediction in predictions for entry in prediction]
    if all(size == 1 for size in sizes) and not any(prediction is None for prediction in predictions):
        return predictions
    raise _wrong_count(name, sizes[0], f"{type(predictions[0]).__name__}")


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
            "one shape, or give a predict_step that returns a list with one prediction per sample"
        )
    return torch.cat(tensors)


def _join_sequences(predictions: list[Any], sizes: list[int], like: Any, name: str) -> Any:
    """Joins tuples and lists: of parts, each with one prediction per sample, or of one entry per sample."""
    pairs = list(zip(predictions, sizes, strict=True))
    is_parts = len(set(map(len, predictions))) == 1 and all(
        _has_rows(part, size) for each, size in pairs for part in each
    )
    is_entries = all(len(prediction) == size for prediction, size in pairs) and not is_namedtuple(like)
    if is_entries and isinstance(like, list) and all(isinstance(part, Mapping) or _is_dataclass(part) for part in like):
        is_parts = False  # a list of dicts has one for each sample, such as the boxes in an image
    if is_parts and is_entries and isinstance(like, list) and len(predictions) > 1:
        raise BadData(
            f"{name} is a list of {len(like)} for batches of {sizes[0]} samples, and each entry has as many rows: it "
            "is not clear whether an entry is the prediction for a sample; return a tuple of parts, or use another "
            "batch_size"
        )
    if is_parts or is_namedtuple(like):
        columns = [
            join_predictions([prediction[place] for prediction in predictions], sizes, part, f"{name}[{place}]")
            for place, part in enumerate(like)
        ]
        return type(like)(*columns) if is_namedtuple(like) else type(like)(columns)
    if is_entries:
        return [_restore(entry, like[0] if like else entry) for prediction in predictions for entry in prediction]
    prediction, size = next(((prediction, size) for prediction, size in pairs if len(prediction) != size), pairs[0])
    raise _wrong_count(name, size, f"a {type(like).__name__} of {len(prediction)}")


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


def _has_rows(prediction: Any, size: int) -> bool:
    """Whether each tensor of a plain prediction has one row per sample, and each other value is a list of entries."""
    if isinstance(prediction, Tensor):
        return len(prediction) == size if prediction.dim() else size == 1
    if isinstance(prediction, Mapping):
        return all(_has_rows(part, size) for part in prediction.values())
    if isinstance(prediction, tuple | list):
        return len(prediction) == size or (len(prediction) > 0 and all(_has_rows(part, size) for part in prediction))
    return prediction is None


def _wrong_count(name: str, size: int, found: str) -> BadData:
    return BadData(
        f"predict returns one prediction per sample, but for a batch of {size} samples {name} is {found}; the first "
        "dimension has to be the samples. Give a predict_step that returns one prediction per sample"
    )
