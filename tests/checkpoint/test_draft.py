"""A checkpoint while it is written: beside its place until it is complete. Failures anywhere: test_faults."""

import os

import pytest
import torch

from stoker.checkpoint import _disk
from stoker.checkpoint._draft import abandon, begin, complete, drafted, fill
from stoker.checkpoint._names import is_leftover
from stoker.checkpoint._place import Place
from stoker.errors import WrongType

PLACE = Place(epoch=1, batch=2, update=10)


def test_it_stands_beside_its_place_until_it_is_complete(tmp_path):
    folder = tmp_path / "run" / "checkpoints"
    draft = drafted({"model": {"weight": torch.ones(2)}, "seen": 3}, PLACE)
    name, there = begin(folder, 10)
    assert name == "00000010" and is_leftover(there) and os.listdir(folder) == [there]
    assert fill(draft, folder, there, 0) == {} and os.listdir(folder / there) == []  # nothing is sharded
    saved = complete(draft, folder, "5f0c", (name, there), [{}])
    assert (saved.name, saved.run, saved.update) == ("00000010", "5f0c", 10)
    assert sorted(os.listdir(folder / name)) == ["manifest.json", "model.safetensors", "state.json"]
    assert begin(folder, 10)[0] == "00000010.1"


def test_what_is_abandoned_is_gone_and_twice_is_no_matter(tmp_path):
    _, there = begin(tmp_path, 10)
    abandon(tmp_path, there)
    abandon(tmp_path, there)
    assert os.listdir(tmp_path) == []


def test_an_interrupt_when_it_has_just_been_made_leaves_nothing(tmp_path, monkeypatch):
    real, calls = _disk.make_folder, []

    def interrupted(name, within=None):
        real(name, within)
        calls.append(name)
        raise KeyboardInterrupt

    monkeypatch.setattr(_disk, "make_folder", interrupted)
    with pytest.raises(KeyboardInterrupt):
        begin(tmp_path, 10)
    assert len(calls) == 1 and os.listdir(tmp_path) == []


def test_what_can_not_be_saved_is_known_before_anything_is_made():
    with pytest.raises(WrongType, match="'odd'"):
        drafted({"odd": object()}, PLACE)
