"""Checkpoints of many ranks: whole or absent for all of them, and read again by any number, sharded or not."""

import json
import os
import pickle
import signal
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn

from stoker.checkpoint import Checkpoint, Place, Saver, Store, load_model_state, model_state
from stoker.distributed import join, local_region
from stoker.errors import BadFile, CheckpointFailed, InvalidArgument, PeerFailed
from stoker.optim import AdamW
from stoker.weights import load, save

from .processes import run

POLICY = Checkpoint(every=10, keep_last=2).policy()
SIZES = (1, 3)


def network(seed=0):
    """Rows that two and three ranks divide, that they don't, and that are fewer than the ranks; a buffer; no bias."""
    torch.manual_seed(seed)
    layers = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 7), nn.Linear(7, 1, bias=False)
    return nn.Sequential(*layers).to(torch.float64)


def sharded(model, size):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (size,))
    for layer in model[:3]:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def made(kind, size, seed=0):
    model = network(seed)
    if kind == "fsdp":
        sharded(model, size)
    return model, AdamW().init(model)


def trained(kind, size):
    """A model and its optimizer after two updates that are the same on every rank."""
    from stoker import backward

    model, optimizer = made(kind, size)
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for _ in range(2):
        optimizer.step(backward(model(x).square().mean(), model), lr=0.1)
    return model, optimizer


def state_of(model, optimizer, rank):
    random = torch.full((2,), rank)  # of what is whole, rank 0's is written
    return {"model": model_state(model), "optimizer": optimizer.state_dict(), "random": random, "seen": (3, None)}


def whole(tree):
    """A state with its tensors whole."""
    if isinstance(tree, torch.Tensor):
        return tree.full_tensor() if hasattr(tree, "full_tensor") else tree
    if isinstance(tree, dict):
        return {key: whole(value) for key, value in tree.items()}
    return type(tree)(whole(each) for each in tree) if isinstance(tree, list | tuple) else tree


def same(one, other):
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one.cpu(), other.cpu())
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return one == other


def place(update):
    return Place(epoch=1, batch=update, update=update)


@contextmanager
def no_pickle():
    """Fails if anything is unpickled meanwhile, including messages between ranks."""

    def refuse(*args, **kwargs):
        raise AssertionError("a pickle was read")

    with pytest.MonkeyPatch.context() as patch:
        for module, name in ((pickle, "loads"), (pickle, "load"), (pickle, "Unpickler"), (torch, "load")):
            patch.setattr(module, name, refuse)
        patch.setattr(torch.distributed.distributed_c10d, "_unpickler", refuse)
        yield


# --- written by n ranks, read by m


def write_all(rank, size, folder):
    """One checkpoint of each kind, and what it should give, as rank 0 knows it."""
    expected = {}
    for kind in ("fsdp", "plain"):
        store = Store(f"{folder}/{kind}{size}", run="5f0c", world=join())
        model, optimizer = trained(kind, size)
        state = state_of(model, optimizer, rank)
        with no_pickle():
            saved = store.write(state, place(120))
        assert saved.name == "00000120" and store.saved() == [saved]
        expected[kind] = whole(state)
        assert same(store.newest().state, expected[kind] | {"random": torch.full((2,), 0)})
        files = sorted(os.listdir(store.folder / "00000120"))
        shards = [name for name in files if name.startswith("shard-")]
        assert len(shards) == (size if kind == "fsdp" else 0)
        manifest = json.loads((store.folder / "00000120/manifest.json").read_text())
        assert (manifest["version"], manifest["ranks"]) == (1, size if shards else None)
    return expected


def read_all(rank, size, folder):
    """Loads every checkpoint into a sharded model and into an ordinary one."""
    outcomes = {}
    for kind in ("fsdp", "plain"):
        for path in sorted(Path(folder).iterdir()):
            model, optimizer = made(kind, size, seed=9)
            with no_pickle():
                found = Store(path, run="5f0c", world=join()).newest(like=model)
            assert found.problems == []
            moments = found.state["optimizer"]["rules"][0]["state"]
            assert len(moments) == 7
            for name, own in model_state(model)["parameters"].items():
                for loaded in (found.state["model"]["parameters"][name], moments[name]["exp_avg"]):
                    assert hasattr(loaded, "full_tensor") == (kind == "fsdp")
                    if kind == "fsdp":
                        assert loaded.placements == own.placements and loaded.to_local().shape == own.to_local().shape
            load_model_state(model, found.state["model"])
            optimizer.load_state_dict(found.state["optimizer"])
            outcomes[kind, path.name] = whole(state_of(model, optimizer, 0))
            # A state that was read whole fits as well.
            load_model_state(model, Store(path, run="5f0c", world=join()).newest().state["model"])
            assert same(whole(model_state(model)), outcomes[kind, path.name]["model"])
    return outcomes


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("written")
    expected = {}
    for size in SIZES:
        first = run(write_all, size, str(folder))[0]
        expected |= {f"{kind}{size}": state for kind, state in first.items()}
    return folder, expected


