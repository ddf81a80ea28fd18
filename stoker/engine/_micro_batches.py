"""Micro-batches: a batch is computed in parts, and the gradients of the parts add up to those of the batch."""

import copy
import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from itertools import pairwise
from typing import Any, TypeVar

import numpy
import torch
from torch import Tensor

from stoker._tree import is_namedtuple
from stoker.data import RowSelection
from stoker.engine._batch import Batch
from stoker.engine._batch_errors import add_batch_note
from stoker.engine._fit import Fit
from stoker.engine._step import StepResult
from stoker.engine._totals import RunningTotals
from stoker.engine._undo import BatchTooLarge, free_cached_memory, is_out_of_memory
from stoker.engine.executors import Executor
from stoker.errors import BadData

R = TypeVar("R")


class _NotRows(BadData):
    """A part of a batch has no row for each sample."""


def run_micro_batches(fit: Fit, executor: Executor, batch: Batch) -> Iterator[tuple[Batch, StepResult]]:
    """Runs a batch, in micro-batches of at most `settings.micro_batch` samples if that is set; yields their results.

    With "auto", a micro-batch that does not fit into memory is halved, together with those after it. What was added up
    before it stays.
    """
    settings, lr = fit.settings, fit.ctx.lr
    if settings.micro_batch is None:
        yield batch, _run_with_note(executor, batch, lr)
        return
    if fit.step.reduces_windows:
        fit.step.synchronize_buffers()  # once: ranks may have different numbers of micro-batches
    yield from _run_parts(fit, batch, lambda part: _run_with_note(executor, part, lr), executor.free_memory)


def evaluate_micro_batches(fit: Fit, batch: Batch, totals: RunningTotals, evaluate: Callable[[Batch], None]) -> None:
    """Evaluates a batch of a validation in micro-batches, as `run_micro_batches` trains one."""
    if fit.settings.micro_batch is None or fit.ranks.model_is_distributed:
        evaluate(batch)
        return

    def evaluate_or_undo(part: Batch) -> None:
        before = totals.snapshot()
        try:
            evaluate(part)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            totals.restore(before)
            raise BatchTooLarge(str(error).split("\n")[0]) from None

    run = evaluate_or_undo if fit.settings.micro_batch == "auto" else evaluate
    deque(_run_parts(fit, batch, run, lambda: free_cached_memory(fit.device)), maxlen=0)


def _run_parts(
    fit: Fit, batch: Batch, run: Callable[[Batch], R], free_memory: Callable[[], bool]
) -> Iterator[tuple[Batch, R]]:
    """Runs the micro-batches of a batch; one that is too large is halved, together with those after it.

    If `free_memory` returns True, a micro-batch is run once more before it is halved.
    """
    remaining, is_repeated = _split(fit, batch), False
    while remaining:
        part, *others = remaining
        try:
            result = run(part)
        except BatchTooLarge as error:
            problem = str(error)
        else:
            remaining, is_repeated = others, False
            yield part, result
            continue
        # Here the exception is gone, and with it the tensors of the frames that it went through.
        fit.ctx.pred = fit.ctx.output = fit.ctx.loss = None
        if free_memory() and not is_repeated:
            is_repeated = True
            continue
        _halve(fit, part, problem)
        remaining, is_repeated = [smaller for each in remaining for smaller in _split(fit, each)], False


def _run_with_note(executor: Executor, batch: Batch, lr: Any) -> StepResult:
    """Runs a batch; an error says which one it was."""
    try:
        return executor.run(batch, lr)
    except BatchTooLarge:
        raise
    except Exception as error:
        add_batch_note(error, f"epoch {batch.epoch}, batch {batch.number} of 'train'", batch.value)
        raise


