"""All formats restore every bit, and other programs read and write the same files."""

import gzip
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import hypothesis.strategies as st
import msgpack
import pytest
import torch
from hypothesis import given, settings
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from stoker.weights import Listing, inspect, load, save
from tests.weights.models import DTYPES, FORMATS, Holder, bits, every_dtype, same_bits, small_model, snapshot

KINDS = [(format, compress) for format in FORMATS for compress in (False, True)]


@settings(max_examples=60, deadline=None)
@given(
    dtype=st.sampled_from(DTYPES),
    shape=st.lists(st.integers(0, 3), max_size=4).map(tuple),
    seed=st.integers(0, 1000),
    format=st.sampled_from(FORMATS),
    compress=st.booleans(),
)
def test_any_bits_of_any_dtype_are_restored_by_any_format(dtype, shape, seed, format, compress):
    generator = torch.Generator().manual_seed(seed)
    size = (*shape, dtype.itemsize)
    random = torch.randint(0, 2 if dtype == torch.bool else 256, size, dtype=torch.uint8, generator=generator)
    given = random.view(dtype).reshape(shape)  # with NaNs of every payload, infinities and subnormals
    with tempfile.TemporaryDirectory() as folder:
        path = save(Holder(t=given), Path(folder) / "m", format=format, compress=compress)
        restored = load(Holder(t=torch.zeros(shape, dtype=dtype)), path)
        assert inspect(path).tensors["t"].dtype == dtype
    assert same_bits(restored.t, given)


@pytest.mark.parametrize("format", FORMATS)
def test_edge_values_and_layouts_are_restored(tmp_path, format):
    given = {
        "floats": torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-45, 3.4e38]),
        "odd_nan": torch.tensor([0x7FC00001, -0x400000], dtype=torch.int32).view(torch.float32),
        "unsigned": torch.tensor([0, 2**64 - 1], dtype=torch.uint64),
        "strided": torch.arange(12.0).reshape(3, 4).t()[::2],
        "conjugate": torch.tensor([[1 + 2j, 3 - 4j]]).conj(),
        "scalar": torch.tensor(3.5),
        "empty": torch.zeros(2, 0, 3),
        "complex_scalar": torch.tensor(1 + 2j, dtype=torch.complex128),
        "large": torch.randn(3, 200, 200),  # which JSON writes in pieces
    }
    blank = Holder(**{name: torch.full_like(tensor, 7).contiguous() for name, tensor in given.items()})
    restored = load(blank, save(Holder(**given), tmp_path / "m", format=format))
    for name, tensor in given.items():
        assert same_bits(getattr(restored, name), tensor), name


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype.is_floating_point and dtype.itemsize <= 2])
def test_json_restores_every_number_of_a_small_float(tmp_path, dtype):
    count = 256**dtype.itemsize
    given = torch.arange(count, dtype=torch.int32).to(torch.uint8 if count == 256 else torch.uint16).view(dtype)
    restored = load(Holder(t=torch.zeros(count, dtype=dtype)), save(Holder(t=given), tmp_path / "m", format="json"))
    assert same_bits(restored.t, given)