@pytest.mark.parametrize("size", [2, pytest.param(1, marks=pytest.mark.soak)])
def test_any_number_of_ranks_reads_what_any_other_number_has_written(written, size):
    folder, expected = written
    for outcomes in run(read_all, size, str(folder)):
        assert len(outcomes) == 8
        for (_, name), state in outcomes.items():
            assert same(state, expected[name])


@pytest.mark.soak
def test_torch_can_read_the_shards(written):
    from torch.distributed.checkpoint import HuggingFaceStorageReader

    folder, expected = written
    reader = HuggingFaceStorageReader(str(folder / "fsdp3" / "00000120"))
    found = reader.read_metadata().state_dict_metadata
    for name, tensor in expected["fsdp3"]["model"]["parameters"].items():
        assert found[f"model/parameters.{name}"].size == tensor.shape


# --- failures, and work during a save: one launch for all of them


def all_trouble(rank, size, folder):
    return {each.__name__: each(rank, size, f"{folder}/{each.__name__}") for each in (damage, fail, odd_state, move_on)}


@pytest.fixture(scope="module")
def troubles(tmp_path_factory):
    return run(all_trouble, 2, str(tmp_path_factory.mktemp("troubles")))


def damage(rank, size, folder):
    world = join()
    store = Store(folder, run="5f0c", world=world)
    model, optimizer = trained("fsdp", size)
    for update in (10, 20, 30, 40):
        store.write(state_of(model, optimizer, rank), place(update))
    world.barrier()
    if rank == 0:
        shard = "shard-00002-model-00001-of-00001.safetensors"
        torn = bytearray((store.folder / "00000040" / shard).read_bytes())
        torn[-3] ^= 1
        (store.folder / "00000040" / shard).write_bytes(torn)
        (store.folder / "00000030" / shard).unlink()
        (store.folder / "00000020" / shard).write_bytes(b"short")
    world.barrier()
    found = store.newest(like=model)
    assert found.saved.update == 10 and same(whole(found.state["model"]), whole(model_state(model)))
    with pytest.raises(BadFile, match="damaged"):
        store.read(store.saved()[-1])
    return found.problems


def test_all_ranks_skip_a_checkpoint_with_a_damaged_shard(troubles):
    problems, others = (trouble["damage"] for trouble in troubles)
    assert problems == others
    shard = "shard-00002-model-00001-of-00001.safetensors"
    assert problems[0] == f"rank 1: 00000040/{shard} is damaged: its checksum does not match"
    assert problems[1] == f"rank 0: 00000030/{shard} does not exist"
    assert problems[2].startswith(f"rank 0: 00000020/{shard} has 5 bytes; ")


class Full:
    """A disk that is full for one rank from some moment on, for files of a kind."""

    def __init__(self, prefix):
        from stoker.checkpoint import _disk

        self.prefix, self.create, self.module = prefix, _disk.create, _disk
        _disk.create = self

    def __call__(self, path):
        if path.name.startswith(self.prefix):
            raise OSError(28, "No space left on device")
        return self.create(path)

    def repair(self):
        self.module.create = self.create


FAILURES = [("fsdp", 1, "shard", True), ("fsdp", 0, "state", False), ("plain", 0, "manifest", True)]


def fail(rank, size, folder):
    """Writes that fail on one rank: a shard of rank 1's, rank 0's plain half, rank 0's whole state."""
    texts = []
    for kind, broken, prefix, background in FAILURES:
        world = join()
        store = Store(f"{folder}/{kind}{broken}", run="5f0c", world=world)
        saver = Saver(store, POLICY, background=background)
        model, optimizer = trained(kind, size)
        saver.save(state_of(model, optimizer, rank), place(10))
        saver.wait()
        disk = Full(prefix) if rank == broken else None
        if background:
            saver.save(state_of(model, optimizer, rank), place(20))
            while not saver.has_failed:
                assert len(saver.take_finished()) <= 1  # it is not raised here, where the other rank may not be
        with pytest.raises(CheckpointFailed) as failed:
            saver.wait() if background else saver.save(state_of(model, optimizer, rank), place(20))
        if disk is not None:
            disk.repair()
        texts.append(str(failed.value))
        world.barrier()  # rank 0 has removed what there was
        assert sorted(os.listdir(store.folder)) == ["00000010"] and not store.has_leftovers
        for update in (20, 30):
            saver.save(state_of(model, optimizer, rank), place(update))
        saver.close()
        assert [each.update for each in saver.take_finished()][-2:] == [20, 30]
        assert [each.update for each in store.saved()] == [20, 30]
        assert same(whole(store.newest(like=model).state["model"]), whole(model_state(model)))
    return texts


def test_a_write_that_fails_on_one_rank_fails_on_all(troubles):
    for rank, trouble in enumerate(troubles):
        for text, (_, broken, _, _) in zip(trouble["fail"], FAILURES, strict=True):
            where = "" if rank == broken else f"rank {broken}: "
            assert text.startswith("the checkpoint at update 20 could not be written to ")
            assert f": {where}OSError: [Errno 28] No space left on device. Free some space there, then resume" in text
            assert text.endswith("resume the run: 00000010 is complete")


