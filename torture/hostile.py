"""Opens damaged, forged and special files through the Python API; exits with 1 if one ends in a raw exception.

    python -m torture.hostile --opens 100000

Damage is random bytes. Forged files have unexpected JSON values in matching checksums, so that they reach the code
behind the parsers. Every open has to succeed or to raise an error of stoker's, soon, with little memory.
"""

import argparse
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

import stoker
from stoker import data, optim
from stoker.checkpoint import Store
from stoker.errors import StokerError
from stoker.record import Record, Run

_LIMIT = 10  # seconds for one open
_MEMORY = 1 << 30  # bytes that one open may take

_HOSTILE: list[Any] = [
    *(None, True, -1, 0, 2**31, 2**63, 2**200, 0.5, 1e308, -0.0, "", "x", "../x", "/etc/passwd", "\0", "\ud800"),
    *("x" * 5000, "NaN", "$tensor", "weight", [], {}, [[]], [None], {"": None}, {"$tensor": "weight"}, [2**62, 2**62]),
    *({"$mapping": [[1, 2]]}, {"$deque": [1], "maxlen": -3}, {"$tuple": 3}, {"$float": "x"}, {"$dtype": "nn"}),
]
_RAW = [b"NaN", b"1e999", b"9" * 5000, b'"\xff"', b"[" * 5000 + b"]" * 5000, b'{"a":' * 3000, b"tru", b""]


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


def fit(folder: Path, *, epochs: int = 2) -> stoker.Fitted:
    """A run with every part that a state can have."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(32, 3, generator=generator)
    learner = stoker.Learner(
        make_model, loss=nn.MSELoss(), optimizer=optim.AdamW(), lr=1e-2, ema=0.9, metrics=[stoker.metrics.R2()], seed=1
    )
    return learner.fit(
        data.Loader((x, x.sum(1, keepdim=True)), batch_size=8, shuffle=3),
        valid=(x[:8], x[:8].sum(1, keepdim=True)),
        epochs=epochs,
        run=folder,
        resume=True,
        config={"lr": 0.01, "layers": [1, 2]},
        callbacks=[stoker.callbacks.EarlyStopping(patience=9), stoker.callbacks.ReduceLROnPlateau(patience=2)],
        checkpoint=stoker.Checkpoint(every=3),
        show=False,
    )


class Bench:
    """A run and weights files, of which one file is changed at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = folder / "run"
        fit(self.run)
        model = make_model()
        self.weights = [
            stoker.save(model, folder / "weights" / f"{format}{compress}", format=format, compress=compress)
            for format in ("safetensors", "msgpack", "json")
            for compress in (False, True)
        ]
        self.pickles = [folder / "weights" / "new.pt", folder / "weights" / "old.pt"]
        for path in self.pickles:
            torch.save(model.state_dict(), path, _use_new_zipfile_serialization=path.stem == "new")
        self.checkpoint = sorted((self.run / "checkpoints").iterdir())[-1]

    def readers(self, path: Path) -> list[Callable[[], object]]:
        """The functions that open a file."""
        if path in self.pickles:
            return [lambda: stoker.load(make_model(), stoker.load_torch(path))]
        if path.parent.name == "weights":
            return [lambda: stoker.weights.inspect(path), lambda: stoker.load(make_model(), path)]
        learner = stoker.Learner(make_model, loss=nn.MSELoss())
        readers: list[Callable[[], object]] = [
            lambda: stoker.Fitted.load(self.run, learner),
            lambda: stoker.load_for_inference(self.run, make_model()),
        ]
        if path.parent == self.checkpoint:
            return [*readers, lambda: Store(self.run / "checkpoints", run=Run.open(self.run).id).newest()]
        return [*readers, lambda: Run.open(self.run).summary(), lambda: Record.open(self.run).summary()]

    def files(self) -> list[Path]:
        run_files = [self.run / name for name in ("run.json", "config.json", "events.jsonl")]
        return [*self.checkpoint.iterdir(), *run_files, *self.weights, *self.pickles]

    def resign(self) -> None:
        """Writes a manifest that matches the files of the checkpoint."""
        path = self.checkpoint / "manifest.json"
        manifest = json.loads(path.read_bytes())
        for name in manifest["files"]:
            content = (self.checkpoint / name).read_bytes()
            manifest["files"][name] = {"bytes": len(content), "crc32": f"{zlib.crc32(content):08x}"}
        manifest["bytes"] = sum(entry["bytes"] for entry in manifest["files"].values())
        path.unlink()
        path.write_bytes(sign(manifest))


