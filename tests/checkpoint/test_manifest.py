"""The manifest: every field is checked, and damage to it is noticed."""

import json
import math
import zlib
from dataclasses import asdict

import pytest

from stoker.checkpoint import Store
from stoker.errors import InvalidArgument
from tests.checkpoint.states import place


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "checkpoints", run="5f0c")
    store.write({"seen": 1}, place(120))
    store.write({"seen": 2}, place(120, epoch=3, minutes=1.5, reason="every 5 updates", values={"valid/loss": 0.1}))
    return store


def manifest_of(store):
    return json.loads((store.folder / "00000120.1" / "manifest.json").read_text())


def forge(store, **fields) -> None:
    """Writes a manifest with other fields and a checksum that matches them."""
    found = {**manifest_of(store), **fields}
    found = {name: value for name, value in found.items() if value is not ... and name != "crc32"}
    found["crc32"] = f"{zlib.crc32(json.dumps(found, sort_keys=True).encode()):08x}"
    (store.folder / "00000120.1" / "manifest.json").write_text(json.dumps(found))


def problem(store) -> str:
    found = store.newest()
    assert found.saved.name == "00000120" and store.saved() == [found.saved]
    (text,) = found.problems
    return text


def test_a_manifest_holds_all_fields(store):
    found, saved = manifest_of(store), store.saved()[1]
    rest = {"files": found["files"], "crc32": found["crc32"]}
    assert found == {"version": 1, "ranks": None, **asdict(saved), **rest}
    content = (store.folder / "00000120.1" / "state.json").read_bytes()
    assert found["files"] == {"state.json": {"bytes": len(content), "crc32": f"{zlib.crc32(content):08x}"}}
    forge(store)
    assert store.saved()[1] == saved


def test_values_that_json_cannot_hold_are_restored(tmp_path):
    store = Store(tmp_path)
    values = {"a": math.nan, "b": math.inf, "c": -math.inf, "d": -0.0}
    store.write({}, place(1, values=values))
    json.loads((tmp_path / "00000001" / "manifest.json").read_text(), parse_constant=pytest.fail)
    assert repr(store.saved()[0].values) == repr(values)


def entry(size=None, crc32="00000000") -> dict:
    return {"bytes": 10 if size is None else size, "crc32": crc32}


WRONG = {
    "epoch": (-1, 1.0, "1"), "batch": (True,), "update": (10**18,), "bytes": (None,), "time": (1e300, "x"),
    "minutes": (-1,), "reason": (None,), "ended": (3,), "run": ([],), "resumable": (1,), "name": ("../x", 1),
    "values": ([], {"a": "1"}, {"a": None}), "ranks": (0, -1, "2", True),
    "files": (
        [], {}, {"model.safetensors": entry()},
        *({"state.json": entry(), name: entry(0)} for name in ("../x.safetensors", "/etc/passwd", "a/b.safetensors")),
        *({"state.json": entry(), name: entry(0)} for name in ("manifest.json", "notes.txt", "", ".", "\0")),
        *({"state.json": each} for each in (None, {}, {"bytes": 100}, entry(-1), entry(1e2), entry(2**28 + 1))),
        *({"state.json": each} for each in (entry(crc32=0), entry(crc32="0"), entry(crc32="0000000G"))),
    ),
}  # fmt: skip


@pytest.mark.parametrize("field", WRONG)
def test_every_field_is_checked(store, field):
    for value in WRONG[field]:
        forge(store, **{field: value})
        assert problem(store).startswith(f"00000120.1/manifest.json is damaged: {field} is not "), value


@pytest.mark.parametrize(("fields", "text"), [
    ({"version": 2}, "was written by a newer stoker (checkpoint version 2, this one reads 1); install a newer"),
    ({"version": 0}, "is not a manifest of version 1"), ({"version": "1"}, "is not a manifest of version 1"),
    ({"version": ...}, "other fields"), ({"epoch": ...}, "other fields"), ({"more": 1}, "other fields"),
    ({"update": 121}, "the name does not match the update"), ({"bytes": 101}, "bytes is not the sum of its files"),
    ({"ranks": 2}, "the shards do not match the number of ranks"), ({"ranks": ...}, "other fields"),
    ({"name": "00000120"}, "belongs to the checkpoint 00000120, not to 00000120.1"),
    ({"run": "other"}, "belongs to another run ('other', not '5f0c')"),
], ids=range(12))  # fmt: skip
def test_the_fields_have_to_match_each_other(store, fields, text):
    forge(store, **fields)
    assert text in problem(store)


def test_a_change_without_a_new_checksum_is_damage(store):
    path = store.folder / "00000120.1" / "manifest.json"
    path.write_text(path.read_text().replace('"epoch":3', '"epoch":4'))
    assert problem(store) == "00000120.1/manifest.json is damaged: its checksum does not match"
    for wrong in ("[]", "3", "{}", "null", "{", '{"epoch": 1, "epoch": 1}', "NaN"):
        path.write_text(wrong)
        assert problem(store).startswith("00000120.1/manifest.json")


@pytest.mark.parametrize(("fields", "text"), [
    ({"update": -1}, r"update of a checkpoint is an integer from 0 to 10\*\*18; got -1"),
    ({"epoch": 1.5}, "epoch of a checkpoint is an integer"), ({"reason": None}, "reason .* is a string; got None"),
    ({"values": {"a": "x"}}, "values .* is a mapping of names to numbers"), ({"values": {1: 1.0}}, "mapping of names"),
    ({"minutes": math.nan}, "minutes of a checkpoint is a number"),
], ids=range(6))  # fmt: skip
def test_a_place_that_could_not_be_read_is_not_written(tmp_path, fields, text):
    with pytest.raises(InvalidArgument, match=text):
        Store(tmp_path).write({}, place(**{"update": 3, "batch": 1, **fields}))
    assert list(tmp_path.iterdir()) == []


def test_a_manifest_is_limited_in_size(store):
    path = store.folder / "00000120.1" / "manifest.json"
    path.write_bytes(path.read_bytes().ljust((1 << 20) + 1))
    assert problem(store) == "00000120.1/manifest.json has 1,048,577 bytes; a manifest has at most 1,048,576"
