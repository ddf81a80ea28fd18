"""Damaged and forged files raise `BadFile`, change nothing, run nothing and need little memory."""

import gc
import gzip
import json
import pickle
import random
import tracemalloc
import zlib
from pathlib import Path

import msgpack
import pytest
import torch
from torch import nn

import stoker.weights
from stoker.errors import BadFile, MissingFile, StateMismatch
from stoker.weights import inspect, load, save
from tests.weights.models import FORMATS, Holder, small_model, snapshot

KINDS = [(format, compress) for format in FORMATS for compress in (False, True)]


def test_a_missing_file_names_a_similar_one(tmp_path):
    save(nn.Linear(1, 1), tmp_path / "model")
    with pytest.raises(BadFile, match=r"there is no file '.*model'; did you mean '.*model\.safetensors'\?"):
        load(nn.Linear(1, 1), tmp_path / "model")
    with pytest.raises(BadFile, match=r"no file '.*modle.safetensors'; did you mean 'model.safetensors'\?"):
        load(nn.Linear(1, 1), tmp_path / "modle.safetensors")
    for family in (BadFile, FileNotFoundError, MissingFile):
        with pytest.raises(family, match=r"there is no file '.*folder'"):
            load(nn.Linear(1, 1), tmp_path / "no" / "folder")
    with pytest.raises(BadFile, match=r"is a directory"):
        load(nn.Linear(1, 1), tmp_path)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_of_torch_save_is_recognised_and_not_opened(tmp_path, zipped):
    class Trap:
        def __reduce__(self):
            return Path.write_text, (tmp_path / "trapped", "code ran")

    path = tmp_path / "model.safetensors"
    for content in (nn.Linear(1, 1).state_dict(), Trap()):
        torch.save(content, path, _use_new_zipfile_serialization=zipped)
        with pytest.raises(BadFile, match=r"was written by torch\.save \(a pickle.*stoker\.load_torch"):
            load(nn.Linear(1, 1), path)
    for protocol in range(2, 6):
        path.write_bytes(pickle.dumps(Trap(), protocol=protocol))
        with pytest.raises(BadFile, match=r"pickle"):
            load(nn.Linear(1, 1), path)
    assert not (tmp_path / "trapped").exists()


def test_the_readers_contain_no_way_to_run_code():
    files = [path for path in Path(stoker.weights.__file__).parent.glob("*.py") if path.name != "_torch.py"]
    text = "".join(path.read_text() for path in files)
    for word in ("import pickle", "torch.load(", "importlib", "eval(", "exec(", "__import__"):
        assert word not in text


@pytest.mark.parametrize(("content", "text"), [
    (b"", r"is empty"),
    (b"<!DOCTYPE html><html>", r"is not a weights file: it starts with b'<!DOCTYPE html><'; expected safetensors"),
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:1", r"Git LFS pointer"),
    (b'{"weight_map": {}}', r"is JSON, but not weights"),
    (b"\xde\x00\x01\xa1a\x01", r"is not a MessagePack file of weights: expected a map of"),
    (gzip.compress(b"", mtime=0), r"is empty"),
    (b"\x1f\x8b", r"ends too early|damaged gzip"),
])  # fmt: skip
def test_the_error_says_what_a_file_is_instead(tmp_path, content, text):
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    with pytest.raises(BadFile, match=text) as caught:
        load(nn.Linear(1, 1), path)
    assert str(path) in str(caught.value)


# Forged safetensors headers


def forge(path, header, data: bytes = b"", length: int | None = None) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)


