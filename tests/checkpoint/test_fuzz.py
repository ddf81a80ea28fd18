"""Damaged and forged checkpoints are refused with their name, or read as they were written.

Damage is random. Forged files have matching sizes and checksums, so that they reach the parsers.
"""

import functools
import json
import math
import os
import random
import resource
import shutil
import zlib
from collections import deque

import pytest
import torch

from stoker.checkpoint import Place, Store
from tests.checkpoint.states import same

STATE = {
    "model": {"weight": torch.arange(12.0).reshape(3, 4), "bias": torch.ones(3, dtype=torch.bfloat16)},
    "optimizer": {
        "rules": [{"m": torch.ones(2, dtype=torch.complex128), "count": 3}],
        "groups": {(0, "a"): torch.float16},
    },
    "random": {"python": (3, tuple(range(20)), None), "bytes": b"\0\1", "inf": math.inf},
    "seen": deque([1, 2.5, "three"], maxlen=5),
}
FILES = ("manifest.json", "state.json", "model.safetensors", "optimizer.safetensors")


@pytest.fixture(autouse=True)
def limited_memory():
    """At most 256 MiB more than now: the files have a few hundred bytes."""
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + (256 << 20), limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)


class Bench:
    """A store with two checkpoints, of which the newer one is changed and read again and again."""

    def __init__(self, folder):
        self.store = Store(folder, run="r")
        self.store.write({"at": 10}, Place(epoch=0, batch=0, update=10))
        self.saved = self.store.write(
            STATE, Place(epoch=1, batch=2, update=20, reason="x", values={"loss": 0.5, "n": math.nan})
        )
        self.folder = self.store.folder / "00000020"
        self.whole = {name: (self.folder / name).read_bytes() for name in FILES}
        self.refused = self.accepted = 0

    def check(self, files: dict[str, bytes], what: object, *, forged: bool = False) -> None:
        """Replaces the content of some files and reads the newest checkpoint."""
        self.put(files)
        self.check_newest(what, forged=forged)
        self.put({name: self.whole[name] for name in files})

    def put(self, files: dict[str, bytes]) -> None:
        for name, content in files.items():
            (self.folder / name).unlink()  # truncating and rewriting a file waits for the disk on ext4
            (self.folder / name).write_bytes(content)

    def check_newest(self, what: object, *, forged: bool = False) -> None:
        try:
            found = self.store.newest()
            self.store.saved()
        except BaseException as error:
            error.add_note(f"the change was: {what!r}"[:2000])
            raise
        assert found.saved is not None, what
        if found.saved.update == 10:
            assert len(found.problems) == 1 and found.problems[0].startswith("00000020"), what
            assert len(found.problems[0]) < 1000, what
            self.refused += 1
        else:
            assert forged or (same(found.state, STATE) and repr(found.saved) == repr(self.saved)), what
            self.accepted += 1

    def with_manifest(self, files: dict[str, bytes], **fields) -> dict[str, bytes]:
        """The files with a manifest that matches them, with other fields if given."""
        manifest = json.loads(self.whole["manifest.json"])
        for name, content in files.items():
            manifest["files"][name] = {"bytes": len(content), "crc32": f"{zlib.crc32(content):08x}"}
        manifest["bytes"] = sum(each["bytes"] for each in manifest["files"].values())
        return {**files, "manifest.json": signed({**manifest, **fields})}


def signed(manifest: dict) -> bytes:
    manifest.pop("crc32", None)
    manifest["crc32"] = f"{zlib.crc32(json.dumps(manifest, sort_keys=True).encode()):08x}"
    return json.dumps(manifest).encode()


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path / "checkpoints")


def damage(content: bytes, chance: random.Random, others: list[bytes]) -> bytes:
    """Flips, overwrites, cuts, lengthens or mixes content."""
    size = len(content)
    at, count = chance.randrange(size), chance.randint(1, 64)
    changed = bytearray(content)
    match chance.randrange(10):
        case 0 | 1 | 2:
            changed[at] ^= 1 << chance.randrange(8)
        case 3:
            changed[at] = chance.randrange(256)
        case 4:
            del changed[at:]
        case 5:
            changed += chance.randbytes(count)
        case 6:
            changed[at : at + count] = bytes(len(changed[at : at + count]))
        case 7:
            changed[at:at] = changed[max(0, at - count) : at]
        case 8:
            del changed[at : at + count]
        case 9:
            other = chance.choice(others)
            start = chance.randrange(len(other))
            changed[at : at + count] = other[start : start + count]
    return bytes(changed)


