"""The disk fails during a fit: the next step raises, a complete checkpoint stays, and the run resumes exactly."""

import errno
import os
import resource
import subprocess
import threading
import time

import pytest
import torch

import stoker
from stoker import callbacks
from stoker.checkpoint import _disk
from stoker.engine import Checkpointer
from stoker.errors import CheckpointFailed
from stoker.record import Record, Run
from tests.learner.fits import same
from tests.resume.scripts import Net, fit
from torture.processes import Child, preload
from torture.runs import checkpoints_of, digest

preload("tests.resume.scripts")
FAULTS = {
    "full": (errno.ENOSPC, "Free some space there"),
    "quota": (errno.EDQUOT, "Free some space there"),
    "EIO": (errno.EIO, "Fix that first"),
    "read-only": (errno.EROFS, "Make it writable"),
    "no permission": (errno.EACCES, "Make it writable"),
    "another file system": (errno.EXDEV, "Fix that first"),
}


def fit_and_save(run, **settings):
    """A fit of 12 updates with a checkpoint every 3."""
    background = settings.pop("background", True)
    checkpoint = stoker.Checkpoint(every=3, keep_last=1, background=background)
    return fit(run, checkpoint=checkpoint, **settings)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    run = tmp_path_factory.mktemp("whole") / "run"
    return digest(fit_and_save(run), run)


class FailingDisk:
    """Makes an operation of the disk fail, from the checkpoint at an update on, after some that succeed."""

    def __init__(self, monkeypatch, operation, code, *, update=6, after=0):
        self.failures, self._left, self._begun = 0, after, False
        self._operation, self._code, self._part = operation, code, f".part-{update:08d}-"
        for name in {"make_folder", operation}:
            monkeypatch.setattr(_disk, name, self._replacement(name, getattr(_disk, name)))

    def _replacement(self, name, real):
        def operation_or_fault(*arguments):
            self._begun = self._begun or str(arguments[0]).rpartition("/")[2].startswith(self._part)
            if self._begun and name == self._operation:
                self._left -= 1
                if self._left < 0:
                    self.failures += 1
                    raise OSError(self._code, os.strerror(self._code))
            return real(*arguments)

        return operation_or_fault


def is_intact(run, update):
    """Whether the only thing in the folder is a complete checkpoint of this update."""
    store = checkpoints_of(run)
    found = store.newest()
    assert os.listdir(store.folder) == [found.saved.name], "leftovers"
    return found.problems == [] and found.saved.update == update


@pytest.mark.parametrize(
    ("code", "advice", "background"),
    [
        pytest.param(*fault, background, id=f"{name}-{background}", marks=[] if is_fast else [pytest.mark.soak])
        for number, (name, fault) in enumerate(FAULTS.items())
        for background in (True, False)
        for is_fast in [background == (number % 2 == 0)]
    ],
)
def test_a_failed_save_stops_the_training_and_the_next_start_resumes(
    tmp_path, monkeypatch, whole, code, advice, background
):
    run = tmp_path / "run"
    with monkeypatch.context() as broken:
        failing = FailingDisk(broken, "rename" if code == errno.EXDEV else "write", code)
        with pytest.raises(CheckpointFailed) as raised:
            fit_and_save(run, background=background)
    text, kind = str(raised.value), type(OSError(code, "")).__name__
    assert text.startswith(f"the checkpoint at update 6 could not be written to {run / 'checkpoints'}: {kind}: ")
    assert os.strerror(code) in text
    assert text.endswith(f"{advice}, then resume the run: 00000003 is complete")
    assert isinstance(raised.value, OSError) and isinstance(raised.value, stoker.StokerError)
    assert raised.value.__cause__.errno == code
    assert failing.failures == 1  # it is not repeated
    assert is_intact(run, 3)
    assert Record.open(run).events_of("error")[-1].text.startswith("CheckpointFailed: the checkpoint at update 6")
    assert digest(fit_and_save(run, background=background), run) == whole