@pytest.mark.parametrize("length", [0x180, 0x280, 0x380, 0x480, 0x580, 0x88B1F])
@pytest.mark.parametrize("compress", [False, True])
def test_a_header_of_any_length_is_not_taken_for_another_format(tmp_path, length, compress):
    """Its first bytes, the length, are those of a pickle or of gzip."""
    text = json.dumps({"t": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).ljust(length)
    content = length.to_bytes(8, "little") + text.encode() + torch.ones(1).numpy().tobytes()
    path = tmp_path / "m.safetensors"
    path.write_bytes(gzip.compress(content) if compress else content)
    assert load(Holder(t=torch.zeros(1)), path).t.item() == 1
    assert inspect(path).compressed == compress


@pytest.mark.parametrize(("format", "compress"), KINDS)
def test_format_and_gzip_are_recognised_by_content(tmp_path, format, compress):
    saved = save(small_model(), tmp_path / "m", format=format, compress=compress)
    path = saved.rename(tmp_path / "weights.json.gz")
    assert snapshot(load(small_model(fill=3), path)) == snapshot(small_model())
    assert (inspect(path).format, inspect(path).compressed) == (format, compress)


@pytest.mark.parametrize(("format", "compress"), KINDS)
def test_inspect_lists_names_shapes_and_metadata(tmp_path, format, compress):
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    model.register_buffer("phase", torch.zeros((), dtype=torch.complex128))
    path = save(model, tmp_path / "m", format=format, compress=compress, metadata={"run": "7"})
    listing = inspect(path)
    assert isinstance(listing, Listing)
    assert list(listing.tensors) == ["phase", "0.weight"]  # in the model's order
    assert listing.tensors["0.weight"].dtype == torch.float32 and listing.tensors["0.weight"].shape == (2, 2)
    assert listing.aliases == {"1.weight": "0.weight"}
    assert (listing.format, listing.compressed, listing.precision) == (format, compress, "full")
    assert listing.metadata == {"run": "7"}
    assert repr(listing).splitlines() == [
        f"{path.name}: {format}{', gzipped' if compress else ''}, full precision, 2 tensors, 5 numbers",
        "  phase     complex128 []",
        "  0.weight  float32 [2, 2]",
        "  1.weight  tied to 0.weight",
        "  run: 7",
    ]


# safetensors


def test_the_safetensors_package_reads_our_files(tmp_path):
    given = {name: tensor for name, tensor in every_dtype().items() if tensor.dtype != torch.complex128}
    path = save(Holder(**given), tmp_path / "m", metadata={"run": "7"})
    read = load_file(path)
    assert read.keys() == given.keys() and all(same_bits(read[name], given[name]) for name in given)
    with safe_open(path, "pt") as opened:
        assert opened.metadata()["run"] == "7"
        assert opened.metadata()["format"] == "pt"  # which transformers requires


def test_we_read_files_of_the_safetensors_package(tmp_path):
    given = {name: tensor for name, tensor in every_dtype().items() if tensor.dtype != torch.complex128}
    path = tmp_path / "theirs.safetensors"
    for metadata in (None, {"format": "pt", "note": "x"}):
        save_file(given, path, metadata=metadata)
        blank = Holder(**{name: torch.zeros(3, 5).to(tensor.dtype) for name, tensor in given.items()})
        load(blank, path)
        assert all(bits(getattr(blank, name)) == bits(tensor) for name, tensor in given.items())
        assert inspect(path).metadata == (metadata or {})
        assert inspect(path).precision is None
        assert len(repr(inspect(path)).splitlines()) >= 1 + len(given)


def test_tensors_are_aligned_to_their_item_size(tmp_path):
    given = {"a": torch.ones(3, dtype=torch.bool), "b": torch.ones(1), "c": torch.ones(1, dtype=torch.float64)}
    content = save(Holder(**given), tmp_path / "m").read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    assert length % 8 == 0
    assert all(header[name]["data_offsets"][0] % given[name].element_size() == 0 for name in given)


# MessagePack


def test_msgpack_reads_our_files_and_we_read_its_files(tmp_path):
    model = nn.Linear(3, 2)
    path = save(model, tmp_path / "m", format="msgpack")
    content = msgpack.unpackb(path.read_bytes())
    assert content["tensors"]["weight"] == {"dtype": "float32", "shape": [2, 3]}
    data = torch.frombuffer(bytearray(content["data"]["weight"]), dtype=torch.float32)
    assert torch.equal(data.reshape(2, 3), model.weight)
    path.write_bytes(msgpack.packb(content))  # which chooses shorter lengths for the same bytes
    assert torch.equal(load(nn.Linear(3, 2), path).weight, model.weight)


# JSON


def test_json_is_standard_and_readable(tmp_path):
    def refuse(word: str):
        raise AssertionError(f"{word} is not JSON")

    model = Holder(
        w=torch.tensor([[1.5, -2.0], [0.25, float("nan")]]),
        ends=torch.tensor([float("inf"), -float("inf")], dtype=torch.float16),
        odd=torch.tensor([-0x3FFFFF], dtype=torch.int32).view(torch.float32),
        on=torch.tensor([True, False]),
        z=torch.tensor([1 + 2j]),
        n=torch.tensor(7),
    )
    text = save(model, tmp_path / "m", format="json").read_text()
    found = json.loads(text, parse_constant=refuse)
    assert {name: each["values"] for name, each in found["tensors"].items()} == {
        "w": [[1.5, -2.0], [0.25, "NaN"]],
        "ends": ["Infinity", "-Infinity"],
        "odd": ["NaN:0xffc00001"],
        "on": [True, False],
        "z": [[1.0, 2.0]],
        "n": 7,
    }
    assert any(line.startswith('"w": {"dtype": "float32", "shape": [2, 2], ') for line in text.splitlines())


def test_json_that_was_reformatted_or_written_by_hand_loads(tmp_path):
    model = nn.Linear(2, 1)
    path = save(model, tmp_path / "m", format="json")
    path.write_text(json.dumps(json.loads(path.read_text()), indent=4))
    assert torch.equal(load(nn.Linear(2, 1), path).weight, model.weight)
    path.write_text("""
        {"tensors": {"weight": {"dtype": "float32", "shape": [1, 2], "values": [[0.1, 2]]},
                     "bias": {"dtype": "int64", "shape": [1], "values": [3]}}}
    """)
    restored = load(nn.Linear(2, 1), path)
    assert restored.weight.tolist() == torch.tensor([[0.1, 2]]).tolist()
    assert restored.bias.item() == 3
    assert inspect(path).precision is None


# Memory


@pytest.mark.soak
def test_one_tensor_is_in_memory_at_a_time(tmp_path):
    """torch's own memory counts too, so this measures the peak of a process."""
    program = """
import resource, sys, torch
from torch import nn
from stoker.weights import load, save
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024  # MiB
def save_and_load(model):
    for precision in ("full", "half"):
        for format in ("safetensors", "msgpack"):
            load(model, save(model, sys.argv[1] + "/m", precision=precision, format=format))
save_and_load(nn.Linear(1, 1))
model = nn.ModuleList([nn.Linear(1024, 1024, bias=False) for _ in range(24)])  # 24 tensors of 4 MiB
before = peak()
save_and_load(model)
print(peak() - before)
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, capture_output=True, text=True)
    assert int(done.stdout) < 48  # MiB: a tensor and its casts, far less than a second model


# Stored files of format 1


@pytest.mark.parametrize("path", sorted((Path(__file__).parent / "stored_files").iterdir()), ids=lambda path: path.name)
def test_stored_files_load_and_are_written_the_same_way(tmp_path, path):
    listing = inspect(path)
    given = small_model()
    written = save(
        given,
        tmp_path / path.name.split(".")[0],
        format=listing.format,
        precision=listing.precision,
        compress=listing.compressed,
        metadata=listing.metadata,
    )
    assert listing.aliases == {"3.weight": "2.weight"}
    exact = listing.precision != "half"
    assert snapshot(load(small_model(fill=3), path)) == (
        snapshot(given) if exact else snapshot(load(small_model(fill=3), written))
    )
    if not listing.compressed:  # gzip's bytes depend on the version of zlib
        assert written.read_bytes() == path.read_bytes()