@pytest.mark.parametrize("count", [400, pytest.param(4000, marks=pytest.mark.soak)])
def test_damaged_files_are_refused_or_harmless(bench, count):
    chance = random.Random(1)
    contents = list(bench.whole.values())
    for number in range(count):
        name = FILES[number % len(FILES)]
        content = damage(bench.whole[name], chance, contents)
        if content != bench.whole[name]:
            bench.check({name: content}, (name, content))
    assert bench.refused > 0.95 * count
    assert bench.accepted <= 5  # such as a changed space in a manifest


@pytest.mark.soak
def test_a_flipped_bit_in_any_byte_is_noticed(bench):
    for name in FILES:
        content = bytearray(bench.whole[name])
        for at in range(len(content)):
            content[at] ^= 1 << at % 8
            bench.check({name: bytes(content)}, (name, at))
            content[at] ^= 1 << at % 8
    assert bench.accepted == 0


@pytest.mark.soak
def test_a_file_of_any_shorter_length_is_noticed(bench):
    for name in FILES:
        for length in range(len(bench.whole[name])):
            bench.check({name: bench.whole[name][:length]}, (name, length))
    assert bench.accepted == 0


@pytest.mark.parametrize("count", [250, pytest.param(2500, marks=pytest.mark.soak)])
def test_forged_bytes_are_refused_or_read(bench, count):
    chance = random.Random(2)
    contents = list(bench.whole.values())
    for number in range(count):
        name = FILES[1 + number % 3]
        content = damage(bench.whole[name], chance, contents)
        bench.check(bench.with_manifest({name: content}), (name, content), forged=True)
    assert bench.refused > 0.4 * count
    assert bench.accepted > 0.04 * count  # other numbers in a tensor are a valid state


many = pytest.mark.parametrize("count", [150, pytest.param(1500, marks=pytest.mark.soak)])

HOSTILE = [
    *(None, True, False, -1, 0, 1, 2**31, 2**63 - 1, 2**63, 2**64, 2**200, -(2**70), 0.5, 1e308, -0.0, 1e-320),
    *("", "x", "../x", "/etc/passwd", "a/b", "..", "\0", "\ud800", "x" * 5000, "NaN", "nan", "$tensor", "weight"),
    *([], {}, [[]], [None], {"": None}, {"$tensor": "weight"}, {"$mapping": [[1, 2]]}, {"$deque": [1], "maxlen": -3}),
    *({"bytes": 1, "crc32": "00000000"}, {"../x.safetensors": {"bytes": 1, "crc32": "00000000"}}, [2**62, 2**62]),
]  # fmt: skip
RAW = [b"NaN", b"1e999", b"9" * 5000, b'"\xff"', b"[" * 5000 + b"]" * 5000, b'{"a":' * 3000, b"tru", b""]


def places(value, path=()):
    """The path to every value in a JSON value."""
    yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inside:
        yield from places(each, (*path, key))


def replaced(value, path, new):
    if not path:
        return new
    copied = value.copy()
    copied[path[0]] = replaced(value[path[0]], path[1:], new)
    return copied


def renamed(value, path, new: str):
    """The value with another name for the last key of a path."""
    at = value
    for key in path[:-1]:
        at = at[key]
    if not isinstance(at, dict):
        return value
    return replaced(value, path[:-1], {new if key == path[-1] else key: each for key, each in at.items()})


def hostile_texts(text: bytes, chance: random.Random, count: int):
    """JSON with an unexpected value in one place, or text that is not JSON."""
    value = json.loads(text)
    every = list(places(value))
    for _ in range(count):
        path = chance.choice(every)
        match chance.randrange(6):
            case 0:
                raw = chance.choice(RAW)
                yield json.dumps(replaced(value, path, "@@")).encode().replace(b'"@@"', raw)
            case 1 if path:
                yield json.dumps(
                    renamed(value, path, chance.choice(["", "$tensor", "$tuple", "x", "../x", "0"]))
                ).encode()
            case _:
                yield json.dumps(replaced(value, path, chance.choice(HOSTILE))).encode()