def sign(manifest: dict[str, Any]) -> bytes:
    """A manifest with the checksum of its fields."""
    manifest.pop("crc32", None)
    manifest["crc32"] = f"{zlib.crc32(json.dumps(manifest, sort_keys=True).encode()):08x}"
    return json.dumps(manifest).encode()


def damage(content: bytes, chance: random.Random) -> bytes:
    """Flips, overwrites, cuts, repeats or lengthens content."""
    changed = bytearray(content)
    at, count = chance.randrange(len(content) or 1), chance.randint(1, 64)
    match chance.randrange(6):
        case 0 if content:
            changed[at] ^= 1 << chance.randrange(8)
        case 1 if content:
            changed[at] = chance.randrange(256)
        case 2:
            del changed[at:]
        case 3:
            changed += chance.randbytes(count)
        case 4:
            del changed[at : at + count]
        case _:
            changed[at:at] = changed[max(0, at - count) : at]
    return bytes(changed)


def forge(content: bytes, chance: random.Random) -> bytes:
    """JSON with an unexpected value at one place; other content is damaged."""
    text, start, end = content, b"", b""
    if len(content) > 8 and content[8:9] == b"{":  # safetensors: the header
        length = int.from_bytes(content[:8], "little")
        text, end = content[8 : 8 + length], content[8 + length :]
    try:
        value = json.loads(text)
    except ValueError:
        return damage(content, chance)
    raw = chance.choice(_RAW) if chance.random() < 0.1 else json.dumps(chance.choice(_HOSTILE)).encode()
    changed = json.dumps(_replace(value, chance.choice(list(_paths(value))), "@@")).encode().replace(b'"@@"', raw, 1)
    start = len(changed).to_bytes(8, "little") if end else b""
    return start + changed + end


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from _paths(item, (*path, key))


def _replace(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copied = value.copy()
    copied[path[0]] = _replace(value[path[0]], path[1:], new)
    return copied


def forge_line(content: bytes, chance: random.Random) -> bytes:
    """The events with one line forged."""
    lines = content.split(b"\n")
    number = chance.randrange(len(lines) - 1)
    lines[number] = forge(lines[number], chance)
    return b"\n".join(lines)


SPECIAL: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "directory": Path.mkdir,
    "link to /dev/zero": lambda path: path.symlink_to("/dev/zero"),
    "link to itself": lambda path: path.symlink_to(path),
    "link to nothing": lambda path: path.symlink_to("/nowhere"),
    "empty": lambda path: path.write_bytes(b""),
    "sparse": lambda path: (path.write_bytes(b"{"), os.truncate(path, 1 << 40)),
    "deep JSON": lambda path: path.write_bytes(b"[" * 1_000_000),
    "no permission": lambda path: (path.write_bytes(b"{}"), path.chmod(0)),
    "absent": lambda path: None,
}


@contextmanager
def limits() -> Iterator[None]:
    """Raises after too much time; too much memory is a `MemoryError`."""
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)

    def too_long(*_: object) -> None:
        raise TimeoutError(f"it took more than {_LIMIT} s")

    handler = signal.signal(signal.SIGALRM, too_long)
    resource.setrlimit(resource.RLIMIT_AS, (now + _MEMORY, before[1]))
    signal.alarm(_LIMIT)
    try:
        yield
    finally:
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, before)
        signal.signal(signal.SIGALRM, handler)


