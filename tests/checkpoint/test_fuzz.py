"""Ten thousand damaged and forged checkpoints: each is refused by name, or is what was written; nothing else happens.

Damage is what disks and copies do. Forgery has fitting sizes and checksums, so that it gets as far as the parsers.
"""

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

from stoker.checkpoint._place import Place
from stoker.checkpoint._store import Store
from stoker.errors import BadFile
from tests.checkpoint.test_tree import same

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
def no_blow_up():
    """Nobody may ask for more than 256 MiB on top of what the process has: the files here have some hundred bytes."""
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + (256 << 20), limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)


class Bench:
    """A store of two checkpoints, of which the newer is changed and looked at, over and over."""

    def __init__(self, folder):
        self.store = Store(folder, run="r")
        self.store.write({"at": 10}, Place(epoch=0, batch=0, update=10))
        self.saved = self.store.write(
            STATE, Place(epoch=1, batch=2, update=20, reason="x", values={"loss": 0.5, "n": math.nan})
        )
        self.folder = self.store.folder / "00000020"
        self.whole = {name: (self.folder / name).read_bytes() for name in FILES}
        self.refused = self.taken = 0

    def look(self, files: dict[str, bytes], what: object, *, forged: bool = False) -> None:
        """Puts other content into some files, and asks for the newest checkpoint."""
        self.put(files)
        self.judge(what, forged=forged)
        self.put({name: self.whole[name] for name in files})

    def put(self, files: dict[str, bytes]) -> None:
        for name, content in files.items():
            (self.folder / name).unlink()  # ext4 waits for the disk where a file is emptied and written anew
            (self.folder / name).write_bytes(content)

    def judge(self, what: object, *, forged: bool = False) -> None:
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
            self.taken += 1

    def sealed(self, files: dict[str, bytes], **fields) -> dict[str, bytes]:
        """The files with a manifest that fits them, and says what else it is told to."""
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


def damaged(content: bytes, chance: random.Random, others: list[bytes]) -> bytes:
    """Content as disks, copies and torn writes leave it."""
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


def test_damaged_files_are_refused_or_harmless(bench):
    chance = random.Random(1)
    contents = list(bench.whole.values())
    for number in range(4000):
        name = FILES[number % len(FILES)]
        content = damaged(bench.whole[name], chance, contents)
        if content != bench.whole[name]:
            bench.look({name: content}, (name, content))
    assert bench.refused > 3800
    assert bench.taken <= 5  # a changed space in a manifest, say; never a changed state, which `judge` holds


def test_every_bit_of_every_file_counts(bench):
    """A flipped bit anywhere is seen; only in the manifest's own JSON may it be a change that says the same."""
    for name in FILES:
        content = bytearray(bench.whole[name])
        for at in range(len(content)):
            content[at] ^= 1 << at % 8
            bench.look({name: bytes(content)}, (name, at))
            content[at] ^= 1 << at % 8
    assert bench.taken == 0


def test_every_length_of_every_file_counts(bench):
    for name in FILES:
        for length in range(len(bench.whole[name])):
            bench.look({name: bench.whole[name][:length]}, (name, length))
    assert bench.taken == 0


def test_files_of_other_checkpoints_and_swapped_ones_are_refused(bench, tmp_path):
    other = Bench(tmp_path / "other")
    other.store.delete("00000020")
    changed = {
        **STATE,
        "seen": deque([1, 2.5, "THREE"], maxlen=5),
        "model": {name: t + 1 for name, t in STATE["model"].items()},
    }
    other.store.write(changed, Place(epoch=1, batch=2, update=20))
    theirs = {name: (other.folder / name).read_bytes() for name in FILES}
    different = [name for name in FILES if theirs[name] != bench.whole[name]]
    assert different == ["manifest.json", "state.json", "model.safetensors"]
    for choice in range(1, 2 ** len(different) - 1):  # all of them would be the other checkpoint
        bench.look({name: theirs[name] for bit, name in enumerate(different) if choice >> bit & 1}, choice)
    for a in FILES:
        for b in FILES:
            if a < b:
                bench.look({a: bench.whole[b], b: bench.whole[a]}, (a, b))
                bench.look({a: bench.whole[b]}, (a, b))
                bench.look({b: bench.whole[a]}, (b, a))
    assert bench.taken == 0


def test_forged_bytes_never_get_further_than_the_parsers(bench):
    chance = random.Random(2)
    contents = list(bench.whole.values())
    for number in range(2500):
        name = FILES[1 + number % 3]
        content = damaged(bench.whole[name], chance, contents)
        bench.look(bench.sealed({name: content}), (name, content), forged=True)
    assert bench.refused > 1000
    assert bench.taken > 100  # other numbers in a tensor: a state like any other