def entry(dtype="F32", shape=(1,), offsets=(0, 4)) -> dict:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.mark.parametrize(("header", "data", "text"), [
    ({"w": entry(offsets=(0, 8), shape=(2,))}, bytes(4), r"ends too early"),
    ({"w": entry()}, bytes(8), r"has bytes after its last tensor"),
    ({"w": entry(shape=(-1,), offsets=(0, -4))}, b"", r"expected integers of at least 0"),
    ({"w": entry(shape=(2**40, 2**40))}, bytes(4), r"which is too large"),
    ({"w": entry(shape=(2**40,))}, bytes(4), r"4,398,046,511,104 bytes, but has the offsets \[0, 4\]"),
    ({"w": entry(shape=(0, 2**62, 4), offsets=(0, 0))}, b"", r"which is too large"),
    ({"w": entry(shape=(1,) * 70)}, bytes(4), r"expected integers of at least 0"),
    ({"w": entry(dtype="X9")}, bytes(4), r"has the unknown dtype 'X9'"),
    ({"w": entry(offsets=(-4, 0))}, bytes(4), r"but has the offsets \[-4, 0\]"),
    ({"w": entry(offsets=(0,))}, bytes(4), r"but has the offsets \[0\]"),
    ({"w": entry(), "v": entry(offsets=(2, 6))}, bytes(8), r"overlaps the tensor before it"),
    ({"w": entry(), "v": entry(offsets=(8, 12))}, bytes(12), r"has a gap before it"),
    ({"w": {"dtype": "F32"}}, bytes(4), r"is described by"),
    ({"__metadata__": {"a": 1}, "w": entry()}, bytes(4), r"not a mapping of strings to strings"),
    ({"__metadata__": {"stoker": "{"}, "w": entry()}, bytes(4), r"stoker's entry in the header is damaged"),
    ({"__metadata__": {"stoker": '{"version": 2}'}, "w": entry()}, bytes(4), r"written by a newer stoker .*version 2"),
    (b"[1]" + b" " * 8, b"", r"not a weights file"),
    (b'{"w": 1, "w": 2}', b"", r"'w' appears twice"),
    (b'{"w": ' + b"[" * 100_000, b"", r"expected JSON"),
])  # fmt: skip
def test_a_forged_safetensors_header_is_refused(tmp_path, header, data, text):
    path = tmp_path / "forged"
    forge(path, header, data)
    for read in (inspect, lambda path: load(Holder(w=torch.zeros(1)), path)):
        with pytest.raises(BadFile, match=text):
            read(path)


def test_a_header_that_claims_too_many_bytes_is_refused(tmp_path):
    path = tmp_path / "forged"
    forge(path, b"{}", length=2**32)
    with pytest.raises(BadFile, match=r"the header claims 4,294,967,296 bytes; at most 100,000,000 are read"):
        load(Holder(w=torch.zeros(1)), path)
    forge(path, b"{}", length=90_000_000)
    with pytest.raises(BadFile, match=r"ends too early"):
        load(Holder(w=torch.zeros(1)), path)


def test_a_header_of_many_tensors_is_refused_before_it_is_parsed(tmp_path):
    path = tmp_path / "forged"
    tensor = b'"%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    forge(path, b"{" + b",".join(tensor % number for number in range(150_000)) + b"}")
    for read in (inspect, lambda path: load(nn.Linear(1, 1), path)):
        with pytest.raises(BadFile, match=r"the header describes more than 100,000 tensors"):
            read(path)


# Forged MessagePack


def test_forged_messagepack_is_refused(tmp_path):
    path = save(nn.Linear(1, 1), tmp_path / "m", format="msgpack", metadata={"run": "7"})
    content = msgpack.unpackb(path.read_bytes())

    def changed(**parts) -> bytes:
        return msgpack.packb({**content, **parts})

    def with_bias(bias) -> bytes:
        return changed(tensors={**content["tensors"], "bias": bias})

    def with_info(**parts) -> bytes:
        return changed(stoker={**content["stoker"], **parts})

    for forged, text in [
        (with_bias({"dtype": "int32", "shape": [1]}), "checksum of its names"),
        (
            changed(tensors={"weight": content["tensors"]["weight"]}, data={"weight": b""}),
            "are not those of the tensors",
        ),
        (changed(tensors=[1, 2]), "list of tensors is"),
        (changed(metadata={"run": "8"}), "checksum of its names"),
        (changed(stoker=None), "stoker's entry in the header is damaged"),
        (with_info(aliases={"x": "y"}), "are not those of the tensors"),
        (with_info(precision=3), "stoker's entry in the header is damaged"),
        (with_info(precision="half"), "checksum of its names"),
        (changed(data={"weight": b"123", "bias": b"1234"}), "expected the tensor 'weight' of 4 bytes"),
        (changed(data={"weight": b"1234", "bias": b"1234"}), "checksum of 'weight' does not match"),
        (changed(more=1), "is not a weights file"),
        (path.read_bytes() + b"\xc0", "has bytes after its last tensor"),
        (path.read_bytes()[:-1], "ends too early"),
        (b"\x84\xa1a\x01\xa1a\x01\xa1b\x01", "'a' appears twice"),
        (b"\x84\xa6stoker\xdd\xff\xff\xff\xff", "not a MessagePack file"),
        (b"\x84\xa6stoker\xc6\xff\xff\xff\xff", "not a MessagePack file"),
        (b"\x84\xa6stoker\xc7\x01\x05a", "not a MessagePack file"),
    ]:
        (tmp_path / "forged").write_bytes(forged)
        with pytest.raises(BadFile, match=text):
            load(nn.Linear(1, 1), tmp_path / "forged")


