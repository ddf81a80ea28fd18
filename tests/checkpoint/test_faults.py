"""The disk fails or is full, the process is killed, the power is cut: at every operation of a save."""

import errno
import itertools
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

from stoker.checkpoint import Place, Store, _disk
from stoker.errors import StokerError
from tests.checkpoint.states import same

ROOT = Path(__file__).parents[2]
REAL = {name: getattr(_disk, name) for name in _disk.OPERATIONS}


def state_of(number):
    return {"model": {"w": torch.full((3,), float(number))}, "optimizer": {"m": torch.ones(2) * number}, "at": number}


def save(store, update):
    store.write(state_of(update), Place(epoch=0, batch=0, update=update))


def save_twice(folder) -> Store:
    store = Store(folder, run="r")
    save(store, 10)
    save(store, 20)
    return store


def save_again(store):
    """What is interrupted: one more save, and the deletion of the oldest checkpoint, as with `keep_last=2`."""
    save(store, 30)
    store.delete("00000010")


def newest_of(store) -> int:
    """The update of the newest checkpoint, which is complete and not a mixture."""
    found = store.newest()
    assert found.saved is not None
    assert found.problems == [], "a checkpoint is incomplete"
    assert same(found.state, state_of(found.saved.update)), "a mixture"
    return found.saved.update


def continue_saving(store) -> None:
    """What the next process does: it cleans up and saves."""
    store.clean()
    save(store, 40)
    assert newest_of(store) == 40
    saved = store.saved()
    assert sorted(os.listdir(store.folder)) == [each.name for each in saved], "leftovers"
    assert all(same(store.read(each), state_of(each.update)) for each in saved)


class Layer:
    """Replaces the disk operations: counts them, and calls `before` first."""

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
    """The names of all operations of `save_again`."""
    store, layer = save_twice(tmp_path / "counted"), Layer()
    with monkeypatch.context() as patched:
        layer.install(patched.setattr)
        save_again(store)
    return layer.done


def outcome(store, monkeypatch, before) -> list[BaseException | None]:
    """What the save and the deletion raise; `None` if they succeed."""
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


def os_error(code):
    return OSError(code, os.strerror(code))


@pytest.mark.parametrize(
    "error",
    [
        os_error(errno.ENOSPC),
        KeyboardInterrupt(),
        *(pytest.param(os_error(code), marks=pytest.mark.soak) for code in (errno.EIO, errno.EROFS, errno.EXDEV)),
    ],
    ids=["ENOSPC", "interrupt", "EIO", "EROFS", "EXDEV"],
)
def test_a_failure_at_any_operation_keeps_old_checkpoints_and_leaves_no_files(error, operations, tmp_path, monkeypatch):
    for at, failing in enumerate(operations, 1):

        def before(count, name, arguments, at=at):
            if count == at:
                if name == "close":
                    REAL[name](*arguments)  # a close that fails has closed the file
                raise error

        store = save_twice(tmp_path / "store")
        raised = outcome(store, monkeypatch, before)
        names = sorted(os.listdir(store.folder))
        late = isinstance(raised[0], KeyboardInterrupt) and failing == "close"  # the checkpoint may be complete
        if raised[0] is not None and not late:
            assert names == ["00000010", "00000020"], f"{failing}, operation {at}"
            assert newest_of(store) == 20
        elif late:
            assert names[:2] == ["00000010", "00000020"] and newest_of(store) in (20, 30)
        else:
            assert raised[1] is not None or failing == "close", f"{failing}, operation {at}: no exception"
            assert newest_of(store) == 30
        continue_saving(store)
        shutil.rmtree(store.folder)


def test_a_disk_that_disappears_at_any_operation_keeps_old_checkpoints(operations, tmp_path, monkeypatch):
    for at in range(1, len(operations) + 1):

        def before(count, name, arguments, at=at):
            if count >= at:
                if name == "close":
                    REAL[name](*arguments)
                raise OSError(errno.EIO, "the disk is gone")

        store = save_twice(tmp_path / "store")
        raised = outcome(store, monkeypatch, before)
        assert raised[-1] is not None or at >= len(operations) - 1  # which close files that were only read
        assert newest_of(store) in ((20, 30) if raised[0] else (30,))
        continue_saving(store)
        shutil.rmtree(store.folder)


def kill_everywhere(folder: str, torn: bool) -> None:
    """Forks a child for every operation, which is killed there, and prints what each left behind.

    With `torn`, half of the data is written before the kill.
    """
    warnings.simplefilter("ignore", DeprecationWarning)  # about a fork with threads
    os.fsync = lambda file: None  # a kill loses nothing that the system has
    begin = save_twice(Path(folder) / "begin").folder
    for at in itertools.count(1):
        store = Store(shutil.copytree(begin, Path(folder) / str(at)), run="r")
        child = os.fork()
        if child == 0:
            die_at(at, torn, store)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            return
        assert os.WTERMSIG(status) == signal.SIGKILL
        names = os.listdir(store.folder)
        newest = newest_of(store)
        continue_saving(store)
        print(json.dumps({"at": at, "newest": newest, "first": "00000010" in names}))