OPERATIONS = [
    *("make_folder", "check_folder", "create", "write", "sync"),
    *("sync_folder", "rename", "open_file", "read", "close"),
]
FAST = [("sync_folder", 0), ("create", 1), ("sync", 0), ("read", 0)]
OTHERS = [(name, after) for name in OPERATIONS for after in (0, 1) if (name, after) not in FAST]


@pytest.mark.parametrize(
    ("operation", "after"), [*FAST, *(pytest.param(*each, marks=pytest.mark.soak) for each in OTHERS)]
)
def test_a_complete_checkpoint_stays_whatever_operation_fails(tmp_path, monkeypatch, whole, operation, after):
    run = tmp_path / "run"
    with monkeypatch.context() as broken:
        FailingDisk(broken, operation, errno.EIO, after=after)
        with pytest.raises(CheckpointFailed):
            fit_and_save(run)
    found = checkpoints_of(run).newest()
    assert found.problems == []
    assert found.saved.update in (3, 6)
    assert digest(fit_and_save(run), run) == whole
    assert len(os.listdir(run / "checkpoints")) == 1


@pytest.mark.parametrize("operation", ["rename", "unlink", "remove_folder"])
def test_an_old_checkpoint_that_cannot_be_deleted_is_an_error(tmp_path, monkeypatch, whole, operation):
    run = tmp_path / "run"
    with monkeypatch.context() as broken:
        # The first rename puts the new checkpoint in its place, the second one removes the old one.
        FailingDisk(broken, operation, errno.EIO, after=1 if operation == "rename" else 0)
        with pytest.raises(
            CheckpointFailed, match="the old checkpoint 00000003 could not be deleted.*00000006 is complete"
        ):
            fit_and_save(run)
    assert checkpoints_of(run).newest().saved.update == 6
    assert digest(fit_and_save(run), run) == whole
    assert len(os.listdir(run / "checkpoints")) == 1


def test_a_failure_in_the_background_is_raised_by_the_next_step(tmp_path, monkeypatch):
    batches = []

    def wait(ctx):
        wait_until(lambda: all(thread.name != "stoker-checkpoint" for thread in threading.enumerate()))
        batches.append((ctx.update, ctx.batch_number))

    FailingDisk(monkeypatch, "write", errno.ENOSPC)
    with pytest.raises(CheckpointFailed, match="at update 6"):
        fit_and_save(tmp_path / "run", hooks=[callbacks.on(train_batch_begin=wait)])
    assert batches[-2:] == [(5, 4), (6, 5)]


def wait_until(done):
    while not done():
        time.sleep(0.001)


def test_the_model_has_the_best_weights_after_a_failure(tmp_path, monkeypatch):
    created, best = [], []

    def model():
        created.append(Net())
        return created[0]

    def keep(ctx):
        if ctx.best is not None and ctx.best.update == ctx.update:
            best[:] = [{name: value.clone() for name, value in ctx.model.state_dict().items()}]

    FailingDisk(monkeypatch, "write", errno.ENOSPC, update=9)
    with pytest.raises(CheckpointFailed, match="at update 9"):
        fit_and_save(tmp_path / "run", model=model, hooks=[callbacks.on(validation=keep)])
    assert same(created[0], best[0])


@pytest.mark.parametrize("background", [True, False], ids=["background", "foreground"])
def test_a_failure_of_the_last_save_is_a_warning_and_fit_returns(tmp_path, monkeypatch, whole, background):
    run = tmp_path / "run"
    with monkeypatch.context() as broken:
        # The first checkpoint of this update is at the end of the epoch, the second at the end of the fit.
        FailingDisk(broken, "make_folder", errno.ENOSPC, update=12, after=1)
        fitted = fit_and_save(run, background=background)
    assert (fitted.updates, fitted.stopped) == (12, "Completed 3 epochs")
    (warning,) = fitted.record.events_of("warning")
    assert warning.text.startswith("the checkpoint at update 12 could not be written")
    assert "Free some space there, then resume the run: 00000012 is complete" in warning.text
    assert warning.text in (run / "log.txt").read_text()
    assert is_intact(run, 12)
    assert digest(fit_and_save(run, background=background), run) == whole