def _halve(fit: Fit, part: Batch, problem: str) -> None:
    """Halves the limit of samples in a micro-batch from here on; it is saved with the progress."""
    if part.samples == 1:
        raise torch.OutOfMemoryError(f"not even one sample at a time fits into memory: {problem}")
    limit, before = math.ceil(part.samples / 2), fit.state.progress.micro_batch
    if before is not None and limit >= before:  # the limit falls each time, so this comes to an end
        raise torch.OutOfMemoryError(f"this batch of {part.samples} samples can't be split further: {problem}")
    fit.state.progress.micro_batch = limit
    fit.ctx.note(f"{part.samples} samples at once do not fit into memory: micro_batch is {limit} from here on")
    start = "micro-batches of at most "
    notes = [note for note in fit.plan.notes if not note.startswith(start)]
    fit.plan.notes = [*notes, f"{start}{limit} samples, since {part.samples} did not fit into memory"]


def _split(fit: Fit, batch: Batch) -> list[Batch]:
    """The parts of a batch; every rank has the same number of them if ranks communicate for each part.

    They do in the forward pass of a distributed model, and where they decide together whether to skip a part.
    """
    given, step = fit.settings.micro_batch, fit.step
    limit = fit.state.progress.micro_batch if given == "auto" else given
    count = 1 if limit is None else max(1, math.ceil(batch.samples / limit))
    skips_together = step.reduces_windows and (fit.settings.on_nan == "skip" or fit.state.loss_scale is not None)
    most = count
    if fit.ranks.model_is_distributed or skips_together:
        most = max(fit.ranks.world.all_gather(count))
    if step.reduces_windows and most == 1:
        return [replace(batch, parts=1)]  # another rank may split its share
    has_columns = step.steps.supervised is not None  # inputs and a target
    parts = split_batch(batch, max(1, min(most, batch.samples)), has_columns=has_columns)
    if len(parts) == most:
        return parts
    parts += [replace(parts[0], is_padding=True)] * (most - len(parts))
    closes = [*[False] * (most - 1), batch.closes_window]
    return [replace(part, parts=most, closes_window=last) for part, last in zip(parts, closes, strict=True)]


