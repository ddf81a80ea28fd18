"""Sharded tensors in a world of one process; several processes: tests/distributed/test_checkpoint.py."""

import json
import os
import zlib

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

from stoker.checkpoint import Store
from stoker.errors import BadFile, InvalidArgument
from tests.checkpoint.states import place, same

FILE = "shard-00001-model-00001-of-00001.safetensors"


KINDS = {
    "a": torch.arange(6.0).reshape(2, 3),
    "b": torch.tensor(3, dtype=torch.int16),
    "c": torch.ones(4, dtype=torch.bfloat16),
    "d": torch.tensor([True, False, True]),
    "e": torch.empty(0, 3),
    "f": torch.ones(3, dtype=torch.complex64),
}


def test_sharded_tensors_are_written_to_a_file_of_their_own_and_read_whole(mesh, tmp_path):
    sharded = {
        name: distribute_tensor(each, mesh, [Shard(0) if each.ndim else Replicate()], src_data_rank=None)
        for name, each in KINDS.items()
    }
    store = Store(tmp_path)
    saved = store.write({"model": {**sharded, "whole": torch.ones(1)}, "best": {"a": sharded["a"]}}, place(1))
    files = sorted(os.listdir(tmp_path / saved.name))
    assert files == ["manifest.json", "model.safetensors", FILE, "state.json"]
    content = load_file(tmp_path / saved.name / FILE)
    assert content.keys() == {*(f"model/{name}" for name in KINDS), "best/a"}
    assert all(same(content[f"model/{name}"], each) for name, each in KINDS.items())
    assert same(store.read(saved), {"model": {**KINDS, "whole": torch.ones(1)}, "best": {"a": KINDS["a"]}})


def test_tensors_are_sharded_like_the_model(mesh, tmp_path):
    weight = torch.arange(6.0).reshape(2, 3)
    model = nn.Linear(3, 2, bias=False)
    model.weight = nn.Parameter(distribute_tensor(weight, mesh, [Shard(0)]))
    store = Store(tmp_path)
    for stored in (weight, distribute_tensor(weight, mesh, [Shard(1)])):
        saved = store.write({"model": {"weight": stored}, "moments": {"weight": {"m": stored}}}, place(1))
        found = store.read(saved, like=model)
        for each in (found["model"]["weight"], found["moments"]["weight"]["m"]):
            assert each.placements == model.weight.placements and same(each.full_tensor(), weight)


def test_a_tensor_that_shard_files_cannot_hold_is_named(mesh, tmp_path):
    store = Store(tmp_path / "checkpoints")
    wide = distribute_tensor(torch.ones(2, dtype=torch.complex128), mesh, [Shard(0)])
    with pytest.raises(InvalidArgument, match="'m/a' is sharded and complex128, .* use complex64"):
        store.write({"m": {"a": wide}}, place(1))
    with pytest.raises(InvalidArgument, match=r"'m/a' is a partial DTensor"):
        store.write({"m": {"a": distribute_tensor(torch.ones(2), mesh, [Partial()])}}, place(1))
    assert os.listdir(tmp_path / "checkpoints") == []


def forge(store, *files):
    """Replaces the shards of a checkpoint: each file maps names to (offsets, tensor)."""
    folder = store.folder / "00000001"
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["files"][FILE], manifest["crc32"]
    for number, tensors in enumerate(files):
        name = FILE.replace("00001-model", f"0000{number + 1}-model")
        if isinstance(tensors, bytes):
            (folder / name).write_bytes(tensors)
        else:
            offsets = {key: {"saved_offsets": start} for key, (start, _) in tensors.items() if start is not None}
            whole = {key: each.contiguous() for key, (_, each) in tensors.items()}
            save_file(whole, folder / name, metadata={"DCP_SHARDING_INFO": json.dumps(offsets)})
        content = (folder / name).read_bytes()
        manifest["files"][name] = {"bytes": len(content), "crc32": f"{zlib.crc32(content):08x}"}
    manifest["bytes"] = sum(each["bytes"] for each in manifest["files"].values())
    manifest["crc32"] = f"{zlib.crc32(json.dumps(manifest, sort_keys=True).encode()):08x}"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return store.read(store.saved()[0])


def test_parts_of_any_number_of_ranks_are_assembled(mesh, tmp_path):
    store, whole = Store(tmp_path), torch.arange(12.0).reshape(4, 3)
    store.write({"m": {"a": distribute_tensor(whole, mesh, [Shard(0)])}}, place(1))
    read = forge(store, {"m/a": ([0, 0], whole[:3])}, {"m/a": ([3, 0], whole[3:])}, {"m/a": ([4, 0], whole[4:])})
    assert same(read, {"m": {"a": whole}})
    replicated = forge(store, {"m/a": ([0, 0], whole)}, {"m/a": ([0, 0], whole)})
    assert same(replicated, {"m": {"a": whole}})


@pytest.mark.parametrize(("files", "text"), [
    ([{"m/a": ([0], torch.ones(2))}, {"m/a": ([3], torch.ones(2))}], r"'m/a' do not make a whole tensor \[5\]"),
    ([{"m/a": ([0], torch.ones(2))}, {"m/a": ([2, 0], torch.ones(2, 1))}], "different numbers of dimensions"),
    *(([{"m/a": (start, torch.ones(2))}], "does not say|do not make") for start in (None, [0, 0], "x", ["x"], 3, [-1])),
    ([b"no header at all"], "cannot be read"),
], ids=range(9))  # fmt: skip
def test_parts_that_do_not_make_a_tensor_are_refused(mesh, tmp_path, files, text):
    store = Store(tmp_path)
    store.write({"m": {"a": distribute_tensor(torch.ones(4), mesh, [Shard(0)])}}, place(1))
    with pytest.raises(BadFile, match=text):
        forge(store, *files)