def die_at(at: int, torn: bool, store: Store) -> None:
    def before(count, name, arguments):
        if count == at:
            if torn and name == "write":
                REAL[name](arguments[0], arguments[1][: len(arguments[1]) // 2])
            os.kill(os.getpid(), signal.SIGKILL)

    Layer(before).install()
    save_again(store)
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


@pytest.mark.parametrize("torn", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_a_kill_at_any_operation_leaves_the_new_or_the_previous_checkpoint(operations, tmp_path, torn):
    kills = [json.loads(line) for line in python(f"kill_everywhere(sys.argv[1], {torn})", tmp_path).splitlines()]
    assert len(kills) == len(operations)
    renamed, deleting = [number for number, name in enumerate(operations, 1) if name == "rename"]
    for kill in kills:
        assert kill["newest"] == (20 if kill["at"] <= renamed else 30), kill
        assert kill["first"] == (kill["at"] <= deleting), kill


# Power cuts


class Disk:
    """A simulated disk that keeps unsynced file content and directory entries in memory only."""

    def __init__(self, folder: Path):
        self.kept: dict[int, bytes | dict[str, int]] = {}  # by number: a file or a directory, as on the disk
        self.seen: dict[int, bytes | dict[str, int]] = {}  # the same, as processes see it
        self.open: dict[int, int] = {}
        self.folder = folder
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

    def find(self, path: Path) -> int:
        return self.root if path == self.folder else self.names(path.parent)[path.name]

    def names(self, folder: Path) -> dict[str, int]:
        content = self.seen[self.find(folder)]
        assert isinstance(content, dict)
        return content

    def after(self, operation: str, arguments: tuple, result) -> None:
        match operation, arguments:
            case "open_file", (path,):
                self.open[result[0]] = self.find(path)
            case "make_folder", (path,):
                self.names(path.parent)[path.name] = self._new({})
            case "create", (path,):
                self.names(path.parent)[path.name] = self.open[result] = self._new(b"")
            case "write", (file, data):
                self.seen[self.open[file]] += bytes(data[:result])
            case "sync", (file,):
                self.kept[self.open[file]] = self._copy(self.open[file])
            case "sync_folder", (path,):
                self.kept[self.find(path)] = self._copy(self.find(path))
            case "rename", (old, new):
                self.names(new.parent)[new.name] = self.names(old.parent).pop(old.name)
            case "unlink" | "remove_folder", (path,):
                del self.names(path.parent)[path.name]

    def after_a_cut(self, folder: Path, *, names_kept: bool, share: float) -> None:
        """Writes what may be there afterwards: only what was synced, or also names that were not."""

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


def test_a_power_cut_after_any_operation_leaves_the_new_or_the_previous_checkpoint(tmp_path, monkeypatch):
    store = save_twice(tmp_path / "store")
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
            with monkeypatch.context() as patched:  # the checks themselves are not part of the simulation
                for each in _disk.OPERATIONS:
                    patched.setattr(_disk, each, REAL[each])
                cut()
            return result

        return operation

    with monkeypatch.context() as patched:
        for name in _disk.OPERATIONS:
            patched.setattr(_disk, name, between(name))
        save(store, 30)
        committed = True  # from here on the new checkpoint survives
        store.delete("00000010")
    assert cuts > 150


# A full disk


FILL = """
import resource, signal, subprocess
folder, mounted = Path(sys.argv[1]), sys.argv[2] == "mounted"

def attempt(state, update=9):
    try:
        store.write(state, Place(epoch=0, batch=0, update=update))
        print("written")
    except OSError as error:
        print(errno.errorcode[error.errno])
    assert os.listdir(store.folder) == ["00000001"], os.listdir(store.folder)

if mounted:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", folder], check=True)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
big = {"model": {"w": torch.ones(64 * 1024)}}  # 256 KiB: one checkpoint fits, two do not
store = Store(folder / "checkpoints", run="r")
store.write(big, Place(epoch=0, batch=0, update=1))
if not mounted:
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
for number in range(2):
    attempt(big, 2 + number)
if mounted:
    (folder / "rest").write_bytes(bytes(shutil.disk_usage(folder).free))
    attempt({"a": 1})
    (folder / "rest").unlink()
    subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
    attempt({})
    store.clean()
assert same(store.newest().state, big)
"""


def test_a_full_or_read_only_disk_keeps_the_old_checkpoint(tmp_path):
    """On a small tmpfs if the system allows it; else with a limit on the size of files."""
    own = ("unshare", "--mount", "--map-root-user")
    probe = [*own, "mount", "-t", "tmpfs", "tmpfs", str(tmp_path)]
    mounted = shutil.which("unshare") is not None and subprocess.run(probe, capture_output=True).returncode == 0
    errors = python(FILL, tmp_path, "mounted" if mounted else "limited", under=own if mounted else ()).split()
    assert errors == (["ENOSPC"] * 3 + ["EROFS"] if mounted else ["EFBIG"] * 2)
