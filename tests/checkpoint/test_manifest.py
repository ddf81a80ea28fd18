import json
import math
import zlib
from dataclasses import replace

import pytest

from stoker.checkpoint._manifest import LARGEST, Manifest, Sum, check_place, from_text, to_text
from stoker.checkpoint._place import Moment, Place, Saved
from stoker.errors import BadFile, InvalidArgument

FILES = {"state.json": Sum(10, "0000abcd"), "model.safetensors": Sum(90, "12345678")}
SAVED = Saved(
    epoch=3, batch=12, update=120, minutes=1.5, reason="every 5 updates", ended=None, resumable=True,
    values={"valid/loss": 0.1}, name="00000120.1", run="5f0c", time=1.75e9, bytes=100,
)  # fmt: skip


def changed(**fields) -> bytes:
    """A manifest with other content and a checksum that fits: damage by somebody who knows how."""
    found = json.loads(to_text(Manifest(SAVED, FILES)))
    found.pop("crc32")
    for name, value in fields.items():
        if value is ...:
            del found[name]
        else:
            found[name] = value
    found["crc32"] = f"{zlib.crc32(json.dumps(found, sort_keys=True).encode()):08x}"
    return json.dumps(found).encode()


def test_a_manifest_comes_back():
    for saved in (SAVED, replace(SAVED, ended="stopped: café", resumable=False, values={}, time=0, minutes=0)):
        assert from_text(to_text(Manifest(saved, FILES)), "here") == Manifest(saved, FILES)


def test_values_that_json_has_no_word_for_come_back():
    values = {"a": math.nan, "b": math.inf, "c": -math.inf, "d": -0.0}
    text = to_text(Manifest(replace(SAVED, values=values), FILES))
    json.loads(text, parse_constant=pytest.fail)
    assert repr(from_text(text, "here").saved.values) == repr(values)


def test_it_has_everything_in_it():
    found = json.loads(to_text(Manifest(SAVED, FILES)))
    assert found.keys() == {"version", "files", "crc32", *vars(SAVED)}
    assert found["version"] == 1
    assert found["files"]["state.json"] == {"bytes": 10, "crc32": "0000abcd"}
    assert found == json.loads(changed())


def summed(size=100, crc32="00000000") -> dict:
    return {"bytes": size, "crc32": crc32}


WRONG = {
    "epoch": (-1, 1.0, "1", None), "batch": (True, []), "update": (10**18, 2**80), "bytes": (None, 1e2),
    "time": (1e300, "x", -1, None), "minutes": (-1, "nan"), "reason": (None, 3), "ended": (3, True), "run": ([], None),
    "resumable": (1, None), "name": ("../x", 1, "00000120/", ""),
    "values": ([], {"a": "1"}, {"a": 1}, {"a": None}, {"a": [1.0]}),
    "files": (
        [], {}, {"model.safetensors": summed()},
        *({"state.json": summed(), name: summed(0)} for name in ("../x.safetensors", "/etc/passwd", "a/b.safetensors")),
        *({"state.json": summed(), name: summed(0)} for name in ("manifest.json", "notes.txt", "", ".", "\0")),
        *({"state.json": each} for each in (None, {}, {"bytes": 100}, summed(-1), summed(1e2), summed(2**28 + 1))),
        *({"state.json": each} for each in (summed(crc32=0), summed(crc32="0"), summed(crc32="0000000G"))),
    ),
}  # fmt: skip


@pytest.mark.parametrize("field", WRONG)
def test_every_field_is_checked(field):
    assert from_text(changed(), "here").saved == SAVED
    for value in WRONG[field]:
        with pytest.raises(BadFile, match=f"^here is damaged: its {field} is not "):
            from_text(changed(**{field: value}), "here")


@pytest.mark.parametrize(("fields", "text"), [
    ({"version": 3}, r"was written by a newer stoker \(checkpoint version 3, this one reads 2\); install a newer"),
    ({"version": 0}, "no manifest of version 1"), ({"version": "1"}, "no manifest of version 1"),
    ({"version": ...}, "other fields"), ({"epoch": ...}, "other fields"), ({"more": 1}, "other fields"),
    ({"update": 121}, "its name is not its update's"), ({"bytes": 101}, "its bytes are not the sum of its files'"),
], ids=range(8))  # fmt: skip
def test_fields_have_to_fit_together(fields, text):
    with pytest.raises(BadFile, match=f"^here .*{text}"):
        from_text(changed(**fields), "here")


def test_a_change_without_a_new_checksum_is_damage():
    text = to_text(Manifest(SAVED, FILES))
    with pytest.raises(BadFile, match=r"here is damaged: it doesn't say what was written \(checksum\)"):
        from_text(text.replace(b'"epoch":3', b'"epoch":4'), "here")
    for wrong in (b"[]", b"3", b"{}", b"null"):
        with pytest.raises(BadFile, match="^here is"):
            from_text(wrong, "here")


@pytest.mark.parametrize(("fields", "text"), [
    ({"update": -1}, r"a checkpoint's update is a whole number from 0 on, below 10\*\*18; got -1"),
    ({"epoch": 1.5}, "epoch is a whole number"), ({"reason": None}, "reason is a text; got None"),
    ({"values": {"a": "x"}}, "values is numbers by name"), ({"values": {1: 1.0}}, "values is numbers by name"),
    ({"minutes": math.nan}, "minutes is a number"),
], ids=range(6))  # fmt: skip
def test_a_place_that_couldnt_be_read_again_is_not_written(fields, text):
    with pytest.raises(InvalidArgument, match=text):
        check_place(replace(Place(epoch=1, batch=2, update=3), **fields))


def test_any_kind_of_place_will_do():
    check_place(Moment(epoch=1, batch=2, update=3, epoch_ended=True, values={"a": 1, "b": math.nan}))


def test_a_manifest_that_would_not_be_read_is_not_written():
    with pytest.raises(InvalidArgument, match=r"manifest would have .* at most 1,048,576 are read; give it a shorter"):
        to_text(Manifest(replace(SAVED, reason="x" * LARGEST["manifest.json"]), FILES))
