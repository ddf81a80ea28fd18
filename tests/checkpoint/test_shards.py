"""Shards to files, in a world of one; the ranks are in tests/distributed."""

import os

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

from stoker.checkpoint import _shards
from stoker.checkpoint._shards import parted, write_shards
from stoker.errors import InvalidArgument


@pytest.fixture
def mesh():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


@pytest.fixture
def folder(tmp_path):
    opened = os.open(tmp_path, os.O_RDONLY)
    yield opened
    os.close(opened)


def test_sharded_and_whole_ones_are_parted(mesh):
    sharded = distribute_tensor(torch.ones(2), mesh, [Shard(0)])
    whole, shards = parted({"model": {"a": sharded, "b": torch.ones(1)}, "best": {"a": sharded}})
    assert list(whole) == ["model"] and list(whole["model"]) == ["b"] and list(shards) == ["model/a", "best/a"]


def test_kinds_of_tensors_and_the_files_that_they_go_to(mesh, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(_shards, "_MOST", 40)  # bytes
    kinds = {
        "m/a": torch.arange(6.0).reshape(2, 3),
        "m/b": torch.tensor(3, dtype=torch.int16),
        "m/c": torch.ones(4, dtype=torch.bfloat16),
        "m/d": torch.tensor([True, False, True]),
        "m/e": torch.empty(0, 3),
        "m/large": torch.arange(20.0),
        "m/last": torch.ones(3, dtype=torch.complex64),
    }
    placed = {
        key: distribute_tensor(each, mesh, [Shard(0) if each.ndim else Replicate()], src_data_rank=None)
        for key, each in kinds.items()
    }
    sums = write_shards(placed, folder, 6)
    assert sorted(sums) == [f"shard-00007-model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
    found = {key: each for file in sums for key, each in load_file(tmp_path / file).items()}
    assert found.keys() == kinds.keys()
    assert all(found[key].dtype == each.dtype and torch.equal(found[key], each) for key, each in kinds.items())
    assert all((tmp_path / file).stat().st_size == said.bytes for file, said in sums.items())


def test_what_can_not_be_kept_is_refused_by_name(mesh, folder, tmp_path):
    wide = distribute_tensor(torch.ones(2, dtype=torch.complex128), mesh, [Shard(0)])
    with pytest.raises(InvalidArgument, match="'m/a' is sharded and complex128, .* use complex64"):
        write_shards({"m/a": wide}, folder, 0)
    part = distribute_tensor(torch.ones(2), mesh, [Partial()])
    with pytest.raises(InvalidArgument, match=r"'m/a' is a sum that its processes have not made yet \(a partial"):
        write_shards({"m/a": part}, folder, 0)
    assert os.listdir(tmp_path) == [] and write_shards({}, folder, 0) == {}