HOSTILE = [
    *(None, True, False, -1, 0, 1, 2**31, 2**63 - 1, 2**63, 2**64, 2**200, -(2**70), 0.5, 1e308, -0.0, 1e-320),
    *("", "x", "../x", "/etc/passwd", "a/b", "..", "\0", "\ud800", "x" * 5000, "NaN", "nan", "$tensor", "weight"),
    *([], {}, [[]], [None], {"": None}, {"$tensor": "weight"}, {"$mapping": [[1, 2]]}, {"$deque": [1], "maxlen": -3}),
    *({"bytes": 1, "crc32": "00000000"}, {"../x.safetensors": {"bytes": 1, "crc32": "00000000"}}, [2**62, 2**62]),
]  # fmt: skip
RAW = [
    b"NaN",
    b"-Infinity",
    b"1e999",
    b"9" * 5000,
    b'"\xff"',
    b"[" * 5000 + b"]" * 5000,
    b'{"a":' * 3000,
    b"[0]" * 2,
    b"tru",
    b"",
]


def places(value, path=()):
    """Every place of a JSON value that something else can be put into."""
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
    """With the last key of a path called otherwise."""
    at = value
    for key in path[:-1]:
        at = at[key]
    if not isinstance(at, dict):
        return value
    return replaced(value, path[:-1], {new if key == path[-1] else key: each for key, each in at.items()})


def hostile_texts(text: bytes, chance: random.Random, count: int):
    """JSON with something unexpected in one place, or with a text that is none."""
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


def test_hostile_manifests_are_refused(bench):
    chance = random.Random(3)
    for text in hostile_texts(bench.whole["manifest.json"], chance, 1500):
        bench.look({"manifest.json": text}, text)  # with a checksum that is wrong by now
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            bench.look({"manifest.json": signed(found)}, found, forged=True)
    assert bench.refused > 1500


def test_hostile_states_are_refused_or_read(bench):
    for text in hostile_texts(bench.whole["state.json"], random.Random(4), 1500):
        bench.look(bench.sealed({"state.json": text}), text, forged=True)
    assert bench.refused > 500


def test_hostile_tensors_are_refused_or_read(bench):
    chance = random.Random(5)
    for name in ("model.safetensors", "optimizer.safetensors"):
        content = bench.whole[name]
        length = int.from_bytes(content[:8], "little")
        for text in hostile_texts(content[8 : 8 + length], chance, 750):
            forged = len(text).to_bytes(8, "little") + text + content[8 + length :]
            bench.look(bench.sealed({name: forged}), text, forged=True)
    for length in (0, 1, 7, 99_999_999, 100_000_001, 2**32, 2**63, 2**64 - 1):
        bench.look(bench.sealed({name: length.to_bytes(8, "little") + content[8:]}), length, forged=True)
    assert bench.refused > 1000


def test_sizes_that_nothing_has_take_no_memory(bench):
    """A manifest may claim anything; the file's own size is what counts, and a hole in a file is not read."""
    for name in FILES[1:]:
        for size in (2**28, 2**40, 2**62):
            manifest = json.loads(bench.whole["manifest.json"])
            manifest["bytes"] += size - manifest["files"][name]["bytes"]
            manifest["files"][name]["bytes"] = size
            bench.look({"manifest.json": signed(manifest)}, (name, size))
    for name in FILES:
        os.truncate(bench.folder / name, 2**36)
        bench.judge(name)
        (bench.folder / name).write_bytes(bench.whole[name])
    assert bench.taken == 0


def test_things_that_are_no_files_are_refused(bench, tmp_path):
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
            bench.judge((name, make))
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
            path.write_bytes(bench.whole[name])
    shutil.rmtree(bench.folder)
    makers += [lambda path: path.write_text(""), lambda path: path.symlink_to(tmp_path / "copy")]
    for make in (*makers[1:4], *makers[5:6], *makers[7:]):
        make(bench.folder)
        bench.judge(make)
        bench.folder.unlink()
    bench.folder.mkdir()
    bench.judge("an empty folder")
    assert bench.taken == 0


def test_damage_is_an_error_for_who_asks_for_that_checkpoint(bench):
    (bench.folder / "state.json").write_bytes(b"")
    with pytest.raises(BadFile, match=r"00000020/state\.json has 0 bytes"):
        bench.store.read(bench.saved)
