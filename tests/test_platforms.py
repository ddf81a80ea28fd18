"""Runs, locks and checkpoints on Windows and macOS, by taking away (or adding) what differs there.

A child process gets the limits of Windows: no fcntl, flags or signals of POSIX, directories that can't be opened, files
that can't be renamed, replaced or deleted while they are open, and fsync for files that are open for writing only.
"""

import errno
import fcntl
import os
import signal
import sys
import types
from pathlib import Path

import pytest
import torch
from torch import nn

import stoker
from stoker import _files
from stoker.errors import BadFile, RunExists
from stoker.record import Follower, Run, send_request
from torture.processes import Child

MISSING = {
    os: ("O_NOFOLLOW", "O_NONBLOCK", "O_DIRECTORY", "O_CLOEXEC", "readv", "preadv", "register_at_fork", "fork"),
    signal: ("SIGUSR1", "SIGUSR2", "SIGKILL", "SIGHUP", "pthread_sigmask", "siginterrupt", "setitimer"),
}


def become_windows():
    """Changes this process; there is no way back."""
    flock, real_fsync, real_open = fcntl.flock, os.fsync, os.open

    def lock(descriptor, mode, count):
        assert (mode, count) == (2, 1) and os.lseek(descriptor, 0, os.SEEK_CUR) == 2**31 - 2
        try:
            flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PermissionError(errno.EACCES, "Permission denied") from None

    def open_file(path, flags, mode=0o777, **options):
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real_open(path, flags, mode, **options)

    def fsync(descriptor):
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "Bad file descriptor")
        real_fsync(descriptor)

    def unless_open(function, *, replaces):
        def call(path, *others, **options):
            for each in [path, *others]:
                check_closed(each)
            if others and not replaces and os.path.lexists(others[0]):
                raise FileExistsError(errno.EEXIST, "File exists", str(others[0]))
            return function(path, *others, **options)

        return call

    sys.modules["fcntl"] = None
    sys.modules["msvcrt"] = types.SimpleNamespace(locking=lock, LK_NBLCK=2)
    os.open, os.fsync = open_file, fsync
    for name in ("rename", "replace", "unlink", "remove", "rmdir"):
        setattr(os, name, unless_open(getattr(os, name), replaces=name == "replace"))
    for module, names in MISSING.items():
        for name in names:
            delattr(module, name)


def check_closed(path):
    """Raises as Windows does if this process has the file, or one in the directory, open."""
    inside = os.path.abspath(path)
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:  # the descriptor of the listing itself
            continue
        if target == inside or target.startswith(f"{inside}/"):
            raise PermissionError(errno.EACCES, "The process cannot access the file", str(path))


def train(run, *, stop_at=None, workers=0):
    """Trains six epochs with two checkpoints each, stopping in the middle of one; returns a digest of the weights."""
    torch.manual_seed(0)
    x = torch.randn(64, 3)
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.2), nn.Linear(8, 1))
    learner = stoker.Learner(model, loss=nn.MSELoss(), lr=1e-2, seed=0)
    stop = stoker.callbacks.on(update=lambda ctx: ctx.update == stop_at and signal.raise_signal(signal.SIGINT))
    loader = stoker.data.Loader((x, x.sum(1, keepdim=True)), batch_size=8, shuffle=0, num_workers=workers)
    options = {"valid": (x, x.sum(1, keepdim=True)), "run": run, "resume": True, "show": False}
    fitted = learner.fit(
        loader, epochs=4, checkpoint=stoker.Checkpoint(every=3, keep_last=2), callbacks=[stop], **options
    )
    return torch.cat([each.flatten() for each in fitted.model.parameters()]).tolist()