def test_claimed_sizes_allocate_no_memory(tmp_path):
    path = tmp_path / "forged"
    tracemalloc.start()
    for forged in (b"\x84" + b"\xdc\xff\xff" * 1000, b"\x84\xdb\x7f\xff\xff\xff", b"\x84\xdf\xff\xff\xff\xff"):
        path.write_bytes(forged)
        with pytest.raises(BadFile):
            load(nn.Linear(1, 1), path)
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


# Forged JSON


@pytest.mark.parametrize(("dtype", "shape", "values", "text"), [
    ("float32", [2], [1.0], r"do not have the shape \[2\]"),
    ("float32", [2], [1.0, True], r"True is not a number"),
    ("float32", [2], [1.0, "two"], r"'two' is not a number"),
    ("float32", [2], [1.0, "NaN:0x3f800000"], r"does not have the bits of a NaN"),
    ("float32", [2], [1.0, "NaN:0xzzzzzzzz"], r"do not fit the dtype"),
    ("float32", [2], [1.0, 1e300], r"a number is too large"),
    ("uint8", [2], [1, 256], r"256 is out of range"),
    ("int64", [2], [1, 2**63], r"out of range"),
    ("int64", [2], [1, 1.0], r"1.0 is not an integer"),
    ("bool", [2], [True, 1], r"1 is not a bool"),
    ("complex64", [2], [1.0, 2.0], r"do not have the shape"),
])  # fmt: skip
def test_json_values_that_do_not_fit_are_refused(tmp_path, dtype, shape, values, text):
    path = tmp_path / "m.json"
    path.write_text(json.dumps({"tensors": {"t": {"dtype": dtype, "shape": shape, "values": values}}}))
    with pytest.raises(BadFile, match=text):
        load(Holder(t=torch.zeros(2, dtype=torch.complex64)), path)


@pytest.mark.parametrize(("content", "text"), [
    ('{"tensors": {}, "tensors": {}}', r"'tensors' appears twice"),
    ('{"tensors": {"t": {"dtype": "float32", "shape": [1], "values": [NaN]}}}', r'NaN is not valid JSON; write'),
    ('{"tensors": {"t": 3}}', r"the tensor 't' is described by 3; expected dtype, shape, values"),
    ('{"tensors": {}, "stoker": {}}', r"stoker's entry in the header is damaged"),
    ('{"tensors": {}}' + " " * 2_000_000, r"is JSON of more than [\d,]+ bytes, more than the model needs"),
    ('{"tensors": {"t": {"dtype": "int64", "shape": [1], "values": [' + "1" * 5000 + "]}}}", r"expected JSON"),
])  # fmt: skip
def test_json_that_is_not_weights_is_refused(tmp_path, content, text):
    path = tmp_path / "m.json"
    path.write_text(content)
    with pytest.raises(BadFile, match=text):
        load(Holder(t=torch.zeros(1)), path)


# Gzip


