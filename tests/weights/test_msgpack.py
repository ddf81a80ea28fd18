import tracemalloc

import msgpack
import pytest
import torch
from torch import nn

from stoker.errors import BadFile
from stoker.weights import load, save


def test_any_reader_of_messagepack_finds_the_numbers(tmp_path):
    model = nn.Linear(3, 2)
    content = msgpack.unpackb(save(model, tmp_path / "m", format="msgpack").read_bytes())
    assert content["tensors"]["weight"] == {"dtype": "float32", "shape": [2, 3]}
    data = torch.frombuffer(bytearray(content["data"]["weight"]), dtype=torch.float32)
    assert torch.equal(data.reshape(2, 3), model.weight)


def test_a_file_that_another_packer_wrote_again_loads(tmp_path):
    model = nn.Linear(3, 2)
    path = save(model, tmp_path / "m", format="msgpack")
    path.write_bytes(msgpack.packb(msgpack.unpackb(path.read_bytes())))  # shorter lengths for the same bytes
    assert torch.equal(load(nn.Linear(3, 2), path).weight, model.weight)


def changed(content: dict, **parts) -> bytes:
    return msgpack.packb({**content, **parts})


def test_forged_parts_are_refused(tmp_path):
    path = save(nn.Linear(1, 1), tmp_path / "m", format="msgpack")
    content = msgpack.unpackb(path.read_bytes())
    pair = {"dtype": "float32", "shape": [1]}
    for forged, text in [
        (changed(content, tensors={**content["tensors"], "bias": {"dtype": "float32", "shape": [-1]}}), "not negative"),
        (changed(content, tensors={**content["tensors"], "bias": {"dtype": "int32", "shape": [1]}}), "checksum"),
        (changed(content, tensors={**content["tensors"], "bias": {"dtype": 3, "shape": [1]}}), "dtype 3"),
        (changed(content, tensors={**content["tensors"], "bias": {"shape": [1]}}), "expected dtype and shape"),
        (changed(content, tensors={"weight": pair}, data={"weight": b""}), "checksums are not those of its tensors"),
        (changed(content, tensors=[1, 2]), "list of tensors is"),
        (changed(content, tensors=7), "no MessagePack file of weights"),
        (changed(content, metadata={"a": 1}), "strings to strings"),
        (changed(content, metadata={"a": "b"}), "checksum"),
        (changed(content, stoker=None), "noted in it is damaged"),
        (
            changed(content, stoker={**content["stoker"], "aliases": {"x": "y"}}),
            "point to tensors that it doesn't hold",
        ),
        (changed(content, stoker={**content["stoker"], "precision": 3}), "noted in it is damaged"),
        (changed(content, data={"weight": b"123", "bias": b"1234"}), "'weight' should be is something else"),
        (changed(content, data={"weight": "1234", "bias": b"1234"}), "'weight' should be is something else"),
        (changed(content, data={"weight": b"1234", "bias": b"1234"}), "numbers of 'weight' are not those"),
        (changed(content, data={}), "no map of stoker"),
        (changed(content, more=1), "is no weights file"),
        (path.read_bytes() + b"\xc0", "goes on after its last tensor"),
        (path.read_bytes()[:-1], "ends too early"),
        (b"\x84\xa1a\x01\xa1a\x01\xa1b\x01", "'a' comes twice"),
        (b"\x84" + b"\x91" * 5000, "no MessagePack file"),
        (b"\x84\xa6stoker\xdd\xff\xff\xff\xff", "no MessagePack file"),
        (b"\x84\xa6stoker\xc6\xff\xff\xff\xff", "no MessagePack file"),
        (b"\x84\xa6stoker\xc7\x01\x05a", "no MessagePack file"),
    ]:
        (tmp_path / "forged").write_bytes(forged)
        with pytest.raises(BadFile, match=text):
            load(nn.Linear(1, 1), tmp_path / "forged")


def test_claims_of_size_cost_no_memory(tmp_path):
    path = tmp_path / "forged"
    tracemalloc.start()
    for forged in (b"\x84" + b"\xdc\xff\xff" * 1000, b"\x84\xdb\x7f\xff\xff\xff", b"\x84\xdf\xff\xff\xff\xff"):
        path.write_bytes(forged)
        with pytest.raises(BadFile):
            load(nn.Linear(1, 1), path)
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()