def train_on_windows(folder):
    become_windows()
    with pytest.raises(AttributeError):
        os.O_NOFOLLOW  # the limits hold
    with pytest.raises(PermissionError):
        os.open(folder, os.O_RDONLY)
    run = Path(folder) / "run"
    train(run, stop_at=13)
    follower = Follower(run)
    follower.refresh()
    assert follower.state == "stopped"
    print("weights", train(run))
    record = stoker.Record.open(run)
    assert record.events_of("resume") and not record.events_of("warning"), record.events_of("warning")
    assert stoker.load_for_inference(run, nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.2), nn.Linear(8, 1)))
    stoker.save(nn.Linear(2, 1), Path(folder) / "weights")

    opened = Run.create(Path(folder) / "locked")
    opened.record.append(stoker.record.Event("note", text="a\nb"))
    with pytest.raises(RunExists, match="is being written by this process"):
        stoker.Record(opened.path)
    assert Run.open(opened.path).writer == "this process"
    assert send_request(opened.path, "stop")
    opened.close()
    assert Run.open(opened.path).writer is None
    assert b"\r" not in (opened.path / "events.jsonl").read_bytes()


def test_a_run_is_written_locked_interrupted_and_resumed_on_windows(tmp_path):
    child = Child(train_on_windows, str(tmp_path), prints=tmp_path / "printed.txt")
    assert child.wait() == 0, child.printed()[-5000:]
    (line,) = [line for line in child.printed().splitlines() if line.startswith("weights")]
    assert line == f"weights {train(tmp_path / 'whole')}"


def test_without_any_lock_a_run_still_works_and_counts_as_alive_for_a_minute(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.setitem(sys.modules, "msvcrt", None)
    run = Run.create(tmp_path / "run")
    run.record.append(stoker.record.Event("note", text="here"))
    run.close()
    assert Run.open(run.path).writer == "another process"
    os.utime(run.path / "events.jsonl", (0, 0))
    assert Run.open(run.path).writer is None


def test_a_link_is_refused_without_the_flag_for_it(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    monkeypatch.delattr(os, "O_NOFOLLOW")
    with pytest.raises(BadFile, match="it is a symbolic link"):
        _files.open_to_append(tmp_path / "link")


def test_a_file_that_a_viewer_reads_is_replaced_when_it_is_closed(tmp_path, monkeypatch):
    real, attempts = os.replace, []

    def replace(old, new):
        attempts.append(new)
        if len(attempts) < 4:
            raise PermissionError(errno.EACCES, "Access is denied")
        real(old, new)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(PermissionError):
        _files.write_json(tmp_path / "a.json", [1])  # on POSIX a reader is no obstacle, so this is another problem
    monkeypatch.delattr(os, "O_DIRECTORY")
    _files.write_json(tmp_path / "a.json", [1])
    assert len(attempts) == 4 and _files.read_json(tmp_path / "a.json") == [1]
    assert [each.name for each in tmp_path.iterdir()] == ["a.json"]


def test_macos_syncs_through_the_cache_of_the_disk(tmp_path, monkeypatch):
    real, synced = fcntl.fcntl, []
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(
        fcntl, "fcntl", lambda file, command: synced.append(file) if command == 51 else real(file, command)
    )
    monkeypatch.setattr(os, "fsync", lambda file: pytest.fail("fsync leaves the data in the disk's cache"))
    _files.write_json(tmp_path / "a.json", [1])
    assert len(synced) == 2  # the file and its directory


def square(number):
    return torch.tensor(number**2)


def gather(workers):
    numbers = stoker.data.mapped(list(range(12)), square)
    return [batch.tolist() for batch in stoker.data.Loader(numbers, batch_size=4, shuffle=1, num_workers=workers)]


def spawn_workers():
    torch.multiprocessing.set_start_method("spawn", force=True)  # the default of Windows and macOS
    print("batches", gather(2))


@pytest.mark.soak
def test_workers_that_are_spawned_give_the_same_batches(tmp_path):
    child = Child(spawn_workers, prints=tmp_path / "printed.txt")
    assert child.wait() == 0, child.printed()[-3000:]
    assert f"batches {gather(0)}" in child.printed()


def test_mps_is_chosen_where_there_is_one(monkeypatch):
    """No Mac is at hand: the choice is tested, and the computation is not."""
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    learner = stoker.Learner(nn.Linear(2, 1), loss=nn.MSELoss())
    x = torch.zeros(4, 2)
    with pytest.raises((RuntimeError, AssertionError), match=r"(?i)mps"):
        learner.fit((x, x[:, :1]), epochs=1, show=False)
