"""Samples of different lengths: reading their lengths, and padding them to a few lengths."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stoker._tree import is_namedtuple
from stoker.data._arguments import check_int
from stoker.data._batch import call_with_parts, is_row
from stoker.data._rng import preserve_generators
from stoker.errors import BadData, InvalidArgument, WrongType

# Values that models of Transformers expect in these columns, whatever token pads the text.
_USUAL_VALUES = {"attention_mask": 0, "token_type_ids": 0, "special_tokens_mask": 1, "labels": -100}
_POWERS = tuple(2**power for power in range(40))
_PAD_TO = 'pad_to is a list of lengths, a number whose multiples are the lengths, or "power of two"'


# --- lengths


def read_lengths(source: Any, bucket_by: Any) -> Tensor:
    """Returns the length of each sample: int64, on the CPU. A function or a column is read for every sample."""
    count = len(source)
    if callable(bucket_by) or isinstance(bucket_by, str):
        with preserve_generators():
            found: Any = [_length_of(source[number], bucket_by, number) for number in range(count)]
    else:
        found = bucket_by.to_numpy() if hasattr(bucket_by, "to_numpy") else bucket_by
    try:
        lengths = torch.as_tensor(found, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        raise WrongType(
            "bucket_by is a function of a sample that returns its length, the name of a column, or one length for each "
            f"sample; got {type(bucket_by).__name__}"
        ) from None
    if lengths.shape != (count,) or lengths.is_floating_point() or lengths.is_complex() or bool((lengths < 0).any()):
        raise InvalidArgument(
            f"bucket_by needs one length for each of the {count} samples, an integer of at least 0; "
            f"got {lengths.dtype} of shape {list(lengths.shape)}"
        )
    return lengths.long()


def _length_of(sample: Any, bucket_by: Any, number: int) -> Any:
    if isinstance(bucket_by, str):
        if not isinstance(sample, Mapping) or bucket_by not in sample:
            raise InvalidArgument(
                f"bucket_by={bucket_by!r} names a column, and sample {number}, a {type(sample).__name__}, does not "
                "have it; pass a function of a sample that returns its length"
            )
        value = sample[bucket_by]
        return len(value) if _is_sequence(value) else int(value)
    try:
        return int(call_with_parts(bucket_by, sample))
    except Exception as error:
        parts = f"; the {len(sample)} parts of a tuple are separate arguments" if isinstance(sample, tuple) else ""
        error.add_note(f"while computing bucket_by, the length, of sample {number}{parts}")
        raise


# --- padding


@dataclass(frozen=True, eq=False, repr=False)
class Padding:
    """Pads the samples of a batch to one of a few lengths; unlike a `PaddingBatch`, the batch counts."""

    lengths: tuple[int, ...] | int  # allowed lengths, ascending; or their common divisor
    value: Any  # for all sequences, or by the name or place of each part that is padded
    mask: str | None  # the name of a new part with 1 for each element and 0 for padding

    def round(self, lengths: Tensor) -> Tensor:
        """Returns the padded length of each length."""
        if isinstance(self.lengths, int):
            return (lengths.clamp(min=1) + self.lengths - 1) // self.lengths * self.lengths
        allowed = torch.tensor(self.lengths, device="cpu")
        if bool((lengths > allowed[-1]).any()):
            raise BadData(
                f"a sample has length {int(lengths.max())}, and the longest of pad_to is {self.lengths[-1]}; add a "
                "length, or cut samples with transform="
            )
        return allowed[torch.searchsorted(allowed, lengths)]

    def apply(self, samples: list[Any]) -> list[Any]:
        """Returns the samples with their sequences padded; other parts stay as they are."""
        first = samples[0]
        if isinstance(first, Mapping):
            incomplete = [name for name in set().union(*samples) if any(name not in sample for sample in samples)]
            if incomplete:
                raise BadData(f"only some samples have {incomplete[0]!r}, so they can't be padded together")
            columns = self._pad_columns({name: [sample[name] for sample in samples] for name in first})
            return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        if self.mask is not None:
            raise InvalidArgument(
                f"pad_mask={self.mask!r} adds a part to samples that are mappings, and here a sample is a "
                f"{type(first).__name__}; make it a mapping with transform="
            )
        if not isinstance(first, tuple):
            return self._pad_columns({0: samples})[0]
        rows = zip(*self._pad_columns(dict(enumerate(zip(*samples, strict=True)))).values(), strict=True)
        return [type(first)(*row) if is_namedtuple(first) else row for row in rows]

    def _pad_columns(self, columns: dict[Any, Sequence[Any]]) -> dict[Any, Any]:
        """Pads the parts of all samples, given by name or place."""
        if isinstance(self.value, Mapping):
            absent = [name for name in self.value if name not in columns or not _is_sequence(columns[name][0])]
            if absent:
                raise InvalidArgument(
                    f"pad_value names {absent[0]!r}, which is not a sequence of a sample; there are "
                    f"{', '.join(map(repr, columns))}"
                )
            values = dict(self.value)
        else:
            names = [name for name, column in columns.items() if _is_sequence(column[0])]
            values = {name: _USUAL_VALUES.get(name, self.value) for name in names}
        if not values:
            raise BadData("pad_to pads sequences (lists of numbers, tensors, arrays), and a sample has none")
        lengths = {name: [len(part) for part in columns[name]] for name in values}
        reference = "input_ids" if "input_ids" in lengths else next(iter(lengths))
        if not isinstance(self.value, Mapping):
            for name, each in lengths.items():
                if each != lengths[reference]:
                    pair = next(pair for pair in zip(lengths[reference], each, strict=True) if pair[0] != pair[1])
                    raise BadData(
                        f"the parts {reference!r} and {name!r} of a sample have lengths {pair[0]} and {pair[1]}; say "
                        f"which to pad, and with what: pad_value={{{reference!r}: 0, ...}}"
                    )
        padded: dict[Any, Any] = dict(columns)
        targets = {name: int(self.round(torch.tensor([max(each)]))) for name, each in lengths.items()}
        for name, value in values.items():
            padded[name] = [_pad(part, targets[name], value) for part in columns[name]]
        if self.mask is not None and self.mask not in columns:
            padded[self.mask] = [[1] * each + [0] * (targets[reference] - each) for each in lengths[reference]]
        return padded


def _is_sequence(value: Any) -> bool:
    """Whether a part of a sample has a first dimension: a list of numbers or of such lists, a tensor, an array."""
    return is_row(value) if isinstance(value, list) else isinstance(value, Tensor | np.ndarray) and value.ndim > 0


def _pad(sequence: Any, length: int, value: Any) -> Any:
    """Appends the value until a sequence has this length; of several dimensions the first one grows."""
    missing = length - len(sequence)
    if isinstance(sequence, list) and not (sequence and isinstance(sequence[0], list)):
        return sequence + [value] * missing
    if isinstance(sequence, Tensor):
        return torch.cat([sequence, sequence.new_full((missing, *sequence.shape[1:]), value)])
    array = np.asarray(sequence)
    return np.concatenate([array, np.full((missing, *array.shape[1:]), value, array.dtype)])


def as_padding(pad_to: Any, pad_value: Any, pad_mask: Any) -> Padding | None:
    """Returns the `Padding` for the options of a loader, or None without `pad_to`, which may also be a `Padding`."""
    if isinstance(pad_to, Padding):
        return pad_to
    if pad_to is None:
        if pad_mask is not None or pad_value != 0:
            raise InvalidArgument(f"{'pad_mask' if pad_mask is not None else 'pad_value'} needs pad_to: {_PAD_TO}")
        return None
    if pad_mask is not None and not isinstance(pad_mask, str):
        raise WrongType(f'pad_mask is the name of a new column, as in "attention_mask"; got {pad_mask!r}')
    if isinstance(pad_to, str):
        if pad_to.replace("_", " ") != "power of two":
            raise InvalidArgument(f"{_PAD_TO}; got {pad_to!r}")
        return Padding(_POWERS, pad_value, pad_mask)
    if isinstance(pad_to, Iterable):
        lengths = tuple(sorted({check_int("pad_to", each, least=1) for each in pad_to}))
        if not lengths:
            raise InvalidArgument(f"{_PAD_TO}; got an empty {type(pad_to).__name__}")
        return Padding(lengths, pad_value, pad_mask)
    return Padding(check_int("pad_to", pad_to, least=1), pad_value, pad_mask)