@many
def test_hostile_states_are_refused_or_read(bench, count):
    for text in hostile_texts(bench.whole["state.json"], random.Random(4), count):
        bench.check(bench.with_manifest({"state.json": text}), text, forged=True)
    assert bench.refused > count / 3


@many
def test_hostile_tensors_are_refused_or_read(bench, count):
    chance = random.Random(5)
    for name in ("model.safetensors", "optimizer.safetensors"):
        content = bench.whole[name]
        length = int.from_bytes(content[:8], "little")
        for text in hostile_texts(content[8 : 8 + length], chance, count // 2):
            forged = len(text).to_bytes(8, "little") + text + content[8 + length :]
            bench.check(bench.with_manifest({name: forged}), text, forged=True)
    for length in (0, 1, 7, 99_999_999, 100_000_001, 2**32, 2**63, 2**64 - 1):
        bench.check(bench.with_manifest({name: length.to_bytes(8, "little") + content[8:]}), length, forged=True)
    assert bench.refused > 0.6 * count


def test_claimed_sizes_allocate_no_memory(bench):
    """The size of the file counts, not what the manifest claims; a hole in a file is not read."""
    for name in FILES[1:]:
        for size in (2**28, 2**40, 2**62):
            manifest = json.loads(bench.whole["manifest.json"])
            manifest["bytes"] += size - manifest["files"][name]["bytes"]
            manifest["files"][name]["bytes"] = size
            bench.check({"manifest.json": signed(manifest)}, (name, size))
    for name in FILES:
        os.truncate(bench.folder / name, 2**36)
        bench.check_newest(name)
        (bench.folder / name).write_bytes(bench.whole[name])
    assert bench.accepted == 0


def test_links_pipes_and_directories_are_refused(bench, tmp_path):
    shutil.copytree(bench.folder, tmp_path / "copy")
    makers = [
        lambda path: path.symlink_to(tmp_path / "copy" / path.name),
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.symlink_to(path),
        lambda path: path.symlink_to("/nowhere"),
        lambda path: path.mkdir(),
        lambda path: os.mkfifo(path),
        lambda path: None,
    ]
    for make in makers:
        for name in FILES:
            path = bench.folder / name
            path.unlink()
            make(path)
            bench.check_newest((name, make))
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
            path.write_bytes(bench.whole[name])
    shutil.rmtree(bench.folder)
    makers += [lambda path: path.write_text(""), lambda path: path.symlink_to(tmp_path / "copy")]
    for make in (*makers[1:4], *makers[5:6], *makers[7:]):
        make(bench.folder)
        bench.check_newest(make)
        bench.folder.unlink()
    bench.folder.mkdir()
    bench.check_newest("an empty directory")
    assert bench.accepted == 0


MALFORMED = [
    [], None, 3, "x", {"model": 1},  # the last one does not mention the tensors
    *({"a": {"$what": 1}}, {"a": {"$tuple": 3}}, {"a": {"$tuple": [], "$float": "x"}}, {"a": {"$deque": []}}),
    *({"a": {"$deque": [], "maxlen": -1}}, {"a": {"$deque": [], "maxlen": 2**70}}, {"a": {"$tensor": "missing"}}),
    *({"a": {"$mapping": [1]}}, {"a": {"$mapping": [[1]]}}, {"a": {"$mapping": [[[], 1]]}}, {"a": {"$tensor": 3}}),
    *({"a": {"$mapping": [[1, 1], [1, 2]]}}, {"a": {"$mapping": [[None, 1, 2]]}}, {"a": {"$float": "xyz"}}),
    *({"a": {"$float": "00"}}, {"a": {"$bytes": "?"}}, {"a": {"$bytes": "é"}}, {"a": {"$dtype": "load"}}),
    *({"a": {"$dtype": "nn"}}, {"a": {"$dtype": "_dynamo"}}, {"a": functools.reduce(lambda v, _: [v], range(64), 1)}),
]  # fmt: skip


def test_malformed_states_are_refused(bench):
    plain = json.loads(bench.whole["state.json"])
    twice = {**plain["model"], "again": plain["model"]["weight"]}
    for malformed in [*MALFORMED, {**plain, "model": twice}, {**plain, "model": {**plain["model"], "bias": 1}}]:
        whole = {**plain, **malformed} if isinstance(malformed, dict) and "a" in malformed else malformed
        bench.check(bench.with_manifest({"state.json": json.dumps(whole).encode()}), whole, forged=True)
    assert bench.accepted == 0