@pytest.mark.parametrize("start", [
    b'{"tensors": ',
    (90_000_000).to_bytes(8, "little") + b"{",
    b"\x84\xdb\x05\xf5\xe0\x00",
])  # fmt: skip
def test_a_gzip_bomb_is_refused_without_unpacking_it(tmp_path, start):
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    pieces = [packer.compress(start), *(packer.compress(b" " * (1 << 20)) for _ in range(100)), packer.flush()]
    path = tmp_path / "bomb"
    path.write_bytes(b"".join(pieces))
    tracemalloc.start()
    with pytest.raises(BadFile, match=r"unpacks to more than [\d,]+ bytes.*larger limit="):
        load(nn.Linear(2, 2), path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20


def test_the_limit_for_gzip_can_be_changed(tmp_path):
    path = save(nn.Linear(2, 2), tmp_path / "m", compress=True, metadata={"long": " " * (2 << 20)})
    with pytest.raises(BadFile, match=r"more than 1,"):
        load(nn.Linear(2, 2), path)
    load(nn.Linear(2, 2), path, limit=3 << 20)
    with pytest.raises(BadFile, match=r"more than 1,000 bytes"):
        inspect(path, limit=1000)


def test_gzip_that_is_too_long_truncated_or_damaged_is_refused(tmp_path):
    path = save(nn.Linear(20, 20), tmp_path / "m", compress=True)
    good = path.read_bytes()
    for content, text in [
        (gzip.compress(gzip.decompress(good) + b"more"), r"has bytes after its last tensor"),
        (good[:-100], r"ends too early"),
        (good[:-8] + bytes(8), r"damaged gzip"),
    ]:
        path.write_bytes(content)
        with pytest.raises(BadFile, match=text):
            load(nn.Linear(20, 20), path)


# Random damage


def damage(good: bytes, other: bytes, chance: random.Random) -> bytes:
    """Cuts, flips, overwrites, splices or lengthens a file."""
    made, length = bytearray(good), len(good)
    match chance.randrange(8):
        case 0:
            del made[chance.randrange(length) :]
        case 1:
            made[chance.randrange(length)] ^= 1 << chance.randrange(8)
        case 2:  # the first bytes hold lengths and magic numbers
            made[chance.randrange(min(64, length))] = chance.randrange(256)
        case 3:
            for _ in range(chance.randrange(1, 10)):
                made[chance.randrange(length)] = chance.randrange(256)
        case 4:
            start = chance.randrange(length)
            del made[start : start + chance.randrange(1, 40)]
        case 5:
            start, end = sorted(chance.sample(range(length), 2))
            made[end:end] = made[start:end]
        case 6:
            start = chance.randrange(length)
            piece = other[chance.randrange(len(other)) :][: chance.randrange(1, 60)]
            made[start : start + len(piece)] = piece
        case 7:  # other digits, which still parse as numbers
            digits = [place for place, byte in enumerate(good) if 48 <= byte < 58] or [0]
            made[chance.choice(digits)] = 48 + chance.randrange(10)
    return bytes(made)


@pytest.mark.parametrize("count", [100, pytest.param(400, marks=pytest.mark.soak)])
@pytest.mark.parametrize(("format", "compress"), KINDS)
def test_a_damaged_file_is_refused_or_harmless(tmp_path, format, compress, count):
    """Either an error and an unchanged model, or exactly what was saved; and never much memory."""
    good = save(small_model(), tmp_path / "good", format=format, compress=compress).read_bytes()
    other = save(small_model(fill=0.5), tmp_path / "other", format=format, compress=compress).read_bytes()
    saved, model = snapshot(small_model()), small_model(fill=3)
    unchanged = snapshot(model)
    path, chance, refused = tmp_path / "damaged", random.Random(f"{format}{compress}{count}"), 0
    gc.collect()
    tracemalloc.start()
    for _ in range(count):
        path.write_bytes(damage(good, other, chance))
        try:
            load(model, path)
        except (BadFile, StateMismatch):
            refused += 1
            assert snapshot(model) == unchanged
        else:
            assert snapshot(model) == saved
            load(model, {name: torch.full_like(tensor, 3) for name, tensor in model.state_dict().items()})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert refused > 0.8 * count
    assert peak < 32 << 20