def test_a_failure_of_the_save_before_the_last_is_an_error(tmp_path, monkeypatch, whole):
    run = tmp_path / "run"
    with monkeypatch.context() as broken:
        FailingDisk(broken, "write", errno.ENOSPC, update=12)
        with pytest.raises(CheckpointFailed, match="at update 12"):
            fit_and_save(run, background=False)
    assert is_intact(run, 9)
    assert digest(fit_and_save(run), run) == whole


def test_a_failure_in_the_background_after_the_training_is_a_warning(tmp_path, monkeypatch):
    run, ends = tmp_path / "run", []
    real = _disk.write

    def write(file, content):
        if list((run / "checkpoints").glob(".part-00000012-*")) and not ends[1:]:
            wait_until(lambda: ends)
            ends.append("failed")
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(file, content)

    monkeypatch.setattr(_disk, "write", write)
    end = Checkpointer.end
    monkeypatch.setattr(Checkpointer, "end", lambda self: ends.append("ended") or end(self))
    fitted = fit_and_save(run)
    assert (fitted.updates, ends) == (12, ["ended", "failed"])
    (warning,) = fitted.record.events_of("warning")
    assert warning.text.startswith("the checkpoint at update 12 could not be written")


# --- real faults


def fit_until_disk_is_full(run):
    """Fills the disk after four updates; if it is not a small file system, limits the size of files instead."""
    torch.set_num_threads(1)

    def fill(ctx):
        if ctx.update != 4:
            return
        wait_until(lambda: [each.name for each in (run / "checkpoints").glob("*")] == ["00000003"])
        if os.path.ismount(run.parent):
            left = os.statvfs(run.parent)
            (run.parent / "other").write_bytes(b"x" * (left.f_bavail * left.f_frsize - 16384))
        else:
            resource.setrlimit(resource.RLIMIT_FSIZE, (5000, resource.RLIM_INFINITY))

    try:
        fit_and_save(run, hooks=[callbacks.on(update=fill)])
    except CheckpointFailed as error:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        print(error)


def assert_stops_and_resumes(run, prints, whole):
    child = Child(fit_until_disk_is_full, run, prints=prints)
    assert child.wait() == 0, child.printed()
    assert child.printed().startswith("the checkpoint at update 6 could not be written")
    assert child.printed().endswith("then resume the run: 00000003 is complete\n")
    assert is_intact(run, 3)
    (run.parent / "other").unlink(missing_ok=True)
    assert digest(fit_and_save(run), run) == whole
    return child.printed()


def test_a_limit_on_the_size_of_files(tmp_path, whole):
    assert "OSError: [Errno 27] File too large" in assert_stops_and_resumes(
        tmp_path / "run", tmp_path / "printed.txt", whole
    )


@pytest.fixture
def disk(tmp_path):
    """A file system of one megabyte, if it can be mounted; otherwise a folder."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder]
    mounted = os.geteuid() == 0 and subprocess.run(mount, capture_output=True).returncode == 0
    yield folder
    if mounted:
        subprocess.run(["umount", folder], check=True)


def test_a_full_file_system(disk, tmp_path, whole):
    printed = assert_stops_and_resumes(disk / "run", tmp_path / "printed.txt", whole)
    assert "No space left on device. Free some space there" in printed or not os.path.ismount(disk)


def test_a_checkpoint_folder_that_became_a_file(tmp_path):
    run = tmp_path / "run"

    def spoil(ctx):
        if ctx.update == 2:
            (run / "checkpoints").rename(run / "elsewhere")
            (run / "checkpoints").write_text("not a folder")

    with pytest.raises(CheckpointFailed, match=r"at update 3 .*Not a directory.*resume the run: 00000000 is complete"):
        fit_and_save(run, hooks=[callbacks.on(update=spoil)])
    (run / "checkpoints").unlink()
    assert Run.open(run).summary()["state"] == "failed"
