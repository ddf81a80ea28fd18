"""Damaged and forged checkpoints are refused with their name, or read as they were written.

Damage is random. Forged files have matching sizes and checksums, so that they reach the parsers.
"""

import functools
import itertools
import json
import math
import os
import random
import resource
import zlib
from collections import deque
from contextlib import suppress

import pytest
import torch

from stoker.checkpoint import Place, Store
from tests.checkpoint.states import same
from torture.hostile import SPECIAL, damage, forge, sign

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
        return {**files, "manifest.json": sign({**manifest, **fields})}


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path / "checkpoints")


@pytest.mark.parametrize("count", [400, pytest.param(1500, marks=pytest.mark.soak)])
def test_damaged_files_are_refused_or_harmless(bench, count):
    chance = random.Random(1)
    for number in range(count):
        name = FILES[number % len(FILES)]
        content = damage(bench.whole[name], chance)
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


def test_swapped_files_are_refused(bench, tmp_path):
    other = Bench(tmp_path / "other")
    other.store.delete("00000020")
    changed = {**STATE, "seen": 3, "model": {name: tensor + 1 for name, tensor in STATE["model"].items()}}
    other.store.write(changed, Place(epoch=1, batch=2, update=20))
    theirs = {name: (other.folder / name).read_bytes() for name in FILES}
    different = [name for name in FILES if theirs[name] != bench.whole[name]]
    assert different == ["manifest.json", "state.json", "model.safetensors"]
    for count in (1, 2):  # all three would be the other checkpoint
        for names in itertools.combinations(different, count):
            bench.check({name: theirs[name] for name in names}, names)
    for a, b in itertools.permutations(FILES, 2):
        bench.check({a: bench.whole[b], b: bench.whole[a]}, (a, b))
        bench.check({a: bench.whole[b]}, (a, b))
    assert bench.accepted == 0


# Forged files: the manifest matches them


@pytest.mark.parametrize("count", [250, pytest.param(1000, marks=pytest.mark.soak)])
@pytest.mark.parametrize(
    ("change", "refused", "accepted"),
    [(damage, 0.4, 0.04), (forge, 0.4, 0.0)],  # other numbers in a tensor are a valid state
    ids=["bytes", "values"],
)
def test_forged_files_are_refused_or_read(bench, change, refused, accepted, count):
    chance = random.Random(2)
    for number in range(count):
        name = FILES[1 + number % 3]
        content = change(bench.whole[name], chance)
        bench.check(bench.with_manifest({name: content}), (name, content), forged=True)
    assert bench.refused > refused * count and bench.accepted >= accepted * count


@pytest.mark.parametrize("count", [150, pytest.param(600, marks=pytest.mark.soak)])
def test_hostile_manifests_are_refused(bench, count):
    chance = random.Random(3)
    for _ in range(count):
        text = forge(bench.whole["manifest.json"], chance)
        bench.check({"manifest.json": text}, text)  # with a checksum that does not match
        with suppress(ValueError, RecursionError):
            content = json.loads(text)
            if isinstance(content, dict):
                bench.check({"manifest.json": sign(content)}, content, forged=True)
    assert bench.refused > count


def test_claimed_lengths_of_a_header_are_refused(bench):
    content = bench.whole["model.safetensors"]
    for length in (0, 1, 7, 99_999_999, 100_000_001, 2**32, 2**63, 2**64 - 1):
        forged = length.to_bytes(8, "little") + content[8:]
        bench.check(bench.with_manifest({"model.safetensors": forged}), length, forged=True)
    assert bench.accepted == 0


def test_claimed_sizes_allocate_no_memory(bench):
    """The size of the file counts, not what the manifest claims; a hole in a file is not read."""
    for name in FILES[1:]:
        for size in (2**28, 2**40, 2**62):
            manifest = json.loads(bench.whole["manifest.json"])
            manifest["bytes"] += size - manifest["files"][name]["bytes"]
            manifest["files"][name]["bytes"] = size
            bench.check({"manifest.json": sign(manifest)}, (name, size))
    for name in FILES:
        os.truncate(bench.folder / name, 2**36)
        bench.check_newest(name)
        (bench.folder / name).write_bytes(bench.whole[name])
    assert bench.accepted == 0


def test_special_files_and_directories_are_refused(bench, tmp_path):
    for kind, make in SPECIAL.items():
        for name in FILES if kind != "no permission" else ():  # root may read everything
            path = bench.folder / name
            path.unlink()
            make(path)
            bench.check_newest((name, kind))
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
            path.write_bytes(bench.whole[name])
    bench.folder.rename(tmp_path / "copy")
    for kind in ("link to /dev/zero", "link to itself", "link to nothing", "pipe", "empty"):
        SPECIAL[kind](bench.folder)
        bench.check_newest(kind)
        bench.folder.unlink()
    bench.folder.symlink_to(tmp_path / "copy")
    bench.check_newest("a link to a checkpoint")
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
