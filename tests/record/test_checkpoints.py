"""Listing the checkpoints of a run from their manifests, without torch."""

import json
import math
import os

import pytest

from stoker.checkpoint import Place, Store
from stoker.errors import BadFile
from stoker.record import list_checkpoints


def write(path, update, *, run="5f0c"):
    place = Place(epoch=1, batch=0, update=update, reason="why", values={"valid/loss": float("nan"), "valid/f1": 0.5})
    return Store(path / "checkpoints", run=run).write({"x": 1}, place)


def test_intact_checkpoints_of_this_run_are_listed_oldest_first(tmp_path):
    saved = [write(tmp_path, update) for update in (5, 120, 120)]
    write(tmp_path, 6, run="other")
    found = list_checkpoints(tmp_path, {"id": "5f0c"})
    assert [each.name for each in found] == ["00000005", "00000120", "00000120.1"]
    last = saved[-1]
    assert found[-1][:6] == ("00000120.1", 120, 1, "why", last.bytes, last.time)
    assert math.isnan(found[-1].values["valid/loss"]) and found[-1].values["valid/f1"] == 0.5
    assert list_checkpoints(tmp_path, {}) == list_checkpoints(tmp_path / "nowhere", {"id": "5f0c"}) == []


@pytest.mark.parametrize(
    "kind", ["torn", "list", "types", "values", "large", "link", "pipe", "folder", "gone", "linked folder"]
)
def test_a_damaged_manifest_is_left_out(tmp_path, kind):
    write(tmp_path, 5)
    odd = tmp_path / "checkpoints" / write(tmp_path, 7).name
    manifest = odd / "manifest.json"
    good = manifest.read_text()
    manifest.unlink()
    (tmp_path / "secret.json").write_text(good)
    if kind == "link":
        manifest.symlink_to(tmp_path / "secret.json")
    elif kind == "pipe":
        os.mkfifo(manifest)  # to read it would wait for ever
    elif kind == "folder":
        manifest.mkdir()
    elif kind == "linked folder":
        manifest.write_text(good)
        odd.rename(tmp_path / "elsewhere")
        odd.symlink_to(tmp_path / "elsewhere")
    elif kind != "gone":
        texts = {"torn": good[:40], "list": "[]", "large": good + " " * (1 << 20)}
        wrong = {"types": {"reason": ["x"]}, "values": {"values": {"valid/loss": None}}}
        manifest.write_text(texts.get(kind) or json.dumps({**json.loads(good), **wrong[kind]}))
    assert [each.update for each in list_checkpoints(tmp_path, {"id": "5f0c"})] == [5]


def test_a_file_in_place_of_the_directory_is_an_error(tmp_path):
    (tmp_path / "checkpoints").write_text("a file")
    with pytest.raises(BadFile, match="checkpoints can't be read: Not a directory"):
        list_checkpoints(tmp_path, {})
