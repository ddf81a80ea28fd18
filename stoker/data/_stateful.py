"""Sources that save their own position: `state_dict` and `load_state_dict`, as torchdata and Hugging Face have them."""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, SequentialSampler

from stoker.data._source import is_of_package

_NUMPY = "$numpy"  # marks an array in a saved state
_SLACK = 8  # states that are kept beside those of the batches that workers read ahead: training may be some behind


class PositionStates:
    """The states of a source after its batches, for the one that training is at.

    A source that is read in advance, for workers, is asked after every batch; otherwise it is asked when the state is
    needed, since it has read nothing else since.
    """

    def __init__(self, source: Any) -> None:
        self._source = source if can_save_position(source) else None
        self._states: dict[tuple[int, int], Any] = {}  # by epoch and number of batches; None: the source is there now

    def __reduce__(self) -> tuple[Any, ...]:
        return PositionStates, (self._source,)

    def note(self, epoch: int, batches: int, *, ahead: int = 0) -> None:
        """Called by the reader after each batch, with how many batches it reads ahead at most."""
        if self._source is None:
            return
        if not ahead:
            self._states = {(epoch, batches): None}
            return
        self._states.pop((epoch, batches), None)  # of an earlier iteration; the latest state comes last
        state = as_plain_state(self._source.state_dict())
        if state is not None:
            self._states[epoch, batches] = state
        if len(self._states) > ahead + _SLACK:
            del self._states[next(iter(self._states))]

    def find(self, epoch: int, batches: int) -> dict[str, Any] | None:
        """Returns the state after these batches of an epoch; None if it is unknown, or holds what can't be saved."""
        if self._source is None or (epoch, batches) not in self._states:
            return None
        state = self._states[epoch, batches]
        return as_plain_state(self._source.state_dict()) if state is None else state


def can_save_position(source: Any) -> bool:
    """Whether a source has a state from which it continues with exactly the next batch.

    Left out are sources whose state is known to be incomplete; they are read again from the start of the epoch.
    """
    has_state = callable(getattr(source, "load_state_dict", None)) and _can_be_called(
        getattr(source, "state_dict", None)
    )
    if not has_state or not isinstance(source, DataLoader):
        return has_state and not _loses_samples(source)
    if isinstance(source.dataset, IterableDataset):
        return not _loses_samples(source.dataset)
    # The order of a sampler without a state of its own is repeated only if it draws nothing.
    sampler = source.sampler if source.batch_sampler is None else getattr(source.batch_sampler, "sampler", None)
    is_repeatable = isinstance(sampler, SequentialSampler | DistributedSampler) or is_of_package("torchdata", sampler)
    return is_repeatable and (source.batch_sampler is None or is_of_package("torchdata", source.batch_sampler))


def _can_be_called(function: Any) -> bool:
    """Whether a function takes no arguments: the data sets of litdata and Mosaic need some, their loaders do not."""
    try:
        inspect.signature(function).bind()
    except (TypeError, ValueError):
        return False
    return True


def _loses_samples(dataset: Any) -> bool:
    """Whether the state of a Hugging Face stream leaves samples out: those in a shuffle buffer or an Arrow batch."""
    if not is_of_package("datasets", dataset):
        return False
    formatting = getattr(dataset, "_formatting", None)
    return getattr(formatting, "is_table", False) or _has_buffer(getattr(dataset, "_ex_iterable", None))


def _has_buffer(examples: Any) -> bool:
    # Private names of Hugging Face's streams; tests/data/test_stateful.py notices if they change.
    if "BufferShuffled" in type(examples).__name__:
        return True
    inner = [getattr(examples, "ex_iterable", None), *getattr(examples, "ex_iterables", ())]
    return any(_has_buffer(each) for each in inner if each is not None)


def as_plain_state(state: Any) -> Any:
    """Copies a state of tensors, arrays and plain values; None if it holds anything else."""
    try:
        return _copy(state)
    except TypeError:
        return None


def _copy(value: Any) -> Any:
    if type(value) in (list, tuple):
        return type(value)(_copy(each) for each in value)
    if type(value) is dict:
        return {_copy(name): _copy(each) for name, each in value.items()}
    if type(value) is Tensor and value.layout == torch.strided:
        return value.detach().clone()
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
        array = np.array(value)
        return {_NUMPY: torch.from_numpy(array.reshape(-1)), "shape": list(array.shape), "scalar": value.ndim == 0}
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    raise TypeError(type(value).__name__)


def as_source_state(saved: Any) -> Any:
    """What `as_plain_state` copied, with its arrays."""
    if isinstance(saved, list | tuple):
        return type(saved)(as_source_state(each) for each in saved)
    if isinstance(saved, Mapping):
        if _NUMPY in saved:
            array = saved[_NUMPY].numpy().reshape(saved["shape"])
            return array[()] if saved["scalar"] else array.copy()
        return {name: as_source_state(each) for name, each in saved.items()}
    return saved.clone() if isinstance(saved, Tensor) else saved


def gives_batches(source: Any) -> bool:
    """Whether a stream is known to give batches and not samples."""
    if is_of_package("webdataset", source):
        return type(source).__name__ == "WebLoader"
    return is_of_package("torchdata", source) and _has_batcher(getattr(source, "root", source))


def _has_batcher(node: Any) -> bool:
    """Whether the last of torchdata's nodes that changes the size of its items is a `Batcher`."""
    kind = type(node).__name__
    if kind in ("Batcher", "Unbatcher"):
        return kind == "Batcher"
    inputs = [part for value in vars(node).values() for part in (value.values() if type(value) is dict else [value])]
    return any(_has_batcher(part) for part in inputs if is_of_package("torchdata", part))


# --- sources that are divided among ranks already

_SHARDING = ("litdata", "streaming")  # packages whose data sets give each rank its own part


def find_sharding(source: Any) -> tuple[int, int] | bool:
    """Whether a source gives each rank its own part: its (rank, number of ranks) if it tells them, True, or False."""
    if isinstance(source, DataLoader):
        for sampler in samplers_of(source):
            if hasattr(sampler, "num_replicas") and hasattr(sampler, "rank"):
                return int(sampler.rank), int(sampler.num_replicas)
        return any(is_of_package(package, source) for package in _SHARDING) or find_sharding(source.dataset)
    distributed = getattr(source, "_distributed", None)  # of a Hugging Face stream after split_dataset_by_node
    if distributed is not None and hasattr(distributed, "world_size"):
        return int(distributed.rank), int(distributed.world_size)
    return any(is_of_package(package, source) for package in _SHARDING)


def samplers_of(loader: DataLoader[Any]) -> Iterable[Any]:
    """The samplers of a DataLoader, and that of a batch sampler which the user made."""
    return [loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None)]
