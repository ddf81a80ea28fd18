"""Which format a file is, and what becomes of damaged ones: thousands of them, of every format."""

import gc
import gzip
import io
import pickle
import random
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
import torch
from torch import nn

from stoker.errors import BadFile, StateMismatch
from stoker.weights import inspect, load, save

KINDS = [(format, compress) for format in ("safetensors", "msgpack", "json") for compress in (False, True)]


def small_model(fill: float | None = None) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[3].weight = model[2].weight
    model.register_buffer("phases", torch.tensor([1 + 2j, 3 - 1j], dtype=torch.complex128))
    model[1].running_mean.copy_(torch.randn(4))
    if fill is not None:
        for tensor in model.state_dict().values():
            tensor.fill_(fill)
    return model


def snapshot(model: nn.Module) -> dict[str, bytes]:
    return {name: tensor.reshape(-1).view(torch.uint8).numpy().tobytes() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize(("format", "compress"), KINDS)
@pytest.mark.parametrize("name", ["weights", "weights.pt", "weights.json", "weights.safetensors.gz"])
def test_the_name_does_not_matter(tmp_path, format, compress, name):
    path = save(small_model(), tmp_path / "m", format=format, compress=compress).rename(tmp_path / name)
    assert snapshot(load(small_model(fill=3), path)) == snapshot(small_model())
    assert (inspect(path).format, inspect(path).compressed) == (format, compress)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_of_torch_is_named_as_such_and_not_opened(tmp_path, zipped):
    class Trap:
        def __reduce__(self):
            return Path.write_text, (tmp_path / "trapped", "code ran")

    path = tmp_path / "model.safetensors"
    for content in (nn.Linear(1, 1).state_dict(), Trap()):
        torch.save(content, path, _use_new_zipfile_serialization=zipped)
        with pytest.raises(BadFile, match=r"a file of torch\.save \(a pickle.*stoker\.load_torch"):
            load(nn.Linear(1, 1), path)
    for protocol in range(2, 6):
        path.write_bytes(pickle.dumps(Trap(), protocol=protocol))
        with pytest.raises(BadFile, match=r"pickle"):
            load(nn.Linear(1, 1), path)
    assert not (tmp_path / "trapped").exists()


@pytest.mark.parametrize(("content", "text"), [
    (b"", r"is empty"),
    (b"<!DOCTYPE html><html>", r"is no weights file: it starts with b'<!DOCTYPE html><'; expected safetensors"),
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:1", r"Git LFS pointer"),
    (b"\x89PNG\r\n\x1a\n", r"is no weights file"),
    (b"{", r"is not the JSON that it should be"),
    (b'{"weight_map": {}}', r"is JSON, but no weights"),
    (b"\x84", r"is no MessagePack file of weights"),
    (b"\xde\x00\x01\xa1a\x01", r"is no MessagePack file of weights: it is no map of"),
    (b"\xdf\xff\xff\xff\xff" + bytes(20), r"is no MessagePack file of weights"),
    (gzip.compress(b"", mtime=0), r"is empty"),
    (b"\x1f\x8b", r"ends too early|damaged gzip"),
])  # fmt: skip
def test_what_is_no_weights_file_is_told_what_it_is(tmp_path, content, text):
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    with pytest.raises(BadFile, match=text) as caught:
        load(nn.Linear(1, 1), path)
    assert str(path) in str(caught.value)


def damaged(good: bytes, other: bytes, chance: random.Random) -> bytes:
    """One of: cut, flipped, overwritten, spliced within itself or with another file, lengthened."""
    made, length = bytearray(good), len(good)
    match chance.randrange(8):
        case 0:
            del made[chance.randrange(length) :]
        case 1:
            made[chance.randrange(length)] ^= 1 << chance.randrange(8)
        case 2:  # the first bytes are where lengths and marks are
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
        case 7:  # digits, where there are any, are numbers that still parse
            digits = [place for place, byte in enumerate(good) if 48 <= byte < 58] or [0]
            made[chance.choice(digits)] = 48 + chance.randrange(10)
    return bytes(made)


@pytest.mark.parametrize(("format", "compress"), KINDS)
def test_a_damaged_file_is_refused_or_harmless(tmp_path, format, compress):
    """1,000 of each kind: an error of ours and an untouched model, or exactly what was saved; never much memory."""
    good = save(small_model(), tmp_path / "good", format=format, compress=compress).read_bytes()
    other = save(small_model(fill=0.5), tmp_path / "other", format=format, compress=compress).read_bytes()
    saved, model = snapshot(small_model()), small_model(fill=3)
    untouched = snapshot(model)
    path, chance, refused = tmp_path / "damaged", random.Random(f"{format}{compress}"), 0
    gc.collect()
    tracemalloc.start()
    for _ in range(1000):
        path.write_bytes(damaged(good, other, chance))
        try:
            load(model, path)
        except (BadFile, StateMismatch):
            refused += 1
            assert snapshot(model) == untouched
        else:
            assert snapshot(model) == saved
            load(model, {name: torch.full_like(tensor, 3) for name, tensor in model.state_dict().items()})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert refused > 800
    assert peak < 32 << 20


@pytest.mark.parametrize("format", ["safetensors", "msgpack", "json"])
def test_damage_under_intact_gzip_is_refused_or_harmless(tmp_path, format):
    """Where gzip's own checksum was made after the damage."""
    good = save(small_model(), tmp_path / "good", format=format).read_bytes()
    saved, path, chance = snapshot(small_model()), tmp_path / "damaged", random.Random(format)
    for _ in range(300):
        path.write_bytes(gzip.compress(damaged(good, good[::-1], chance), 1))
        model = small_model(fill=3)
        try:
            load(model, path)
        except (BadFile, StateMismatch):
            continue
        assert snapshot(model) == saved


def test_noise_is_refused(tmp_path):
    chance, path = random.Random(0), tmp_path / "noise"
    starts = [
        b"",
        b"{",
        b"\x84",
        b"\x84\xa6stoker",
        b"\x1f\x8b\x08\x00",
        b"\x20\0\0\0\0\0\0\0{",
        b'{"tensors": {"weight": ',
    ]
    for number in range(350):
        path.write_bytes(starts[number % len(starts)] + chance.randbytes(chance.randrange(1, 200)))
        with pytest.raises(BadFile):
            load(nn.Linear(1, 1), path)


def test_a_reader_that_mapped_the_old_file_keeps_it_when_a_new_one_is_saved(tmp_path):
    from safetensors.torch import load_file

    old, new = small_model(), small_model(fill=0.25)
    path = save(old, tmp_path / "m")
    mapped = load_file(path)
    save(new, path)
    assert torch.equal(mapped["0.weight"], old[0].weight)
    assert torch.equal(load(small_model(), path)[0].weight, new[0].weight)


def test_the_file_that_was_opened_is_the_one_that_is_read(tmp_path):
    """A new file that takes the place of one while that is being loaded doesn't mix with it."""
    from stoker.weights._file import open_weights

    old = small_model()
    path = save(old, tmp_path / "m")
    with open_weights(path, limit=0) as (_, _, contents):
        save(small_model(fill=0.25), path)
        tensors = dict(contents.tensors(contents.head.tensors))
    assert torch.equal(tensors["0.weight"], old[0].weight)


def test_one_tensor_is_in_memory_at_a_time(tmp_path):
    """Torch's own memory counts too, so it is measured as the peak of a process."""
    program = """
import resource, sys, torch
from torch import nn
from stoker.weights import load, save
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024  # MiB
def there_and_back(model):
    for precision in ("full", "half"):
        for format in ("safetensors", "msgpack"):
            load(model, save(model, sys.argv[1] + "/m", precision=precision, format=format))
there_and_back(nn.Linear(1, 1))
model = nn.ModuleList([nn.Linear(1024, 1024, bias=False) for _ in range(24)])  # 24 tensors of 4 MiB
before = peak()
there_and_back(model)
print(peak() - before)
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, capture_output=True, text=True)
    assert int(done.stdout) < 48  # MiB: a tensor and its casts, far from a second model


def test_pickle_is_not_even_imported_by_the_readers():
    buffer = io.StringIO()
    for file in Path(__file__).parents[2].joinpath("stoker", "weights").glob("*.py"):
        if file.name != "_torch.py":
            buffer.write(file.read_text())
    text = buffer.getvalue()
    assert not any(
        word in text for word in ("import pickle", "torch.load(", "importlib", "eval(", "exec(", "__import__")
    )