def attempt(reader: Callable[[], object], faults: list[str], what: object) -> str:
    """Opens; returns how that ended."""
    try:
        with limits(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reader()
    except StokerError as error:
        if len(str(error)) > 20_000:
            faults.append(f"a text of {len(str(error))} characters: {what}")
        return type(error).__name__
    except BaseException as error:
        frame = error.__traceback__
        while frame is not None and frame.tb_next is not None:
            frame = frame.tb_next
        place = "" if frame is None else f"{frame.tb_frame.f_code.co_filename}:{frame.tb_lineno}"
        faults.append(f"{type(error).__name__}: {str(error)[:200]} at {place}: {str(what)[:300]}")
        return "fault"
    return "accepted"


def open_mutated(count: int, seed: int, folder: Path, *, fits: int = 0) -> tuple[Counter[str], list[str]]:
    """Opens files that are changed in one place; `fits` times also through `fit(resume=True)`."""
    torch.set_num_threads(1)
    chance, faults, ends = random.Random(seed), list[str](), Counter[str]()
    bench = Bench(folder)
    files = bench.files()
    whole = {path: path.read_bytes() for path in files}
    kept = shutil.copytree(bench.run, folder / "kept")
    last_fit = 0
    while sum(ends.values()) < count and len(faults) < 50:
        path = chance.choice(files)
        content = whole[path]
        is_forged = chance.random() < 0.6
        change = forge_line if path.name == "events.jsonl" and is_forged else forge if is_forged else damage
        changed = change(content, chance)
        path.unlink()
        path.write_bytes(changed)
        if path.parent == bench.checkpoint and is_forged and chance.random() < 0.9:
            if path.name != "manifest.json":
                bench.resign()
            else:
                with suppress(ValueError, AttributeError, TypeError, RecursionError):
                    path.write_bytes(sign(json.loads(changed)))
        what = (path.name, changed if len(changed) < 300 else _difference(content, changed))
        for reader in bench.readers(path):
            ends[attempt(reader, faults, what)] += 1
        if fits and path.is_relative_to(bench.run) and sum(ends.values()) - last_fit > count / fits:
            last_fit = sum(ends.values())
            ends[attempt(lambda: fit(bench.run, epochs=3), faults, ("fit", *what))] += 1
            shutil.rmtree(bench.run)
            shutil.copytree(kept, bench.run)
        for changed_path in (path, bench.checkpoint / "manifest.json"):
            changed_path.unlink(missing_ok=True)
            changed_path.write_bytes(whole[changed_path])
    return ends, faults


def _difference(before: bytes, after: bytes) -> bytes:
    start = next((number for number, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), len(before))
    return after[max(0, start - 60) : start + 120]


def open_special(
    folder: Path, kinds: Collection[str] = tuple(SPECIAL), names: Collection[str] = ()
) -> tuple[Counter[str], list[str]]:
    """Puts special files in the place of every file, or of those with these names, and opens them."""
    faults, ends = list[str](), Counter[str]()
    bench = Bench(folder)
    kept = shutil.copytree(bench.run, folder / "kept")
    others = [bench.run / name for name in ("log.txt", ".events.jsonl.lock", "control.json")]
    for path in [*bench.files(), *others]:
        if names and path.name not in names:
            continue
        content = path.read_bytes() if path.exists() else None
        for kind in kinds:
            path.unlink(missing_ok=True)
            SPECIAL[kind](path)
            for reader in bench.readers(path):
                ends[attempt(reader, faults, (path.name, kind))] += 1
            if path.is_relative_to(bench.run):
                ends[attempt(lambda: fit(bench.run, epochs=3), faults, ("fit", path.name, kind))] += 1
                shutil.rmtree(bench.run)
                shutil.copytree(kept, bench.run)
            elif content is not None:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
                path.write_bytes(content)
    return ends, faults


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a report; returns 1 if there were faults."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--opens", type=int, default=100_000, metavar="N", help="mutated opens (default: 100,000)")
    parser.add_argument("--fits", type=int, default=500, metavar="N", help="of these through fit (default: 500)")
    parser.add_argument("--seed", type=int, default=None, metavar="N")
    options = parser.parse_args(arguments)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)
    began = time.monotonic()
    code = 0
    for name, work in (
        ("special files", open_special),
        ("mutated files", lambda folder: open_mutated(options.opens, seed, folder, fits=options.fits)),
    ):
        folder = Path(tempfile.mkdtemp(prefix="hostile-"))
        ends, faults = work(folder)
        shutil.rmtree(folder, ignore_errors=True)
        print(f"{name}, seed {seed}: {sum(ends.values())} opens, {len(faults)} faults, {dict(ends)}")
        shown: dict[str, str] = {}
        for fault in faults:
            shown.setdefault(fault.partition(": ")[0] + fault.partition(" at ")[2].partition(": ")[0], fault)
        for fault in shown.values():  # one for each place in the code
            print(f"  {fault[:400]}")
        code = code or bool(faults)
    print(f"{time.monotonic() - began:.0f} s")
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
