"""Tensors that are sharded over ranks, to files: every rank writes its own parts.

The files are those of torch's distributed checkpoints (DCP) in their safetensors form, which torch itself reads too;
its default form has a pickle beside them. Each rank plans by itself what it writes, so there is nothing to agree on.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from stoker.checkpoint._manifest import Sum
from stoker.checkpoint._write import NewFile, new_file
from stoker.distributed import is_dtensor as is_sharded
from stoker.distributed import local_region as region_of
from stoker.distributed import to_local as local_of
from stoker.errors import InvalidArgument

_MOST = 1 << 30  # bytes to a file, where a tensor isn't larger: DCP holds a file in memory while it writes it

Parts = dict[str, dict[str, Tensor]]  # the tensors of each part of a state, by name


def parted(tensors: Mapping[str, Mapping[str, Tensor]]) -> tuple[Parts, dict[str, Tensor]]:
    """The tensors that are whole, and by "part/name" those that are sharded."""
    whole: Parts = {}
    sharded: dict[str, Tensor] = {}
    for part, found in tensors.items():
        for name, tensor in found.items():
            if is_sharded(tensor):
                sharded[f"{part}/{name}"] = tensor
            else:
                whole.setdefault(part, {})[name] = tensor
    return whole, sharded


def write_shards(tensors: Mapping[str, Tensor], within: int, rank: int) -> dict[str, Sum]:
    """Writes this rank's parts into an open folder, and gives the sums of its files."""
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

    own = {key: tensor for key, tensor in tensors.items() if _is_first_copy(key, tensor)}
    if not own:
        return {}
    writer, files = HuggingFaceStorageWriter("", _in_files(own), save_distributed=True), _Folder(within)
    writer.fs, writer.sync_files = files, False  # pyright: ignore[reportAttributeAccessIssue]  each is synced there
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(dict(own), is_coordinator=False)
    plan = planner.create_local_plan()
    numbered = writer.prepare_global_plan([plan] * (rank + 1))[-1]  # the n-th plan's files have the number n
    writer.write_data(planner.finish_plan(numbered), planner).wait()
    return files.sums


def _is_first_copy(key: str, tensor: Any) -> bool:
    """Whether this rank holds a part, and no rank before it along the mesh holds the same."""
    here = tensor.device_mesh.get_coordinate()
    if here is None:
        return False
    region_of(key, tensor)  # refuses what can't be kept
    if tensor.dtype == torch.complex128:
        raise InvalidArgument(f"{key!r} is sharded and complex128, which its files can't hold; use complex64")
    return all(place == 0 for place, each in zip(here, tensor.placements, strict=True) if each.is_replicate())


def _in_files(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """The number of the file, from 1 on, that each tensor goes to."""
    numbers: dict[str, int] = {}
    number, held = 1, 0
    for key, tensor in tensors.items():
        size = local_of(tensor).nbytes
        if held and held + size > _MOST:
            number, held = number + 1, 0
        numbers[key], held = number, held + size
    return numbers


class _Folder:
    """What DCP takes for a file system: an open folder, with the sums of what was written."""

    def __init__(self, within: int) -> None:
        self.sums: dict[str, Sum] = {}
        self._within = within

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator["_Stream"]:
        with new_file(str(path), self._within) as file:
            yield _Stream(file)
            self.sums[str(path)] = file.sum()

    def concat_path(self, path: Any, suffix: str) -> str:
        return suffix


class _Stream:
    """A new file as DCP wants it; when it is closed is not DCP's affair."""

    def __init__(self, file: NewFile) -> None:
        self._file = file
        self.write = file.write

    def tell(self) -> int:
        return self._file.sum().bytes

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass
