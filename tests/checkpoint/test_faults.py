"""The disk fails or fills up, the process is killed, the power goes: at every single operation of a save."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from stoker.checkpoint import _disk
from stoker.checkpoint._place import Place
from stoker.checkpoint._store import Store
from stoker.errors import StokerError
from tests.checkpoint.test_tree import same

ROOT = Path(__file__).parents[2]
REAL = {name: getattr(_disk, name) for name in _disk.OPERATIONS}


def state_of(number):
    return {"model": {"w": torch.full((3,), float(number))}, "optimizer": {"m": torch.ones(2) * number}, "at": number}


def save(store, update):
    store.write(state_of(update), Place(epoch=0, batch=0, update=update))


def two_saves(folder) -> Store:
    store = Store(folder, run="r")
    save(store, 10)
    save(store, 20)
    return store


def third_save(store):
    """What is interrupted everywhere: one more save, after which the oldest goes, as with `keep_last=2`."""
    save(store, 30)
    store.delete("00000010")


def newest_of(store) -> int:
    """The update of the newest checkpoint, after a look at whether it is whole and no mix."""
    found = store.newest()
    assert found.saved is not None
    assert found.problems == [], "something is called like a checkpoint and is none"
    assert same(found.state, state_of(found.saved.update)), "a mix"
    return found.saved.update


def go_on(store) -> None:
    """What the next process does: it cleans up and saves, as if nothing had been."""
    store.clean()
    save(store, 40)
    assert newest_of(store) == 40
    saved = store.saved()
    assert sorted(os.listdir(store.folder)) == [each.name for each in saved], "litter"
    assert all(same(store.read(each), state_of(each.update)) for each in saved)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """No sync goes to the disk, which would only take time: where the power is cut here, it is a model's."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


class Layer:
    """Stands between the store and the disk: counts what is done there, and asks `before` first."""

    def __init__(self, before: Callable[..., None] = lambda count, name, arguments: None):
        self.done: list[str] = []
        self._before = before

    def install(self, patch=setattr):
        for name in _disk.OPERATIONS:
            patch(_disk, name, self._between(name))

    def _between(self, name):
        def operation(*arguments):
            self.done.append(name)
            self._before(len(self.done), name, arguments)
            return REAL[name](*arguments)

        return operation


@pytest.fixture
def operations(tmp_path, monkeypatch) -> list[str]:
    """Everything that the third save does."""
    store, layer = two_saves(tmp_path / "counted"), Layer()
    with monkeypatch.context() as patched:
        layer.install(patched.setattr)
        third_save(store)
    return layer.done


def outcome(store, monkeypatch, before) -> list[BaseException | None]:
    """What the third save and the deletion after it raise, each `None` where it worked."""
    raised: list[BaseException | None] = []
    with monkeypatch.context() as patched:
        Layer(before).install(patched.setattr)
        for action in (lambda: save(store, 30), lambda: store.delete("00000010")):
            try:
                action()
                raised.append(None)
            except (OSError, StokerError, KeyboardInterrupt) as error:
                return [*raised, error]
    return raised


ERRORS = {
    **{errno.errorcode[code]: OSError(code, os.strerror(code)) for code in (errno.ENOSPC, errno.EIO, errno.EROFS)},
    "EXDEV": OSError(errno.EXDEV, os.strerror(errno.EXDEV)),
    "interrupt": KeyboardInterrupt(),
}


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
def test_a_failure_anywhere_costs_no_old_checkpoint_and_leaves_no_litter(error, operations, tmp_path, monkeypatch):
    for at, failing in enumerate(operations, 1):

        def before(count, name, arguments, at=at):
            if count == at:
                if name == "close":
                    REAL[name](*arguments)  # one that fails has closed all the same
                raise error

        store = two_saves(tmp_path / "store")
        raised = outcome(store, monkeypatch, before)
        names = sorted(os.listdir(store.folder))
        late = (
            isinstance(raised[0], KeyboardInterrupt) and failing == "close"
        )  # then it may be there already, and whole
        if raised[0] is not None and not late:
            assert names == ["00000010", "00000020"], f"{failing}, operation {at}"
            assert newest_of(store) == 20
        elif late:
            assert names[:2] == ["00000010", "00000020"] and newest_of(store) in (20, 30)
        else:
            assert raised[1] is not None or failing == "close", f"{failing}, operation {at}: nobody said so"
            assert newest_of(store) == 30
        go_on(store)
        shutil.rmtree(store.folder)


def test_a_disk_that_is_gone_from_some_moment_on_costs_no_old_checkpoint(operations, tmp_path, monkeypatch):
    for at in range(1, len(operations) + 1):

        def before(count, name, arguments, at=at):
            if count >= at:
                if name == "close":
                    REAL[name](*arguments)
                raise OSError(errno.EIO, "the disk is gone")

        store = two_saves(tmp_path / "store")
        raised = outcome(store, monkeypatch, before)
        assert raised[-1] is not None or at >= len(operations) - 1  # the last ones close what was only read
        assert newest_of(store) in ((20, 30) if raised[0] else (30,))
        go_on(store)
        shutil.rmtree(store.folder)


def kill_everywhere(folder: str) -> None:
    """Runs in a process of its own, which forks a child for every operation and prints what each left behind."""
    warnings.simplefilter("ignore", DeprecationWarning)  # Python minds a fork where numpy has threads
    os.fsync = lambda file: None  # a kill loses nothing that was handed to the system
    begin = two_saves(Path(folder) / "begin").folder
    for torn in (False, True):
        at = 0
        while True:
            at += 1
            store = Store(shutil.copytree(begin, Path(folder) / f"{at}{'-torn' * torn}"), run="r")
            child = os.fork()
            if child == 0:
                die_at(at, torn, store)
            _, status = os.waitpid(child, 0)
            if os.WIFEXITED(status):
                assert os.WEXITSTATUS(status) == 0
                break
            assert os.WTERMSIG(status) == signal.SIGKILL
            names = os.listdir(store.folder)
            newest = newest_of(store)
            go_on(store)
            print(json.dumps({"at": at, "torn": torn, "newest": newest, "first": "00000010" in names}))


def die_at(at: int, torn: bool, store: Store) -> None:
    def before(count, name, arguments):
        if count == at:
            if torn and name == "write":
                REAL[name](arguments[0], arguments[1][: len(arguments[1]) // 2])
            os.kill(os.getpid(), signal.SIGKILL)

    Layer(before).install()
    third_save(store)
    os._exit(0)


def python(program: str, *arguments: object, under: tuple[str, ...] = ()) -> str:
    done = subprocess.run(
        [
            *under,
            sys.executable,
            "-c",
            f"import sys\nfrom tests.checkpoint.test_faults import *\n{program}",
            *map(str, arguments),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_kill_anywhere_leaves_this_one_or_the_one_before(operations, tmp_path):
    kills = [json.loads(line) for line in python("kill_everywhere(sys.argv[1])", tmp_path).splitlines()]
    assert len(kills) == 2 * len(operations)  # every operation, and every write in its middle
    renamed, deleting = [number for number, name in enumerate(operations, 1) if name == "rename"]
    for kill in kills:
        assert kill["newest"] == (20 if kill["at"] <= renamed else 30), kill
        assert kill["first"] == (kill["at"] <= deleting), kill


# Power cuts


class Disk:
    """A model of a disk that keeps in memory what nobody synced: the content of files, and the names in folders."""

    def __init__(self, folder: Path):
        self.kept: dict[int, bytes | dict[str, int]] = {}  # by number: a file's content, a folder's names; on the disk
        self.seen: dict[int, bytes | dict[str, int]] = {}  # the same as processes see it
        self.open: dict[int, int] = {}
        self.root = self._load(folder)
        self.kept = {number: self._copy(number) for number in self.seen}

    def _load(self, path: Path) -> int:
        content = {each.name: self._load(each) for each in path.iterdir()} if path.is_dir() else path.read_bytes()
        return self._new(content)

    def _new(self, content) -> int:
        self.seen[len(self.seen)] = content
        return len(self.seen) - 1

    def _copy(self, number: int):
        content = self.seen[number]
        return dict(content) if isinstance(content, dict) else content

    def names(self, folder: int) -> dict[str, int]:
        content = self.seen[self.open[folder]]
        assert isinstance(content, dict)
        return content

    def after(self, operation: str, arguments: tuple, result) -> None:
        match operation, arguments:
            case "open_folder", (_,) | (_, None):
                self.open[result] = self.root
            case "open_folder" | "open_file", (name, within):
                self.open[result[0] if operation == "open_file" else result] = self.names(within)[name]
            case "make_folder", (name, within):
                self.names(within)[name] = self._new({})
            case "create", (name, within):
                self.names(within)[name] = self.open[result] = self._new(b"")
            case "write", (file, data):
                self.seen[self.open[file]] += bytes(data[:result])
            case "sync", (file,):
                self.kept[self.open[file]] = self._copy(self.open[file])
            case "rename", (old, new, within):
                self.names(within)[new] = self.names(within).pop(old)
            case "unlink" | "remove_folder", (name, within):
                del self.names(within)[name]

    def after_a_cut(self, folder: Path, *, names_kept: bool, share: float) -> None:
        """Writes down what may be there when the power is back: only what was synced, or names of any age as well."""

        def put(number: int, path: Path):
            content = (self.seen if names_kept and isinstance(self.seen[number], dict) else self.kept).get(number)
            if isinstance(self.seen[number], dict):
                path.mkdir()
                for name, inside in (content or {}).items():
                    put(inside, path / name)
            else:
                whole = self.seen[number]
                path.write_bytes(content if content is not None else whole[: int(len(whole) * share)])

        put(self.root, folder)


def test_a_power_cut_anywhere_leaves_this_one_or_the_one_before(tmp_path, monkeypatch):
    store = two_saves(tmp_path / "store")
    disk = Disk(store.folder)
    committed = False
    cuts = 0

    def cut():
        nonlocal cuts
        for names_kept, share in ((False, 0.0), (True, 0.0), (True, 0.5)):
            folder = tmp_path / "after"
            disk.after_a_cut(folder, names_kept=names_kept, share=share)
            left = Store(folder, run="r")
            assert newest_of(left) in ((30,) if committed else (20, 30))
            shutil.rmtree(folder)
            cuts += 1

    def between(name):
        def operation(*arguments):
            result = REAL[name](*arguments)
            disk.after(name, arguments, result)
            with monkeypatch.context() as patched:  # what looks at the outcome is not part of the story
                for each in _disk.OPERATIONS:
                    patched.setattr(_disk, each, REAL[each])
                cut()
            return result

        return operation

    with monkeypatch.context() as patched:
        for name in _disk.OPERATIONS:
            patched.setattr(_disk, name, between(name))
        save(store, 30)
        committed = True  # whatever happens from here on, the new one is there
        store.delete("00000010")
    assert cuts > 150


# A disk that is really full


FILL = """
import resource, shutil, signal, subprocess
folder, mounted = Path(sys.argv[1]), sys.argv[2] == "mounted"
if mounted:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", folder], check=True)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
big = {"model": {"w": torch.ones(64 * 1024)}}  # 256 KiB: one fits, two and the rest don't
store = Store(folder / "checkpoints", run="r")
saved = store.write(big, Place(epoch=0, batch=0, update=1))
if not mounted:
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
for number in range(3):
    try:
        store.write(big, Place(epoch=0, batch=0, update=2 + number))
        print("written")
    except OSError as error:
        print(errno.errorcode[error.errno])
    assert os.listdir(store.folder) == ["00000001"], os.listdir(store.folder)
assert same(store.newest().state, big)
if mounted:
    (folder / "rest").write_bytes(bytes(shutil.disk_usage(folder).free))
    for part in ({"a": 1}, {}):
        try:
            store.write(part, Place(epoch=0, batch=0, update=9))
            print("written")
        except OSError as error:
            print(errno.errorcode[error.errno])
    assert os.listdir(store.folder) == ["00000001"], os.listdir(store.folder)
    (folder / "rest").unlink()
    subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
    try:
        store.write({}, Place(epoch=0, batch=0, update=9))
    except OSError as error:
        print(errno.errorcode[error.errno])
    assert same(store.newest().state, big)
    store.clean()
"""


def test_a_full_disk_and_a_read_only_one(tmp_path):
    """On a small disk of our own where the system lets us have one; else no file may grow beyond some bytes."""
    own = ("unshare", "--mount", "--map-root-user")
    probe = [*own, "mount", "-t", "tmpfs", "tmpfs", str(tmp_path)]
    mounted = shutil.which("unshare") is not None and subprocess.run(probe, capture_output=True).returncode == 0
    said = python(FILL, tmp_path, "mounted" if mounted else "limited", under=own if mounted else ()).split()
    assert said == (["ENOSPC"] * 5 + ["EROFS"] if mounted else ["EFBIG"] * 3)
