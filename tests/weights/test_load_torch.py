"""`load_torch` reads tensors of `torch.save` files and refuses everything that could run code."""

import pickle
import random
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from torch import nn

from stoker.errors import BadFile, InvalidArgument, MissingFile
from stoker.weights import load, load_torch, save


@pytest.mark.parametrize("zipped", [True, False])
def test_a_state_dict_is_read_and_loads(tmp_path, zipped):
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    torch.save(model.state_dict(), tmp_path / "m.pt", _use_new_zipfile_serialization=zipped)
    tensors = load_torch(tmp_path / "m.pt")
    assert type(tensors) is dict
    again = load(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), tensors)
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in again.state_dict().items())


def test_nested_tensors_are_chosen_by_key_only(tmp_path):
    path = tmp_path / "checkpoint.pt"
    torch.save({"epoch": 3, "model": nn.Linear(2, 2).state_dict(), "rng": torch.zeros(3)}, path)
    assert list(load_torch(path, key="model")) == ["weight", "bias"]
    with pytest.raises(
        InvalidArgument, match=r"does not map names to tensors only: .*'epoch', 'model'; choose one with key='model'"
    ):
        load_torch(path)
    with pytest.raises(
        InvalidArgument, match=r"has no key 'modle'; its keys are 'epoch', 'model', 'rng'; did you mean 'model'"
    ):
        load_torch(path, key="modle")
    with pytest.raises(InvalidArgument, match=r"\['epoch'\] holds a int; expected a mapping"):
        load_torch(path, key="epoch")
    torch.save([torch.zeros(1)], path)
    with pytest.raises(InvalidArgument, match=r"holds a list; expected a mapping"):
        load_torch(path)
    with pytest.raises(InvalidArgument, match=r"has no key 'model'; it holds a list"):
        load_torch(path, key="model")


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_with_other_objects_is_refused_and_runs_nothing(tmp_path, zipped):
    class Trap:
        def __reduce__(self):
            return Path.write_text, (tmp_path / "trapped", "code ran")

    path = tmp_path / "m.pt"
    for content in (nn.Linear(1, 1), {"weight": torch.zeros(1), "more": Trap()}):
        torch.save(content, path, _use_new_zipfile_serialization=zipped)
        with pytest.raises(
            BadFile, match=r"holds more than tensors.*weights_only=True.*torch.load\(path, weights_only=False\)"
        ):
            load_torch(path)
    assert not (tmp_path / "trapped").exists()


def test_other_files_are_refused(tmp_path):
    with pytest.raises(BadFile, match=r"was not written by torch.save; stoker.load reads"):
        load_torch(save(nn.Linear(1, 1), tmp_path / "m"))
    with pytest.raises(MissingFile, match=r"there is no file"):
        load_torch(tmp_path / "absent.pt")
    for content in (b"", b"hello", pickle.dumps({"a": 1})):
        (tmp_path / "x.pt").write_bytes(content)
        with pytest.raises(BadFile):
            load_torch(tmp_path / "x.pt")


@pytest.mark.parametrize("zipped", [True, False])
def test_a_damaged_file_raises_bad_file(tmp_path, zipped):
    path, chance = tmp_path / "m.pt", random.Random(0)
    torch.save(OrderedDict(weight=torch.arange(6.0)), path, _use_new_zipfile_serialization=zipped)
    good = path.read_bytes()
    for _ in range(100):
        made = bytearray(good)
        made[chance.randrange(len(made))] ^= 1 << chance.randrange(8)
        path.write_bytes(made[: chance.choice([len(made), chance.randrange(len(made))])])
        try:
            load_torch(path)
        except (BadFile, InvalidArgument):
            continue