def split_batch(batch: Batch, count: int, *, has_columns: bool = False) -> list[Batch]:
    """A batch as micro-batches whose sizes differ by at most one; only the last one closes an accumulation window.

    >>> batch = Batch({"x": torch.arange(5), "ids": ["a", "b", "c", "d", "e"]})
    >>> [part.value for part in split_batch(batch, 2)]
    [{'x': tensor([0, 1]), 'ids': ['a', 'b']}, {'x': tensor([2, 3, 4]), 'ids': ['c', 'd', 'e']}]

    `has_columns`: a batch that is a list is one of columns. Otherwise it may be one of samples.
    """
    if count == 1:
        return [batch]
    samples = batch.samples
    ends = [samples * index // count for index in range(count + 1)]
    slices = [slice(start, stop) for start, stop in pairwise(ends)]
    if isinstance(batch.value, RowSelection):
        values: list[Any] = [batch.value.with_rows(batch.value.rows[part]) for part in slices]
    else:
        values = _split_value(
            batch.value, samples, slices, "batch", has_columns=has_columns or isinstance(batch.value, tuple)
        )
    mixes: Any = [None] * count
    if batch.mix is not None:
        names = "the targets of ctx.loss_mix", "the amounts of ctx.loss_mix"
        pairs = [_split_value(each, samples, slices, name) for each, name in zip(batch.mix, names, strict=True)]
        mixes = zip(*pairs, strict=True)
    return [
        replace(
            batch,
            value=value,
            mix=mix,
            size=None if batch.size is None else part.stop - part.start,
            closes_window=batch.closes_window and part.stop == samples,
            parts=count,
        )
        for value, mix, part in zip(values, mixes, slices, strict=True)
    ]


def _split_value(
    value: Any,
    samples: int,
    slices: Sequence[slice],
    name: str,
    *,
    beside: Collection[Any] = (),
    has_columns: bool = False,
) -> list[Any]:
    """A part of a batch for each slice of its samples; raises if it is not clear how to split it.

    `beside` are the values in the same tuple or mapping.
    """

    def split_columns(columns: Mapping[Any, Any], names: Iterable[str]) -> list[dict[Any, Any]]:
        """The columns of each micro-batch."""
        parts = [
            _split_value(each, samples, slices, f"{name}{key}", beside=columns.values())
            for each, key in zip(columns.values(), names, strict=True)
        ]
        return [dict(zip(columns, row, strict=True)) for row in zip(*parts, strict=True)]

    if isinstance(value, Tensor | numpy.ndarray) or isinstance(getattr(value, "batch_size", None), torch.Size):
        if tuple(value.shape[:1]) != (samples,):
            raise _error(name, f"of shape {list(value.shape)}", samples)
        return [value[part] for part in slices]
    if value is None or isinstance(value, str | bytes | bool):
        return [value] * len(slices)
    if hasattr(value, "to_data_list") and hasattr(type(value), "from_data_list"):  # graphs of torch-geometric
        graphs = value.to_data_list()
        if len(graphs) != samples:
            raise _error(name, f"a batch of {len(graphs)} graphs", samples)
        return [type(value).from_data_list(graphs[part]) for part in slices]
    if isinstance(value, list | tuple):
        return _split_sequence(value, samples, slices, name, beside, has_columns=has_columns)
    if is_dataclass(value):
        own = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
        whole: Any = value
        return [replace(whole, **part) for part in split_columns(own, [f".{field}" for field in own])]
    if isinstance(value, Mapping):
        return [_with_items(value, part) for part in split_columns(value, [f"[{key!r}]" for key in value])]
    raise _error(name, f"a value of type {type(value).__name__}", samples)


def _split_sequence(
    value: Any, samples: int, slices: Sequence[slice], name: str, beside: Collection[Any], *, has_columns: bool
) -> list[Any]:
    """A tuple or list of columns; or one with an element for each sample, if its elements are not columns."""
    is_per_sample = len(value) == samples and not is_namedtuple(value)
    try:
        columns = [
            _split_value(part, samples, slices, f"{name}[{index}]", beside=value) for index, part in enumerate(value)
        ]
    except _NotRows:
        if is_per_sample:
            return [value[part] for part in slices]
        raise
    if is_per_sample and all(part is None or isinstance(part, str | bytes | bool) for part in value):
        return [value[part] for part in slices]
    if is_per_sample and not has_columns and _are_alike(value):
        # Images with 3 channels, in a batch of 3 samples; then their targets show what they are.
        if any(_holds_samples(other, samples) for other in beside):
            return [value[part] for part in slices]
        raise BadData(
            f"{name} has {samples} elements of {samples} rows each: it is not clear whether they are columns or "
            "samples. Use a mapping for columns, or another micro_batch"
        )
    rows = zip(*columns, strict=True)
    return [type(value)(*row) if is_namedtuple(value) else type(value)(row) for row in rows]


def _are_alike(values: Sequence[Any]) -> bool:
    """Whether values could be samples of the same kind, by their types and dimensions."""

    def kind(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.dtype, value.dim()
        if isinstance(value, list | tuple):
            return tuple(map(kind, value))
        return tuple(value) if isinstance(value, Mapping) else type(value)

    return len({kind(value) for value in values}) == 1


def _holds_samples(value: Any, samples: int) -> bool:
    """Whether a value is a list with an element for each sample, and can't be one of columns, as text could."""
    if not isinstance(value, list | tuple) or len(value) != samples:
        return False
    try:
        for part in value:
            _split_value(part, samples, [slice(0, samples)], "")
    except BadData as error:
        return isinstance(error, _NotRows)
    return False


def _with_items(value: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """A mapping of the same class with other values."""
    if type(value) is dict:
        return items
    new: Any = copy.copy(value)
    for key, item in items.items():
        new[key] = item
    return new


def _error(name: str, what: str, samples: int) -> BadData:
    return _NotRows(
        f"micro_batch can't split this batch of {samples} samples: {name} is {what}. It has to be a tensor with a row "
        "for each sample, a list with an element for each, or a mapping or tuple of these. Leave micro_batch out, or "
        "use a smaller batch_size with Learner(accumulate=...)"
    )