def odd_state(rank, size, folder):
    """A state that can't be saved, on one rank only: all ranks raise at once."""
    store = Store(folder, world=join())
    with pytest.raises(TypeError if rank else PeerFailed, match="is a object" if rank else "^rank 1: WrongType: .*odd"):
        store.write({"odd": object() if rank else 1}, place(10))
    assert not os.path.exists(folder)
    return True


def test_error_for_a_state_that_one_rank_can_not_save(troubles):
    assert [trouble["odd_state"] for trouble in troubles] == [True, True]


def move_on(rank, size, folder):
    """A thread writes the state at the time of the call, although the weights change meanwhile."""
    from stoker.checkpoint import _disk

    world, go = join(), threading.Event()
    real = _disk.create

    def late(path):
        assert go.wait(60)
        return real(path)

    _disk.create = late
    store = Store(folder, run="5f0c", world=world)
    saver = Saver(store, POLICY, background=True)
    model, optimizer = trained("fsdp", size)
    state = whole(model_state(model))
    expected = {key: {name: each.clone() for name, each in state[key].items()} for key in ("parameters", "buffers")}
    saver.save(state_of(model, optimizer, rank), place(10))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert world.all_gather(rank) == list(range(size))  # messages of the training, while the thread's are in flight
    assert saver.take_finished() == []
    go.set()
    saver.wait()
    _disk.create = real
    assert [each.name for each in saver.take_finished()] == ["00000010"]
    found = store.newest(like=model).state["model"]
    assert same({key: whole(found[key]) for key in expected}, expected)
    return True


def test_a_background_save_writes_the_state_at_the_time_of_the_call(troubles):
    assert [trouble["move_on"] for trouble in troubles] == [True, True]


def die(rank, size, folder, victim):
    """One rank is killed while it writes the second checkpoint."""
    from stoker.checkpoint import _disk

    store = Store(folder, run="5f0c", world=join())
    model, optimizer = trained("fsdp", size)
    store.write(state_of(model, optimizer, rank), place(10))
    if rank == victim:
        _disk.sync = lambda file: os.kill(os.getpid(), signal.SIGKILL)
    store.write(state_of(model, optimizer, rank), place(20))


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.soak
def test_a_rank_that_is_killed_leaves_no_partial_checkpoint(tmp_path, victim):
    with pytest.raises(AssertionError, match="the connection to the other ranks was lost while they saved") as failed:
        run(die, 2, str(tmp_path), victim)
    assert f"rank {victim}:\nended with -9" in str(failed.value)
    store = Store(tmp_path, run="5f0c")
    found = store.newest()
    assert found.saved.update == 10 and found.problems == []
    assert store.has_leftovers == (victim == 0)  # rank 0 removes what it began
    store.clean()
    assert os.listdir(tmp_path) == ["00000010"]


# --- meshes of two dimensions, and weights as one file


def meshes(rank, size, folder):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    from torch.distributed.tensor.placement_types import _StridedShard

    mesh, world = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tp")), join()
    for kind in ("copies", "both", "uneven"):
        torch.manual_seed(0)
        rows = 6 if kind == "uneven" else 8
        model = nn.Sequential(nn.Linear(4, rows), nn.Linear(rows, 4))
        expected = {name: value.clone() for name, value in model.state_dict().items()}
        if kind == "copies":
            fully_shard(model, mesh=mesh)
        else:
            parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
            fully_shard(model, mesh=mesh["data"])
        store = Store(f"{folder}/{kind}", world=world)
        store.write({"model": model_state(model)}, place(10))
        shards = [name for name in os.listdir(store.folder / "00000010") if name.startswith("shard")]
        assert len(shards) == (2 if kind == "copies" else 4)
        assert same(store.newest().state["model"]["parameters"], expected)
        found = store.newest(like=model).state["model"]
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        load_model_state(model, found)
        assert same(whole(model_state(model))["parameters"], expected)
        path = save(model, f"{folder}/{kind}.safetensors")
        with pytest.raises(Exception, match=r"cannot write .* is not a directory") as failed:
            save(model, f"{path}/inside")
        assert rank == 0 or str(failed.value).startswith("rank 0 could not save the model: InvalidArgument: ")
        assert same(load(nn.Sequential(nn.Linear(4, rows), nn.Linear(rows, 4)), path).state_dict(), expected)
    rows = distribute_tensor(torch.arange(8), mesh, [Shard(0), _StridedShard(0, split_factor=2)], src_data_rank=None)
    with pytest.raises(InvalidArgument, match="'it' is sharded twice .* rows are not contiguous"):
        local_region("it", rows)
    return True


@pytest.mark.soak
def test_replicas_of_shards_and_shards_along_two_dimensions(tmp_path):
    assert run(meshes, 4, str(tmp_path)) == [True] * 4
